"""Rows of tokens as chunk writes them, and runs of engines that read none."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from model.checkpoint.metrics import serialized
from model.config.network import NetworkConfig
from model.config.train import TrainConfig, TrainerRun
from model.data.row_format import RowFormat
from model.data.schema import ORDER, sequences_schema


def write_rows(
    folder: Path,
    tokens: np.ndarray,
    vocab_size: int,
    read: Sequence[int] | None = None,
    row_format: RowFormat | None = None,
    **columns: pa.Array,
) -> tuple[Path, Path]:
    """Write SEQUENCES of tokens [rows, length], and an ORDER that reads the rows of these numbers, by default each
    once; return the paths. `columns` are those of an objective of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, length = tokens.shape
    columns |= {
        "row": pa.array(range(rows), pa.int64()),
        "source": pa.array(["rows"] * rows).dictionary_encode(),
        "tokens": pa.FixedSizeListArray.from_arrays(pa.array(tokens.ravel()), length),
        "loss_start": pa.array([0] * rows, pa.int32()),
    }
    schema = sequences_schema(length, vocab_size, row_format)
    sequences, order = folder / "rows.arrow", folder / "order.arrow"
    sequences.write_bytes(serialized(pa.table(columns).select(schema.names).cast(schema)))
    numbers = range(rows) if read is None else read
    order.write_bytes(serialized(pa.table({"row": numbers, "epoch": [0] * len(numbers)}, schema=ORDER)))
    return sequences, order


def run_without_rows(model: NetworkConfig, train: TrainConfig, pad: int, eos: int | None = None) -> TrainerRun:
    """Return a run for an engine whose batches are made in memory."""
    return TrainerRun(
        sequences=(), order=Path(), out=Path(), pad=pad, eos=eos, tokenizer_digest="rows", model=model, train=train
    )
