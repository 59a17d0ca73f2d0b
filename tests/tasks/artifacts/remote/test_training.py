"""A training that was killed on one machine goes on on another, to the same bits."""

import argparse
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.artifacts.build import RunContext
from tasks.artifacts.remote.attach import store_of
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stage import build_chunk
from tasks.train.config import TrainStageConfig
from tasks.train.stage import build_train
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab

TEXT = Path(argparse.__file__).read_text(encoding="utf-8")
STEPS = 240  # A dozen are over before a busy store has the first checkpoint.
CONFIG = TrainStageConfig.model_validate(
    {
        "model": {"context": 32, "layers": 1, "heads": 2, "width": 16},
        "batch_rows": 4,
        "micro_batch_rows": 4,
        "checkpoint_steps": 5,
        "threads": 1,
    }
)
KILLED = """
import os, signal, sys, time
from pathlib import Path
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.artifacts.remote import partial_builds as unfinished
from tasks.artifacts.remote.attach import store_of
from tasks.train.config import TrainStageConfig
from tasks.train.stage import build_train

root, chunk, vocab, config = sys.argv[1:]
store = store_of(Path(root))
unfinished.PartialBuildUploader.__init__.__kwdefaults__["pause_seconds"] = 0.05

def on_log(message):
    while message["kind"] == "checkpoint":
        for key in store.list_objects("unfinished/train"):
            print(store.read(key)["groups"], flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)

parents = Artifact.open(Path(chunk)), Artifact.open(Path(vocab))
build_train(RunContext(Path(root), "run"), *parents, TrainStageConfig.model_validate_json(config), on_log)
"""


@pytest.mark.prove
def test_killed_on_one_machine_a_training_ends_on_another_with_the_same_bits(
    context: RunContext, make_documents, machine
) -> None:
    """Kill -9 as soon as a checkpoint is in the store; the other machine's cache is empty."""
    documents = make_documents([[("code", TEXT)]])
    vocab = build_vocab(context, documents, VocabConfig(vocab_size=400))
    chunk = build_chunk(context, documents, vocab, ChunkConfig(row_length=33, budget_tokens=32 * 4 * STEPS))
    whole = build_train(context, chunk, vocab, CONFIG, lambda message: None)

    words = [sys.executable, "-c", KILLED, machine("a"), chunk.path, vocab.path, CONFIG.model_dump_json()]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    killed = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, env=environment, timeout=1200
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert re.search(r"checkpoints/step-\d+/COMPLETE", killed.stdout)

    other = machine("b")
    store, heard = store_of(other), list[dict[str, Any]]()
    assert store is not None
    assert store.list_objects("manifests") == {}
    ended = build_train(replace(context, root=other), chunk, vocab, CONFIG, heard.append)
    assert heard[0]["step"] in range(5, STEPS, 5)
    assert (ended.identity, ended.content) == (whole.identity, whole.content)
    assert "continued from the finished parts" in ended.cause
    assert len(store.list_objects("manifests")) == 1
    assert store.list_objects("unfinished") == store.list_objects("checkpoints") == {}
