"""Several real ranks, one of which computes non-finite numbers: all roll back to the same checkpoint."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from model.checkpoint.metrics import MetricsLog
from model.config.train import TrainerRun
from model.guard.decisions import read_decisions
from model.guard.guard import write_decision

GUARD = {"window": 16, "least_steps": 8, "unclean_window": 16, "most_unclean": 4, "healthy_steps": 6, "margin_steps": 2}
STEPS = 30
PROGRAM = Path(__file__).with_name("provoked_rank.py")


def carry_out(run: TrainerRun, first: int, last: int) -> Path:
    file = run.out.with_suffix(".json")
    file.write_text(run.model_dump_json())
    rendezvous = run.out.with_suffix(".meeting")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(file), str(rank), str(rendezvous), str(first), str(last)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(run.train.ranks)
    ]
    reported = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), "\n".join(reported)
    return run.out / "result"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"engine": "fsdp"}, marks=pytest.mark.prove),
        pytest.param({"engine": "deepspeed", "zero_stage": 1}, marks=pytest.mark.prove),
        pytest.param({"engine": "deepspeed", "zero_stage": 2}, marks=pytest.mark.prove),
        pytest.param({"engine": "deepspeed", "zero_stage": 3}, marks=pytest.mark.prove),
        pytest.param({"tensor_parallel": 2}, marks=pytest.mark.prove),
        pytest.param({"pipeline_parallel": 2}, marks=pytest.mark.prove),
    ],
)
def test_one_rank_is_enough_for_all_to_go_back(make_run, settings: dict[str, Any]) -> None:
    guard = {**GUARD, "most_skipped": 0.3}
    named = {"positions": 2 * STEPS, "ranks": 2, "guard": guard, "micro_batch_rows": 1, **settings}
    run, reference = make_run("provoked", **named), make_run("reference", **named)
    result = carry_out(run, 20, 22)
    (decision,) = read_decisions(run.out)
    assert (decision.onset, decision.step, decision.to_step, decision.skipped) == (20, 22, 12, (36, 50))
    write_decision(reference.out, decision.model_copy(update={"to_step": 0, "step": 0, "onset": 0}), MetricsLog())
    weights = (carry_out(reference, -1, -1) / "model.safetensors").read_bytes()
    assert (result / "model.safetensors").read_bytes() == weights
