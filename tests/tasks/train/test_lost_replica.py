"""Eight ranks as two replicas of 2 x 2 (data x tensor x pipeline), of which one is lost for good and returns."""

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.artifacts.build import RunContext
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stage import build_chunk
from tasks.train.config import TrainStageConfig
from tasks.train.stage import build_train
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab
from tests.model.launch.test_fewer_ranks import lost

STEPS = 200
CONFIG = TrainStageConfig.model_validate(
    {
        "model": {"context": 32, "layers": 2, "heads": 2, "width": 16},
        "ranks": 8,
        "tensor_parallel": 2,
        "pipeline_parallel": 2,
        "batch_rows": 4,
        "micro_batch_rows": 1,
        "checkpoint_steps": 10,
        "threads": 1,
        "restarts": {"fewer_ranks": True, "pause_seconds": 0},
    }
)


def supervisor() -> int:
    """Process id of the trainer that this process started."""
    children = " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children")).split()
    return next(int(pid) for pid in children if b"model.train" in Path(f"/proc/{pid}/cmdline").read_bytes())


@pytest.mark.prove
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the ranks in /proc")
def test_a_replica_that_is_lost_and_returns_is_in_events_and_the_manifest(context: RunContext, make_documents) -> None:
    documents = make_documents([[("code", Path(argparse.__file__).read_text(encoding="utf-8"))]])
    vocab = build_vocab(context, documents, VocabConfig(vocab_size=400))
    rows = build_chunk(context, documents, vocab, ChunkConfig(row_length=33, budget_tokens=32 * 4 * STEPS))
    heard: list[dict[str, Any]] = []

    with contextlib.ExitStack() as killing:

        def hear(message: dict[str, Any]) -> None:
            heard.append(message)
            events = [one["event"] for one in heard if one["kind"] == "event"]
            if message["kind"] == "checkpoint" and not events:
                # Its fourth rank alone, in the second stage.
                killing.enter_context(lost(supervisor(), 6))
            elif events.count("restart") == 4:
                # Three failures, and one when it was tried again.
                killing.close()

        artifact = build_train(context, rows, vocab, CONFIG, hear)
    events = [
        (row["kind"], json.loads(row["detail"]))
        for row in artifact.table("events").to_pylist()
        if row["kind"] in ("restart", "fewer_ranks", "all_ranks")
    ]
    kinds = [kind for kind, _ in events]
    assert kinds == [*["restart"] * 3, "fewer_ranks", "restart", "fewer_ranks", "all_ranks"]
    assert [facts["ranks"] for kind, facts in events if kind == "restart"] == [8, 8, 4, 4]
    without = {"ranks": 4, "of": 8, "left_out": [1]}
    assert [facts for kind, facts in events if kind == "fewer_ranks"] == [without, without]
    assert events[-1] == ("all_ranks", {"ranks": 8, "replicas": [1]})
    facts = json.loads((artifact.path / "manifest.json").read_text())["report"]["facts"]
    assert facts["exact"] is False
    assert (facts.get("decisions"), artifact.table("steps").num_rows) == (None, STEPS)
