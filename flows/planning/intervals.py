"""Estimates with their 95% intervals, from a simple random sample of documents without replacement."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Z = 1.959964
"""Two-sided 95% of the normal distribution."""


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95% interval."""

    low: float
    value: float
    high: float

    def scaled(self, factor: float) -> "Interval":
        """The interval of `factor` times the quantity."""
        return Interval(self.low * factor, self.value * factor, self.high * factor)

    def times(self, other: "Interval") -> "Interval":
        """The product of two quantities that are not negative; the widest interval, as if they erred together."""
        return Interval(self.low * other.low, self.value * other.value, self.high * other.high)

    def times_independent(self, other: "Interval") -> "Interval":
        """The product of two quantities that err apart: half-widths add in quadrature, below and above apart."""
        value = self.value * other.value
        below = math.hypot((self.value - self.low) * other.value, (other.value - other.low) * self.value)
        above = math.hypot((self.high - self.value) * other.value, (other.high - other.value) * self.value)
        return Interval(max(0.0, value - below), value, value + above)

    def to_json(self) -> dict[str, float]:
        """Plain values."""
        return {"low": self.low, "value": self.value, "high": self.high}


def total(parts: Iterable[Interval]) -> Interval:
    """The sum of independent quantities: half-widths add in quadrature, below and above apart."""
    parts = list(parts)
    value = sum(part.value for part in parts)
    below = math.sqrt(sum((part.value - part.low) ** 2 for part in parts))
    above = math.sqrt(sum((part.high - part.value) ** 2 for part in parts))
    return Interval(max(0.0, value - below), value, value + above)


def wilson(successes: int, sampled: int, share_taken: float) -> Interval:
    """A share and its interval (Wilson 1927); a sample that is `share_taken` of the whole counts as 1 / (1 - share)
    times as large, which is the finite population correction, and the whole itself is exact."""
    if not sampled:
        return Interval(0.0, 0.0, 1.0)
    share = successes / sampled
    if share_taken >= 1:
        return Interval(share, share, share)
    size = sampled / (1 - share_taken)
    centre = (share + Z**2 / (2 * size)) / (1 + Z**2 / size)
    half = Z / (1 + Z**2 / size) * math.sqrt(share * (1 - share) / size + Z**2 / (4 * size**2))
    return Interval(max(0.0, min(centre - half, share)), share, min(1.0, max(centre + half, share)))


def drawn_share(sizes: npt.NDArray[np.float64], count: float, rate: float) -> Interval:
    """How much of what is expected is drawn where each of `count` documents is drawn by itself at `rate`, around 1.

    `sizes` are those of a sample of them, in any unit; ones count documents. A sum of independent draws has the
    variance rate (1 - rate) sum of squared sizes; its normal approximation is taken.
    """
    if rate >= 1 or count <= 0 or not sizes.size or not sizes.sum():
        return Interval(1.0, 1.0, 1.0)
    uneven = float((sizes**2).mean()) / float(sizes.mean()) ** 2
    half = Z * math.sqrt((1 - rate) / rate * uneven / count)
    return Interval(max(0.0, 1 - half), 1.0, 1 + half)


def ratio_total(
    before: npt.NDArray[np.float64], after: npt.NDArray[np.float64], whole_before: float, share_taken: float
) -> Interval:
    """The whole's total of `after`, from sampled pairs and the known total of `before` (Cochran 1977, chapter 6).

    The ratio estimator: long documents weigh as much as they are long, so that the interval comes from how differently
    documents fare and not from how long they are.
    """
    if not before.size or not before.sum():
        return Interval(0.0, 0.0, 0.0)
    ratio = float(after.sum() / before.sum())
    value = whole_before * ratio
    if share_taken >= 1 or before.size < 2:
        return Interval(value, value, value)
    residual = after - ratio * before
    deviation = math.sqrt(float((residual**2).sum()) / (before.size - 1))
    error = math.sqrt((1 - share_taken) / before.size) * deviation / float(before.mean())
    half = Z * error * whole_before
    return Interval(max(0.0, value - half), value, value + half)
