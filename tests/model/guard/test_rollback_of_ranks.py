"""Several real ranks, one of which computes non-finite numbers: all roll back to the same checkpoint."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

import model.train.trainer
from model.checkpoint.metrics import MetricsLog
from model.config.train import TrainerRun
from model.distributed.process_group import join_process_group
from model.engines import make_engine
from model.guard.decisions import read_decisions
from model.guard.guard import write_decision
from model.train.trainer import train
from tests.model.forked_ranks import run_ranks

GUARD = {"window": 16, "least_steps": 8, "unclean_window": 16, "most_unclean": 4, "healthy_steps": 6, "margin_steps": 2}
STEPS = 30


def carry_out(run: TrainerRun, faulty: range) -> Path:
    run_ranks(run.train.ranks, functools.partial(train_provoked, run, faulty))
    return run.out / "result"


def train_provoked(run: TrainerRun, faulty: range, rank: int) -> None:
    """Be one rank of a real group, whose last member computes non-finite numbers in these steps of the first
    attempt."""

    def make(run: Any, network: Any, ranks: Any, *parts: Any) -> Any:
        engine: Any = make_engine(run, network, ranks, *parts)
        if read_decisions(run.out) or rank != ranks.size - 1:
            return engine
        real, made = engine.begin, iter(range(STEPS))

        def begin(*arguments: Any) -> None:
            fault = network.final_norm.register_forward_hook(lambda module, inputs, output: output * torch.nan)
            if next(made, STEPS) not in faulty:
                fault.remove()
            real(*arguments)
            fault.remove()

        engine.begin = begin
        return engine

    model.train.trainer.make_engine = make
    with join_process_group(rank, run.train.ranks, run.out.with_suffix(".meeting")) as ranks:
        train(run, ranks)


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
    result = carry_out(run, range(20, 23))
    (decision,) = read_decisions(run.out)
    assert (decision.onset, decision.step, decision.to_step, decision.skipped) == (20, 22, 12, (36, 50))
    write_decision(reference.out, decision.model_copy(update={"to_step": 0, "step": 0, "onset": 0}), MetricsLog())
    weights = (carry_out(reference, range(0)) / "model.safetensors").read_bytes()
    assert (result / "model.safetensors").read_bytes() == weights
