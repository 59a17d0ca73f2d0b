"""Arrow schemas of the tables that training reads and writes.

SEQUENCES and ORDER are read through memory maps, so they are written uncompressed. PERF and EVENTS hold clock times and
stay outside every content digest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from model.data.row_format import RowFormat

U16_TOKENS = 1 << 16


def sequences_schema(row_length: int, vocab_size: int, row_format: RowFormat | None = None) -> pa.Schema:
    """Return the schema of SEQUENCES: rows of `row_length` token ids (u16 where the vocabulary allows), each from one
    source.

    `loss_start` is the first token position whose prediction carries loss. `row_format` is stored as metadata. Rows of
    masked_lm, [CLS] A [SEP] B [SEP], also hold where B begins (`second_start`; `row_length` without a B) and whether it
    follows A in its document (`is_next`; null without a B).
    """
    token = pa.uint16() if vocab_size <= U16_TOKENS else pa.uint32()
    fields = [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("source", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("tokens", pa.list_(pa.field("item", token, nullable=False), row_length), nullable=False),
        pa.field("loss_start", pa.int32(), nullable=False),
    ]
    if row_format is not None and row_format.objective == "masked_lm":
        fields += [pa.field("second_start", pa.int32(), nullable=False), pa.field("is_next", pa.bool_())]
    return pa.schema(fields, metadata=None if row_format is None else row_format.metadata())


ORDER = pa.schema([pa.field("row", pa.int64(), nullable=False), pa.field("epoch", pa.int16(), nullable=False)])
"""The row that training reads at each position (the row number of this table), and how often it was read before."""

STEPS = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("pos_start", pa.int64(), nullable=False),
        pa.field("pos_end", pa.int64(), nullable=False),
        pa.field("row_pieces", pa.int32(), nullable=False),
        pa.field("applied", pa.bool_(), nullable=False),
    ]
)
"""What training read: positions of ORDER, half-open. `attempt` counts the guard's rollbacks, `row_pieces` the short
rows that each row was cut into (1: whole). Of a step with several attempts the last one is in the weights
(`model/checkpoint/metrics.py`)."""

METRICS = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("loss", pa.float64(), nullable=False),
        pa.field("grad_norm", pa.float64(), nullable=False),
        pa.field("lr", pa.float64(), nullable=False),
        pa.field("max_norm", pa.float64(), nullable=False),
        pa.field("scale", pa.float64(), nullable=False),
        pa.field("largest_activations", pa.list_(pa.float32()), nullable=False),
        pa.field("activation_lows", pa.list_(pa.float32()), nullable=False),
        pa.field("activation_highs", pa.list_(pa.float32()), nullable=False),
        pa.field("masked_loss", pa.float64()),
        pa.field("masked_accuracy", pa.float64()),
        pa.field("next_loss", pa.float64()),
        pa.field("next_accuracy", pa.float64()),
    ]
)
"""One row for each computed step: tokens of text so far, as the budget counts them, mean loss in nats per token,
gradient norm before clipping and its limit. For masked_lm the loss is that of masked tokens plus that of sentence
pairs; each has a column of its own, null for other objectives. `largest_activations` are the largest magnitudes in the
segments that model.json names, `activation_lows` and `activation_highs` their smallest and largest values; NaN is
written as infinite."""

VALIDATION = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("predictions", pa.int64(), nullable=False),
        pa.field("nats_per_token", pa.float64()),
        pa.field("bits_per_byte", pa.float64()),
    ]
)
"""Held-out loss of each source after a step, numbered as in METRICS: mean nats of what carries loss (for masked_lm the
masked tokens), and bits per byte of the text, where every token of it is predicted. Null without predictions, or where
the number is not finite."""

PERF = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("wall_s", pa.float64(), nullable=False),
        pa.field("tokens_s", pa.float64(), nullable=False),
        pa.field("mfu", pa.float64()),
        pa.field("rss", pa.int64(), nullable=False),
    ]
)
"""Seconds and text tokens per second of each step, model FLOPs utilisation where the peak is known, resident bytes."""

EVENTS = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("time", pa.float64(), nullable=False),
        pa.field("step", pa.int64(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("class", pa.string(), nullable=False),
        pa.field("positions", pa.list_(pa.int64()), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
    ]
)
"""Events of the training process: starts, resumes, checkpoints, damaged checkpoints, skipped steps."""
