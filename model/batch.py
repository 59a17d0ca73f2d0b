"""What one rank computes of a batch. A batch is a frozen dataclass of tensors, each with a row first."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from model.objectives.interface import Objective
from model.ranks import Ranks


@dataclass(frozen=True)
class RankBatch:
    """Micro-batches of one rank, as many on every rank, and what the whole batch counts."""

    micro_batches: list[Any]
    """Batches of the objective's kind."""
    counted: tuple[int, ...]
    """How much each of the objective's terms counts in the batch of all ranks; at least 1."""


def share_of(ranks: Ranks, batch: Any, objective: Objective, micro_batch_rows: int) -> RankBatch:
    """The share of a rank: consecutive rows, so that the order of the data does not depend on the number of ranks.

    Every rank reads the whole batch (a memory map) and counts its predictions, which saves a message. Where the rows of
    a last, short batch do not go round, its last row is read again without loss: each rank then takes part in as many
    exchanges as the others, and thermometers see no values that the batch does not hold.
    """
    counted = tuple(max(count, 1) for count in objective.counts(batch))
    size = row_count(batch)
    rows = -(-size // ranks.size)
    missing = rows * ranks.size - size
    if missing:
        batch = joined(batch, *[objective.without_loss(rows_of(batch, size - 1, size))] * missing)
    begin = ranks.rank * rows
    return RankBatch(list(_split(rows_of(batch, begin, begin + rows), micro_batch_rows)), counted)


def row_count(batch: Any) -> int:
    """Rows of a batch."""
    return len(getattr(batch, fields(batch)[0].name))


def rows_of(batch: Any, begin: int, end: int) -> Any:
    """Rows [begin, end) of a batch, as views."""
    return replace(batch, **{field.name: getattr(batch, field.name)[begin:end] for field in fields(batch)})


def joined(*batches: Any) -> Any:
    """The rows of several batches of one kind behind each other."""
    first = batches[0]
    return replace(first, **{f.name: torch.cat([getattr(batch, f.name) for batch in batches]) for f in fields(first)})


def _split(batch: Any, rows: int) -> Iterator[Any]:
    for begin in range(0, row_count(batch), rows):
        yield rows_of(batch, begin, begin + rows)
