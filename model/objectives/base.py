"""The interface of objectives, and the share of a batch that each rank computes.

A batch is a frozen dataclass of tensors whose first dimension is the row. On a device a mask that
hides nothing is None.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from model.data.dataset import Rows, SequenceReader
from model.data.loader import Loader
from model.distributed.process_group import Ranks


@dataclass(frozen=True)
class Sums:
    """Sums over the rows of a micro-batch; those of micro-batches and ranks add up.

    The loss is the sum over terms of nats divided by the `counts` of the whole batch.
    """

    nats: tuple[Tensor, ...]
    """f32[] of each term, differentiable: sum of -ln p over the targets."""
    correct: tuple[Tensor, ...]
    """i64[] of each term: targets that the network thinks most likely; empty where these are not counted."""
    activation_ranges: Tensor
    """f32[P, 2]: `activation_range` of the segments that `activation_range_names` names, in order."""


class Objective(Protocol):
    """Batches of one kind and the loss of a network on them, without state."""

    terms: tuple[str, ...]
    """Names of the terms of the loss."""
    counts_correct: bool = False
    """Whether correct predictions are counted too."""

    def loader(self, data: SequenceReader) -> Loader:
        """Return a loader of these rows; InputError for rows of another objective."""
        ...

    def tokens_per_row(self, row_length: int) -> int:
        """Return the positions of a row that the network computes, padding included."""
        return row_length

    def text_tokens(self, data: SequenceReader, rows: Rows) -> int:
        """Return the text tokens of rows of `data`, as the budget counts them: without padding and special tokens of a
        pair; of next tokens those that are predicted."""
        ...

    def counts(self, batch: Any) -> tuple[int, ...]:
        """Return the number of targets of each term in a batch."""
        ...

    def sums(self, network: Any, batch: Any) -> Sums:
        """Compute the sums of a batch."""
        ...

    def inputs(self, network: Any, batch: Any) -> dict[str, Any]:
        """Return the inputs of the network before its head, by name."""
        ...

    def sums_from_hidden(self, network: Any, hidden: Tensor, ranges: list[Tensor], batch: Any) -> Sums:
        """Compute `sums` from what the head reads and the activation ranges before the head."""
        ...

    def without_loss(self, batch: Any) -> Any:
        """Return the same rows without targets."""
        ...


@dataclass(frozen=True)
class RankBatch:
    """Micro-batches of one rank, as many as on every other, and the targets of the whole batch."""

    micro_batches: list[Any]
    """Batches of the objective's kind."""
    counted: tuple[int, ...]
    """Targets of each term in the batch of all ranks; at least 1."""
    begin: int = 0
    """Row of the batch with which the first micro-batch begins."""


def rank_batch(
    ranks: Ranks, batch: Any, objective: Objective, micro_batch_rows: int, *, equal: bool = False
) -> RankBatch:
    """Return the share of a rank: consecutive rows, so that the order of the data does not depend on the number of
    ranks.

    Every rank reads the whole batch (a memory map) and counts its targets, which saves a message. Where the rows of a
    short last batch cannot be split evenly, its last row is repeated without loss: every rank then takes part in as
    many collectives, and activation ranges come from rows of the batch alone. So it is where micro-batches must be
    `equal` in rows.
    """
    counted = tuple(max(count, 1) for count in objective.counts(batch))
    size = row_count(batch)
    rows = -(-size // ranks.size)
    if equal and rows > micro_batch_rows:
        rows = -(-rows // micro_batch_rows) * micro_batch_rows
    missing = rows * ranks.size - size
    if missing:
        batch = concatenate_batches(batch, *[objective.without_loss(slice_batch(batch, size - 1, size))] * missing)
    begin, end = ranks.rank * rows, (ranks.rank + 1) * rows
    starts = range(begin, end, micro_batch_rows)
    parts = [slice_batch(batch, start, min(start + micro_batch_rows, end)) for start in starts]
    return RankBatch(parts, counted, begin)


def row_count(batch: Any) -> int:
    """Return the number of rows of a batch."""
    return len(getattr(batch, fields(batch)[0].name))


def map_batch(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Return a batch of what the function makes of each tensor."""
    return replace(batch, **{field.name: function(getattr(batch, field.name)) for field in fields(batch)})


def slice_batch(batch: Any, begin: int, end: int) -> Any:
    """Return rows [begin, end) of a batch, as views."""
    return map_batch(lambda tensor: tensor[begin:end], batch)


def concatenate_batches(*batches: Any) -> Any:
    """Return the rows of several batches of one kind as one batch."""
    first = batches[0]
    return replace(first, **{f.name: torch.cat([getattr(batch, f.name) for batch in batches]) for f in fields(first)})
