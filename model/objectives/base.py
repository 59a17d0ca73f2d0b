"""What the trainer asks of an objective, whichever it is.

What one rank computes of a batch. A batch is a frozen dataclass of tensors, each with a row first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from model.data.dataset import SequenceReader
from model.distributed.process_group import Ranks


@dataclass(frozen=True)
class Sums:
    """Sums over the rows of a micro-batch; those of micro-batches and ranks add up.

    What is minimised is each term's nats over what `counts` says of the whole batch, one plus the other.
    """

    nats: tuple[Tensor, ...]
    """f32[] of each term, differentiable: -ln p of what counts."""
    correct: tuple[Tensor, ...]
    """i64[] of each term: how often the network thinks likeliest what is true. Empty where that is not looked at."""
    activation_ranges: Tensor
    """f32[P, 2]: `thermometers.extremes` of what `networks.thermometer_names` name, in order."""


class Loader(Protocol):
    """Batches by their place in ORDER, and by nothing else."""

    def batch(self, begin: int, end: int) -> Any:
        """The batch of positions [begin, end) of ORDER: a frozen dataclass of tensors, each with a row first."""
        ...


class Objective(Protocol):
    """Batches of one kind, and what a network makes of them. Holds no state."""

    terms: tuple[str, ...]
    """Names of what is added up to the loss."""
    counts_correct: bool
    """Whether right answers are counted too."""

    def loader(self, data: SequenceReader) -> Loader:
        """Batches of these rows. Raises InputError for rows of another objective."""
        ...

    def tokens_per_row(self, row_length: int) -> int:
        """Places of a row that the network computes, padding or not."""
        ...

    def text_tokens(self, data: SequenceReader, begin: int, end: int) -> int:
        """Tokens of text at positions [begin, end) of ORDER, as the budget counts them: no padding, no special tokens
        of a pair, and of next tokens those that are predicted."""
        ...

    def counts(self, batch: Any) -> tuple[int, ...]:
        """How much each term counts in a batch."""
        ...

    def sums(self, network: Any, batch: Any) -> Sums:
        """What the network makes of a batch."""
        ...

    def inputs(self, network: Any, batch: Any) -> dict[str, Any]:
        """What of a batch the network reads before its head, by name."""
        ...

    def sums_from_hidden(self, network: Any, hidden: Tensor, ranges: list[Tensor], batch: Any) -> Sums:
        """`sums`, given what the network made of `inputs` up to its head, and the thermometers up to there."""
        ...

    def without_loss(self, batch: Any) -> Any:
        """The same rows with nothing in them that counts."""
        ...


@dataclass(frozen=True)
class RankBatch:
    """Micro-batches of one rank, as many on every rank, and what the whole batch counts."""

    micro_batches: list[Any]
    """Batches of the objective's kind."""
    counted: tuple[int, ...]
    """How much each of the objective's terms counts in the batch of all ranks; at least 1."""


def rank_batch(ranks: Ranks, batch: Any, objective: Objective, micro_batch_rows: int) -> RankBatch:
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
        batch = concatenate_batches(batch, *[objective.without_loss(slice_batch(batch, size - 1, size))] * missing)
    begin = ranks.rank * rows
    return RankBatch(list(_split(slice_batch(batch, begin, begin + rows), micro_batch_rows)), counted)


def row_count(batch: Any) -> int:
    """Rows of a batch."""
    return len(getattr(batch, fields(batch)[0].name))


def slice_batch(batch: Any, begin: int, end: int) -> Any:
    """Rows [begin, end) of a batch, as views."""
    return replace(batch, **{field.name: getattr(batch, field.name)[begin:end] for field in fields(batch)})


def concatenate_batches(*batches: Any) -> Any:
    """The rows of several batches of one kind behind each other."""
    first = batches[0]
    return replace(first, **{f.name: torch.cat([getattr(batch, f.name) for batch in batches]) for f in fields(first)})


def _split(batch: Any, rows: int) -> Iterator[Any]:
    for begin in range(0, row_count(batch), rows):
        yield slice_batch(batch, begin, begin + rows)
