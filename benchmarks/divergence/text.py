"""Rows of real text that every machine has: the sources of Python's own library, as bytes."""

import sysconfig
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import write_rows as write_files
from model.config.network import GPTConfig
from model.config.train import TrainConfig, TrainerRun

PAD, VOCABULARY = 256, 260
ROW = 129
HELD_OUT_ROWS = 64
BATCH_ROWS = 16


def write_rows(folder: Path, rows: int) -> tuple[Path, Path, np.ndarray]:
    """Write SEQUENCES and an ORDER that reads each of `rows` rows once, where they are missing; return their paths and
    tokens i64[HELD_OUT_ROWS, ROW] kept out."""
    sequences, order = folder / "rows.arrow", folder / "order.arrow"
    wanted = (rows + HELD_OUT_ROWS) * ROW
    text = b""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= wanted:
            break
    assert len(text) >= wanted, f"Python's library has {len(text)} bytes of text, and {wanted} are needed"
    tokens = np.frombuffer(text[:wanted], dtype=np.uint8).reshape(-1, ROW)
    tokens = np.random.default_rng(3).permutation(tokens)
    if not order.exists():
        write_files(folder, tokens[:rows], VOCABULARY)
    return sequences, order, tokens[rows:].astype(np.int64)


def byte_level_run(text: Path, steps: int, out: Path, layers: int, train: dict[str, Any]) -> TrainerRun:
    """Return a run of a GPT of width 64 that reads each row in `text` once in `steps` steps; `train`: more settings."""
    sequences, order, _ = write_rows(text, steps * BATCH_ROWS)
    sizes = {"batch_rows": BATCH_ROWS, "micro_batch_rows": BATCH_ROWS, "threads": 1}
    return TrainerRun(
        sequences=(sequences,),
        order=order,
        out=out,
        pad=PAD,
        tokenizer_digest="bytes",
        model=GPTConfig(vocab_size=VOCABULARY, context=ROW - 1, layers=layers, heads=4, width=64),
        train=TrainConfig.model_validate({**sizes, **train}),
    )
