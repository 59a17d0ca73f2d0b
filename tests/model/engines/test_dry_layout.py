"""Ranks that are started dry need what ranks that train hold and send."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from model.config.network import BERTConfig, GPTConfig, NetworkConfig, T5Config
from model.config.train import TrainConfig, TrainerRun, write_run
from model.engines import dry_layout
from model.engines.counters import Messages
from model.engines.memory import rank_memory
from model.nn.factory import parameter_count

PROJECT = Path(__file__).resolve().parents[3]
RANKS = 8

TWIN = GPTConfig.model_validate(
    {
        "vocab_size": 1024,
        "context": 64,
        "layers": 3,
        "heads": 8,
        "width": 256,
        "ffn_width": 520,
        "activation": "geglu",
        "embedding_width": 128,
        "tied_head": False,
    }
)
"""YaLM-100B, shrunk: rotary positions, GeGLU of a width that no power of two divides, a narrow embedding."""

SMALL: dict[str, Any] = {"vocab_size": 512, "context": 32, "heads": 2, "width": 64}

LAYOUTS: dict[str, dict[str, Any]] = {
    "as YaLM": {"ranks": 4, "batch_rows": 4},
    "as OPT": {"ranks": 4, "batch_rows": 4, "tensor_parallel": 2},
    "all three": {"batch_rows": 6, "tensor_parallel": 2, "pipeline_parallel": 2},
}
"""With one micro-batch of a rank, two, and three through two stages, of which two are in flight."""


def train_of(**settings: Any) -> TrainConfig:
    given = {"batch_rows": 8, "micro_batch_rows": 1, "ranks": RANKS, "engine": "fsdp", "threads": 1, **settings}
    return TrainConfig.model_validate({"dtype": "bfloat16", "recompute": True, **given})


def test_ranks_that_train_hold_and_send_what_was_counted_dry(tmp_path: Path) -> None:
    """Weights, moments and messages to the byte, and the peak of allocated memory within 15%, in up to eight
    processes."""
    runs = []
    for settings in LAYOUTS.values():
        run = {"sequences": (), "order": Path(), "out": Path(), "pad": TWIN.vocab_size, "tokenizer_digest": "t"}
        runs.append(TrainerRun.model_validate({**run, "model": TWIN, "train": train_of(**settings)}))
        write_run(tmp_path / f"{len(runs) - 1}.json", runs[-1])
    command = [sys.executable, "-m", "tests.model.engines.dry_layout_rank", str(tmp_path)]
    subprocess.run(command, cwd=PROJECT, check=True, timeout=900)
    for number, (name, run) in enumerate(zip(LAYOUTS, runs, strict=True)):
        train = run.train
        for dry in dry_layout.dry_layout(TWIN, train).ranks:
            rank = dry.stage * train.ranks // train.pipeline_parallel
            found = json.loads((tmp_path / f"{number}.rank-{rank}").read_text())
            assert asdict(dry.messages) == found["messages"], (name, dry.stage)
            assert (dry.weights, dry.optimizer) == (found["weights"], found["optimizer"]), (name, dry.stage)
            assert dry.peak == pytest.approx(found["peak"], rel=0.15), (name, dry.stage)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (TWIN.model_copy(update={"layers": 5}), {"batch_rows": 32}),
        (
            TWIN.model_copy(update={"layers": 10}),
            {"pipeline_parallel": 2, "batch_rows": 20, "engine": "native", "recompute": False},
        ),
        (BERTConfig.model_validate({**SMALL, "layers": 5}), {"tensor_parallel": 2, "batch_rows": 4}),
        (
            T5Config.model_validate({**SMALL, "layers": 6}),
            {"pipeline_parallel": 2, "batch_rows": 4, "recompute": False},
        ),
    ],
    ids=["fsdp", "pipeline", "bert", "t5"],
)
def test_blocks_and_micro_batches_beyond_those_that_are_made_add_alike(
    model: NetworkConfig, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = train_of(**settings)
    short = dry_layout.dry_layout(model, train)
    monkeypatch.setattr(dry_layout, "FEW_BLOCKS", 100)
    monkeypatch.setattr(dry_layout, "FILLING", 100)
    monkeypatch.setattr(dry_layout, "_dry_rank", dry_layout._dry_rank.__wrapped__)
    whole = dry_layout.dry_layout(model, train)
    for found, expected in zip(short.ranks, whole.ranks, strict=True):
        assert found.messages == expected.messages
        assert found.kept == pytest.approx(expected.kept, rel=0.01)
        assert found.peak == pytest.approx(expected.peak, rel=0.01)


def test_messages_are_those_that_can_be_counted_by_hand() -> None:
    """Of FSDP over one block a group: weights are gathered forward and backward, gradients summed once a
    micro-batch."""
    model = GPTConfig(vocab_size=64, context=32, layers=4, heads=2, width=64, qk_norm="none")
    layout = dry_layout.dry_layout(model, train_of(batch_rows=24))
    weights = 4 * parameter_count(model)
    outside = 4 * (64 * 64 + 64)  # The embedding, which is the head, and the last norm stay until the backward pass.
    assert layout.micro_batches == 3
    assert layout.bubble == 0
    (rank,) = layout.ranks
    numbers = 4 + 2 * 8 * (1 + 2 * model.layers)
    assert rank.messages.all_gather == 3 * (2 * weights - outside)
    assert rank.messages.reduce_scatter == 3 * weights
    assert rank.weights == weights / RANKS
    assert rank.optimizer == 2 * rank.weights
    assert rank.messages.sums <= 4 * numbers
    assert rank.messages == Messages(rank.messages.all_gather, rank.messages.reduce_scatter, 0, rank.messages.sums, 0)


def test_a_pipeline_waits_and_sends() -> None:
    """1F1B: 4 stages and 12 micro-batches of one row are idle for 3 of 15 turns."""
    model = GPTConfig(vocab_size=64, context=32, layers=4, heads=2, width=64)
    train = train_of(pipeline_parallel=4, engine="native", ranks=4, batch_rows=12)
    layout = dry_layout.dry_layout(model, train)
    assert layout.bubble == 3 / 15
    assert [rank.stage for rank in layout.ranks] == [0, 1, 3]
    assert [rank.in_flight for rank in layout.ranks] == [4, 3, 1]
    stream = 12 * 32 * 64 * 4
    assert [rank.messages.sends for rank in layout.ranks] == [stream, 2 * stream, stream]


def test_recomputing_keeps_less_and_gathers_as_often() -> None:
    again, once = (train_of(**LAYOUTS["as YaLM"], recompute=value) for value in (True, False))
    recomputed, kept = (dry_layout.dry_layout(TWIN, train).ranks[0] for train in (again, once))
    assert recomputed.kept < kept.kept / 4
    assert recomputed.peak < kept.peak
    assert recomputed.messages == kept.messages
    memory = rank_memory(TWIN, again)
    assert memory.total == pytest.approx(recomputed.peak)
    assert memory.weights == recomputed.weights
