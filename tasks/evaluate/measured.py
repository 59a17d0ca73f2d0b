"""Numbers with their standard errors: ratios of sums over documents, by source and as the sources' plain mean."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.evaluate.score_rows import score_row


@dataclass(frozen=True)
class Measured:
    """A number and its standard error; None where there can be none."""

    value: float | None
    stderr: float | None


NOTHING = Measured(None, None)


def ratio(above: np.ndarray, below: np.ndarray, rounds: int, seed: int) -> Measured:
    """Sum of `above` [documents] over sum of `below` [documents] (bits over bytes, right answers over answers), with
    the standard error of a document bootstrap.

    Documents are drawn with replacement `rounds` times (Efron, 1979); one document alone has no standard error. A draw
    of documents without anything below is passed over.
    """
    if not below.sum():
        return NOTHING
    value = float(above.sum() / below.sum())
    if len(above) < 2:
        return Measured(value, None)
    # Raw words of a counter-based generator, so that another NumPy draws the same documents.
    drawn = np.random.Philox(key=seed).random_raw(rounds * len(above)).reshape(rounds, -1) % np.uint64(len(above))
    index = drawn.astype(np.int64)
    sums = below[index].sum(axis=1)
    held = sums > 0
    return Measured(value, float((above[index].sum(axis=1)[held] / sums[held]).std(ddof=1)))


def plain_mean(results: Sequence[Measured]) -> Measured:
    """Mean over sources, each counting the same (Paloma), with the standard error of independent sources; None where
    one of them has no value."""
    values = [result.value for result in results if result.value is not None]
    if len(values) < len(results):
        return NOTHING
    value = sum(values) / len(values)
    errors = [result.stderr for result in results if result.stderr is not None]
    if len(errors) < len(results):
        return Measured(value, None)
    return Measured(value, math.sqrt(sum(error**2 for error in errors)) / len(results))


class HeldoutRows:
    """Rows of SCORES about held-out text: sources one after the other, then their plain mean."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._by_metric: dict[str, list[tuple[Measured, int]]] = {}

    def add(self, source: str, metric: str, measured: Measured, documents: int, note: str) -> None:
        """One number of one source, which rests on so many documents."""
        self._rows.append(_row(source, metric, measured, documents, note))
        self._by_metric.setdefault(metric, []).append((measured, documents))

    def rows(self) -> list[dict[str, Any]]:
        """All rows; the mean of a number that a source lacks is null."""
        means = [
            _row(
                "all",
                metric,
                plain_mean([measured for measured, _ in found]),
                sum(documents for _, documents in found),
                f"plain mean of {len(found)} sources",
            )
            for metric, found in self._by_metric.items()
        ]
        return [*self._rows, *means]


def _row(source: str, metric: str, measured: Measured, documents: int, note: str) -> dict[str, Any]:
    return score_row(f"heldout/{source}", metric, n=documents, value=measured.value, stderr=measured.stderr, note=note)
