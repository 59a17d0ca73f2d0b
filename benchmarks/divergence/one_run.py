"""One run, provoked or not, with its guard or without: how it ended."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.ipc
import torch
from provocations import Provocation, provoking
from text import BATCH_ROWS, byte_level_run, write_rows
from torch.nn import functional as F

import model.train.trainer
from model.checkpoint.checkpoint import checkpoint_steps, discard
from model.checkpoint.metrics import table_file
from model.checkpoint.run_folder import CHECKPOINTS, checkpoint_folder
from model.checkpoint.weights import load_model
from model.engines.runtime import flush_denormals
from model.errors import Numerics
from model.guard.decisions import read_decisions

CHECKPOINT_STEPS = 25
SIGNS = ("spike", "skipped_step", "overflow", "rollback")
"""Kinds of events by which trouble shows."""


@dataclass(frozen=True)
class Setting:
    """A run before anything happens to it."""

    seed: int
    steps: int
    dtype: str
    guarded: bool


def carry_out(folder: Path, setting: Setting, provocation: Provocation | None, clean: Path | None) -> dict[str, Any]:
    """Train one run in `folder`; return how it ended: held-out loss in nats (None where the run ended early or gives
    none), signs of trouble with their steps, rollbacks, seconds.

    A provoked run goes on from what `clean`, the same one without, had made before. It is written to `folder`.
    """
    text = folder.parent / f"text-{setting.steps}"
    *_, held_out = write_rows(text, setting.steps * BATCH_ROWS)
    shutil.rmtree(folder, ignore_errors=True)
    if clean is not None and provocation is not None:
        _copy_before(clean, folder, provocation.begin)
    train = {
        "checkpoint_steps": CHECKPOINT_STEPS,
        "keep_checkpoints": setting.steps if provocation is None else 2,
        "seed": setting.seed,
        "dtype": setting.dtype,
        "schedule": {"peak_lr": 3e-3, "end_lr": 3e-4},
        "guard": {"enabled": setting.guarded},
    }
    run = byte_level_run(text, setting.steps, folder, layers=2, train=train)
    model.train.trainer.make_engine = provoking(provocation)
    began, ended = time.monotonic(), ""
    try:
        with flush_denormals():
            result = model.train.trainer.train(run)
    except Numerics as error:
        ended, result = str(error), folder / "diverged"
    events = pyarrow.ipc.open_file(result / table_file("events")).read_all().to_pylist()
    return {
        "loss": None if ended else held_out_loss(result, held_out),
        "ended": ended,
        "signs": [(event["kind"], event["step"]) for event in events if event["kind"] in SIGNS],
        "rollbacks": len(read_decisions(folder)),
        "seconds": time.monotonic() - began,
    }


def held_out_loss(folder: Path, tokens: np.ndarray) -> float | None:
    """Return the mean loss in nats per token, None where it is no number."""
    network: Any = load_model(folder)
    rows = torch.from_numpy(tokens)
    with torch.inference_mode():
        logits = network(rows[:, :-1])
        loss = float(F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))
    return loss if np.isfinite(loss) else None


def _copy_before(clean: Path, folder: Path, step: int) -> None:
    shutil.copytree(clean / CHECKPOINTS, folder / CHECKPOINTS)
    for steps in checkpoint_steps(folder / CHECKPOINTS):
        if steps > step:
            discard(checkpoint_folder(folder / CHECKPOINTS, steps))
