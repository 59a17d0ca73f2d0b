"""How often training reads the rows of each source: weights, a budget, and a cap on repetition.

Weights are shares of training tokens, not of documents (Brown et al., 2020, table 2.2). A source whose share would
repeat it more than `max_epochs` times is read that often, and the surplus goes to the others by weight (UniMax, Chung
et al., 2023). Reading is counted in rows; every row costs the same part of the budget.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from model.errors import InputError
from tasks.apportion import apportion

_FINE = 10**9
"""Parts of a row in which planned shares are counted."""


@dataclass(frozen=True)
class Mixture:
    """The plan of what is read: by source in sorted order of names."""

    rows: dict[str, int]
    """Rows that exist."""
    weights: dict[str, float]
    """Weights that sum to 1 over the sources that exist."""
    planned: dict[str, float]
    """Shares of all reads after the cap on repetition and before rounding to whole rows."""
    reads: dict[str, int]
    """Rows that are read, repetitions counted."""
    asked: int
    """Reads that the budget would pay for; more than the sum of `reads` where the cap stopped all sources."""

    @property
    def total_reads(self) -> int:
        """Positions of ORDER."""
        return sum(self.reads.values())


def plan_mixture(
    rows: Mapping[str, int],
    weights: Mapping[str, float],
    asked: int,
    max_epochs: float,
    temperature: float | None = None,
) -> Mixture:
    """Divide `asked` row reads among the sources; without weights by their rows ^ (1 / temperature).

    Raises InputError for a source without a weight, when all weights are 0, or when nothing can be read.
    """
    rows = dict(sorted(rows.items()))
    chosen = {source: float(weights[source]) for source in rows if source in weights} if weights else {}
    if weights:
        for source in rows:
            if source not in chosen:
                raise InputError(
                    f"chunk: the documents hold the source `{source}`, and chunk.weights names only"
                    f" {', '.join(sorted(weights))}. Give `{source}` a weight (0 leaves it out)."
                )
    else:
        chosen = {source: count ** (1 / (temperature or 1.0)) for source, count in rows.items()}
    total = sum(chosen.values())
    if total <= 0:
        raise InputError(
            "chunk: there is nothing to read: no source has both text and a weight above 0. Look at what the stages"
            " before this one kept (`bessemer ls`)."
        )
    limits = {source: int(max_epochs * count) for source, count in rows.items()}
    reads = apportion(asked, chosen, limits)
    if not any(reads.values()):
        raise InputError(f"chunk: with max_epochs = {max_epochs} not one row may be read; raise chunk.max_epochs")
    fine = apportion(asked * _FINE, chosen, {source: limit * _FINE for source, limit in limits.items()})
    planned = {source: share / sum(fine.values()) for source, share in fine.items()}
    return Mixture(rows, {source: weight / total for source, weight in chosen.items()}, planned, reads, asked)
