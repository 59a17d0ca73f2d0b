"""Whether a model does better on items that leaked into its text than on clean ones, by more than chance would give.

The two groups are different items, so their means are compared as two samples: of all ways to call as many of these
items leaked, what share has means that lie as far apart? (A permutation test, Good 2005, which asks nothing of how
scores are distributed; for right and wrong it is Fisher's exact test.) Leaked items may be easier by nature, which no
count of them tells; the same benchmark under a model whose text was cut does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

BEYOND_CHANCE = 0.01
"""A gap that chance gives less often than this is flagged: a run has tens of gaps, of which one in twenty would be
flagged for nothing at .05."""
ROUNDS = 9999
MOST_DRAWS = 1 << 25
GAPS = pa.schema(
    [
        pa.field("task", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("shots", pa.int32(), nullable=False),
        pa.field("leaked_n", pa.int64(), nullable=False),
        pa.field("clean_n", pa.int64(), nullable=False),
        pa.field("difference", pa.float64(), nullable=False),
        pa.field("stderr", pa.float64()),
        pa.field("p", pa.float64(), nullable=False),
        pa.field("beyond_chance", pa.bool_(), nullable=False),
    ]
)
"""`difference` is the mean of leaked items less that of clean ones, in the metric declared as primary; `p` the share of
random divisions with a difference as large."""


@dataclass(frozen=True)
class Gap:
    """Leaked beside clean items."""

    difference: float
    stderr: float | None
    p: float

    @property
    def beyond_chance(self) -> bool:
        """Whether chance would hardly give it."""
        return self.p < BEYOND_CHANCE


def gap(leaked: Sequence[float], clean: Sequence[float], seed: int) -> Gap | None:
    """The gap between two groups of scores; None where one is empty."""
    if not leaked or not clean:
        return None
    scores = np.array([*leaked, *clean], dtype=np.float64)
    difference = float(scores[: len(leaked)].mean() - scores[len(leaked) :].mean())
    errors = [float(np.var(group, ddof=1)) / len(group) for group in (leaked, clean) if len(group) > 1]
    stderr = math.sqrt(sum(errors)) if len(errors) == 2 else None
    rounds = max(999, min(ROUNDS, MOST_DRAWS // len(scores)))
    # The words of a counter-based generator, so that another NumPy divides in the same ways.
    words = np.random.Philox(key=seed).random_raw(rounds * len(scores)).reshape(rounds, -1)
    called_leaked = np.argpartition(words, len(leaked) - 1, axis=1)[:, : len(leaked)]
    sums = scores[called_leaked].sum(axis=1)
    drawn = sums / len(leaked) - (scores.sum() - sums) / len(clean)
    as_large = int((np.abs(drawn) >= abs(difference) - 1e-12).sum())
    return Gap(difference, stderr, (1 + as_large) / (1 + rounds))
