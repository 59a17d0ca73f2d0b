"""A change beside the base: mean differences and their intervals, over seeds and over items."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.evaluate.comparison import Difference, paired_difference

# Student's t, 97.5%: abscissae for 1 to 30 degrees of freedom.
T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
NORMAL_975 = 1.959964


@dataclass(frozen=True)
class Beside:
    """A measure of a change beside the base's."""

    measure: str
    value: float
    """Mean over seeds."""
    base: float
    n: int
    """Seeds that both have."""
    difference: float
    low: float | None
    high: float | None
    """Ends of the 95% interval of the difference over seeds; None from a single one."""
    verdict: str
    """`better`, `worse`, or `no difference` where the interval holds 0; empty without an interval."""


def t_975(degrees: int) -> float:
    """The 97.5% quantile of Student's t (above 30 degrees by its expansion, Abramowitz and Stegun 26.7.5)."""
    if degrees <= len(T_975):
        return T_975[degrees - 1]
    z = NORMAL_975
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def beside_base(
    measure: str, change: Mapping[int, float], base: Mapping[int, float], higher_is_better: bool
) -> Beside | None:
    """Values by seed -> the mean difference change - base over the seeds that both have; None without any."""
    seeds = sorted(change.keys() & base.keys())
    if not seeds:
        return None
    differences = [change[seed] - base[seed] for seed in seeds]
    mean = statistics.fmean(differences)
    low = high = None
    if len(seeds) > 1:
        reach = t_975(len(seeds) - 1) * statistics.stdev(differences) / math.sqrt(len(seeds))
        low, high = mean - reach, mean + reach
    value, of_base = (statistics.fmean(values[seed] for seed in seeds) for values in (change, base))
    return Beside(measure, value, of_base, len(seeds), mean, low, high, _verdict(low, high, higher_is_better))


def _verdict(low: float | None, high: float | None, higher_is_better: bool) -> str:
    if low is None or high is None:
        return ""
    if low <= 0 <= high:
        return "no difference"
    return "better" if (low > 0) == higher_is_better else "worse"


def beside_base_by_item(
    change: Mapping[int, Mapping[Any, float]], base: Mapping[int, Mapping[Any, float]]
) -> Difference | None:
    """Scores by item, by seed -> the paired difference over items, each averaged over the seeds in which both runs
    answered it; None where there is none. Seeds that draw anew draw other items too."""
    pairs: dict[Any, list[tuple[float, float]]] = {}
    for seed in sorted(change.keys() & base.keys()):
        for item, score in change[seed].items():
            if item in base[seed]:
                pairs.setdefault(item, []).append((score, base[seed][item]))
    if not pairs:
        return None
    sides = ({item: statistics.fmean(one[side] for one in found) for item, found in pairs.items()} for side in (0, 1))
    return paired_difference(*sides)
