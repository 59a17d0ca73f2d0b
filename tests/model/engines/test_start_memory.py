"""A rank starts with its part of the weights, and never has more of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from model.config.network import GPTConfig
from model.config.train import TrainConfig, TrainerRun, write_run
from model.nn.factory import parameter_count

PROJECT = Path(__file__).resolve().parents[3]
RANKS = 8
ALLOWED = 200 * 2**20
"""Bytes beyond a rank's part: libraries that are loaded on first use, buffers of gloo, numbers that are drawn."""


@pytest.mark.prove
def test_eight_processes_start_with_an_eighth_of_a_billion_weights_each(tmp_path: Path) -> None:
    """The peak of resident memory above what the process has when it is about to create the network."""
    model = GPTConfig(
        vocab_size=32_000, context=1024, layers=18, heads=16, width=2048, activation="swiglu", tied_head=False
    )
    assert parameter_count(model) > 1e9
    train = TrainConfig(batch_rows=8, micro_batch_rows=1, ranks=RANKS, engine="fsdp", threads=1)
    run = TrainerRun(
        sequences=(), order=Path(), out=Path(), pad=0, eos=1, tokenizer_digest="t", model=model, train=train
    )
    write_run(tmp_path / "run.json", run)
    command = [sys.executable, "-m", "tests.model.engines.start_rank", str(tmp_path / "run.json")]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meet"), str(RANKS)], cwd=PROJECT, stdout=subprocess.PIPE, text=True
        )
        for rank in range(RANKS)
    ]
    printed = [json.loads(process.communicate(timeout=3000)[0]) for process in processes]
    share = 4 * parameter_count(model) / RANKS
    beyond = [rank["above"] - share for rank in printed]
    print(f"share {share / 2**20:.0f} MiB, beyond it {[round(size / 2**20) for size in beyond]} MiB")
    assert sum(rank["weights"] for rank in printed) == RANKS * share
    assert max(beyond) <= ALLOWED
