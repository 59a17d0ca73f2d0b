"""The statistics of runs and studies: 95% intervals, and differences paired by seed or by item."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from tasks.common.numeric import Z_95, wilson_interval
from tasks.evaluate.comparison import Difference, paired_difference


class IntervalValues(TypedDict):
    """A number with its 95% interval."""

    low: float
    value: float
    high: float


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95% interval."""

    low: float
    value: float
    high: float

    def scaled(self, factor: float) -> "Interval":
        """Return the interval of `factor` times the quantity."""
        return Interval(self.low * factor, self.value * factor, self.high * factor)

    def times(self, other: "Interval") -> "Interval":
        """Return the product of two non-negative quantities with fully correlated errors, the widest interval."""
        return Interval(self.low * other.low, self.value * other.value, self.high * other.high)

    def times_independent(self, other: "Interval") -> "Interval":
        """Return the product of two quantities with independent errors: half-widths add in quadrature on each side."""
        value = self.value * other.value
        below = math.hypot((self.value - self.low) * other.value, (other.value - other.low) * self.value)
        above = math.hypot((self.high - self.value) * other.value, (other.high - other.value) * self.value)
        return Interval(max(0.0, value - below), value, value + above)

    def beside(self, form: str) -> str:
        """Return what follows the value in a text: ` ± 2.0`, or ` (0.0 to 56.1)` where both sides differ."""
        below, above = self.value - self.low, self.high - self.value
        if math.isclose(below, above):
            return f" ± {above:{form}}"
        return f" ({self.low:{form}} to {self.high:{form}})"

    def to_json(self) -> IntervalValues:
        """Return the interval as plain values."""
        return {"low": self.low, "value": self.value, "high": self.high}


def wilson(successes: int, sampled: int, share_taken: float) -> Interval:
    """Return a proportion with its Wilson score interval in a sample that is `share_taken` of the population."""
    low, high = wilson_interval(successes, sampled, share_taken)
    if low is None or high is None:
        return Interval(0.0, 0.0, 1.0)
    return Interval(low, successes / sampled, high)


def interval_of_score(value: float, stderr: float | None, items: int) -> Interval | None:
    """Return a mean score of 0 to 1 with 1.96 standard errors to both sides; None without an error.

    Items that are all wrong, or all right, have no spread, and their interval is Wilson's.
    """
    if stderr is None:
        return None
    if stderr == 0 and value in (0, 1):
        return wilson(round(value * items), items, 0.0)
    return Interval(value - Z_95 * stderr, value, value + Z_95 * stderr)


def t_975(degrees: int) -> float:
    """Return the 97.5% quantile of Student's t."""
    from scipy.special import stdtrit  # It takes a tenth of a second to import.

    return float(stdtrit(degrees, 0.975))


def interval_of_mean(values: Sequence[float]) -> Interval | None:
    """Return the mean of repetitions with its interval of Student's t; None for fewer than two."""
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    reach = t_975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean - reach, mean, mean + reach)


def bootstrap(rows: int, statistic: Callable[[np.ndarray], float], seed: int) -> Interval:
    """Return a statistic of all of `rows` rows, i64[rows], with the interval of its percentiles over 1,000 resamples
    (Efron 1979)."""
    random = np.random.Generator(np.random.Philox(seed))
    drawn = [statistic(random.integers(0, rows, rows)) for _ in range(1000)]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Interval(float(low), statistic(np.arange(rows)), float(high))


@dataclass(frozen=True)
class PairedComparison:
    """A measure of a change compared with the base, paired by seed."""

    n: int
    """Number of seeds that both have."""
    base: float
    """Mean over seeds."""
    difference: float
    low: float | None
    high: float | None
    """Ends of the 95% interval of the difference over seeds; None from a single one."""
    verdict: str
    """`better`, `worse`, or `no difference` where the interval holds 0; empty without an interval."""


def compare_with_baseline(
    change: Mapping[int, float], base: Mapping[int, float], higher_is_better: bool
) -> PairedComparison | None:
    """Return the mean difference change - base of values by seed, over the seeds that both have; None without any."""
    seeds = sorted(change.keys() & base.keys())
    if not seeds:
        return None
    differences = [change[seed] - base[seed] for seed in seeds]
    of_base = statistics.fmean(base[seed] for seed in seeds)
    found = interval_of_mean(differences)
    if found is None:
        return PairedComparison(len(seeds), of_base, differences[0], None, None, "")
    gain = found if higher_is_better else Interval(-found.high, -found.value, -found.low)
    verdict = Difference(len(seeds), gain.value, gain.low, gain.high).verdict
    return PairedComparison(len(seeds), of_base, found.value, found.low, found.high, verdict)


def compare_items_with_baseline(
    change: Mapping[int, Mapping[str, float]], base: Mapping[int, Mapping[str, float]]
) -> Difference | None:
    """Return the paired difference over items of scores by seed and item; None without common items.

    Each item is averaged over the seeds in which both runs have it: seeds may sample different items.
    """
    pairs: dict[str, list[tuple[float, float]]] = {}
    for seed in sorted(change.keys() & base.keys()):
        for item, score in change[seed].items():
            if item in base[seed]:
                pairs.setdefault(item, []).append((score, base[seed][item]))
    if not pairs:
        return None
    sides = ({item: statistics.fmean(one[side] for one in found) for item, found in pairs.items()} for side in (0, 1))
    return paired_difference(*sides)
