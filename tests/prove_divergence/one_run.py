"""One run, provoked or not, with its guard or without: how it ended, as a line of JSON."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.ipc
import torch
from torch.nn import functional as F

import model.training
from model.architecture import GPTConfig
from model.config import ScheduleConfig, TrainConfig, TrainerRun
from model.errors import Numerics
from model.guard.decision import read_decisions
from model.journal import journal_file
from model.precision import denormals_flushed
from model.weights import load_model
from tests.prove_divergence.provocations import Provocation, provoking
from tests.prove_divergence.text import PAD, ROW, VOCABULARY, write_rows

STEPS, BATCH_ROWS = 600, 16
SIGNS = ("spike", "skipped_step", "overflow", "rollback")
"""Kinds of events by which trouble shows."""


def carry_out(folder: Path, provocation: Provocation | None, seed: int, *, guarded: bool, dtype: str) -> dict[str, Any]:
    """Held-out loss in nats (None where the run ended early), steps of its events, attempts."""
    sequences, order, held_out = write_rows(folder / "data", STEPS * BATCH_ROWS)
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    run = TrainerRun(
        sequences=(sequences,),
        order=order,
        out=out,
        pad=PAD,
        tokenizer_digest="bytes",
        model=GPTConfig(vocab_size=VOCABULARY, context=ROW - 1, layers=2, heads=4, width=64),
        train=TrainConfig.model_validate(
            {
                "batch_rows": BATCH_ROWS,
                "micro_batch_rows": BATCH_ROWS,
                "checkpoint_steps": 25,
                "threads": 1,
                "seed": seed,
                "dtype": dtype,
                "schedule": ScheduleConfig(peak_lr=3e-3, end_lr=3e-4),
                "guard": {} if guarded else {"enabled": False},
            }
        ),
    )
    model.training.make_engine = provoking(provocation)
    began, ended = time.monotonic(), ""
    try:
        with denormals_flushed():
            result = model.training.train(run)
    except Numerics as error:
        ended, result = str(error), out / "diverged"
    tables = {name: pyarrow.ipc.open_file(result / journal_file(name)).read_all() for name in ("events", "steps")}
    events = [(row["kind"], row["step"]) for row in tables["events"].to_pylist() if row["kind"] in SIGNS]
    return {
        "loss": None if ended else held_out_loss(result, held_out),
        "ended": ended,
        "signs": events,
        "rollbacks": len(read_decisions(out)),
        "steps": tables["steps"].num_rows,
        "seconds": time.monotonic() - began,
    }


def held_out_loss(folder: Path, tokens: np.ndarray) -> float | None:
    """Mean nats per token; None where it is no number."""
    network: Any = load_model(folder)
    rows = torch.from_numpy(tokens)
    with torch.inference_mode():
        logits = network(rows[:, :-1])
        loss = float(F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))
    return loss if np.isfinite(loss) else None


if __name__ == "__main__":
    import sys

    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    for words in sys.argv[2:]:
        kind, begin, seed, guarded = words.split(":")
        provocation = None if kind == "clean" else Provocation(kind, int(begin), int(seed))
        dtype = "float16" if kind == "overflow burst" or guarded.endswith("h") else "float32"
        found = carry_out(folder, provocation, int(seed), guarded=guarded.startswith("on"), dtype=dtype)
        print(json.dumps({"words": words, **found}), flush=True)
