"""Rows of real text that every machine has: the sources of Python's own library, as bytes."""

import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from model.config.network import GPTConfig
from model.config.train import TrainConfig, TrainerRun
from model.data.schema import ORDER, sequences_schema

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
        folder.mkdir(parents=True, exist_ok=True)
        columns = {
            "row": pa.array(range(rows), pa.int64()),
            "source": pa.array(["text"] * rows).dictionary_encode(),
            "tokens": pa.FixedSizeListArray.from_arrays(pa.array(tokens[:rows].astype(np.uint16).ravel()), ROW),
            "loss_start": pa.array([0] * rows, pa.int32()),
        }
        read = {"row": pa.array(range(rows), pa.int64()), "epoch": pa.array([0] * rows, pa.int16())}
        _write(sequences, pa.table(columns).cast(sequences_schema(ROW, VOCABULARY)))
        _write(order, pa.table(read).cast(ORDER))
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


def _write(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
