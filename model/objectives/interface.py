"""What the trainer asks of an objective, whichever it is."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from model.data import SequenceReader


@dataclass(frozen=True)
class Sums:
    """Sums over the rows of a micro-batch; those of micro-batches and ranks add up.

    What is minimised is each term's nats over what `counts` says of the whole batch, one plus the other.
    """

    nats: tuple[Tensor, ...]
    """f32[] of each term, differentiable: -ln p of what counts."""
    right: tuple[Tensor, ...]
    """i64[] of each term: how often the network thinks likeliest what is true. Empty where that is not looked at."""
    thermometers: Tensor
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
    counts_right: bool
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

    def sums_behind(self, network: Any, hidden: Tensor, heat: list[Tensor], batch: Any) -> Sums:
        """`sums`, given what the network made of `inputs` up to its head, and the thermometers up to there."""
        ...

    def without_loss(self, batch: Any) -> Any:
        """The same rows with nothing in them that counts."""
        ...
