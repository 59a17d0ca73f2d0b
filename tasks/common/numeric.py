"""Numbers that every stage computes alike: seeds, largest-remainder allocation, and confidence intervals.

All of them depend on their arguments alone, so they are equal on every machine and for every number of workers.
"""

import math
from collections.abc import Mapping
from fractions import Fraction

import blake3

_TWO_TO_64 = float(2**64)

Z_95 = 1.959963984540054
"""Standard errors on each side of a 95% interval of the normal distribution, its 97.5% quantile."""


def seed64(run_seed: int, stage: str, purpose: str, key: str = "") -> int:
    """Return a 64-bit seed for one purpose of one stage: BLAKE3-64 of (run seed, stage, purpose, key)."""
    text = "\x1f".join((str(run_seed), stage, purpose, key))
    return int.from_bytes(blake3.blake3(text.encode()).digest(length=8), "little")


def unit_interval(key: bytes, seed: int) -> float:
    """Return a number in [0, 1) that depends on `key` and `seed` alone, for selections that any sharding repeats.

    A document is selected when its number is below a rate, so a higher rate only ever adds documents.
    """
    digest = blake3.blake3(seed.to_bytes(8, "little") + key).digest(length=8)
    return int.from_bytes(digest, "little") / _TWO_TO_64


def apportion(total: int, weights: Mapping[str, float], limits: Mapping[str, int]) -> dict[str, int]:
    """Divide `total` by `weights` into whole shares by name that sum to min(total, sum of limits) and respect `limits`.

    The largest-remainder method (Hamilton, 1792) on exact fractions. A name whose share exceeds its limit gets its
    limit, and the surplus goes to the others in proportion to their weights, until all of it is given out or all names
    are full: the weight-preserving form of UniMax (Chung et al., 2023, arXiv 2304.09151). Names of weight 0 get
    nothing. Ties of remainders go to the name that sorts first. Raises ValueError for a negative weight or total.
    """
    if total < 0 or any(weight < 0 for weight in weights.values()):
        raise ValueError(f"apportion: total {total} and weights {dict(weights)} must not be negative")
    exact = {name: Fraction(weight) for name, weight in sorted(weights.items()) if weight > 0}
    shares = dict.fromkeys(sorted(weights), 0)
    left = Fraction(total)
    while exact:
        parts = sum(exact.values())
        full = [name for name, weight in exact.items() if left * weight / parts >= limits.get(name, 0)]
        if not full:
            break
        for name in full:
            shares[name] = limits.get(name, 0)
            left -= shares[name]
            del exact[name]
    if exact:
        parts = sum(exact.values())
        targets = {name: left * weight / parts for name, weight in exact.items()}
        shares.update({name: int(target) for name, target in targets.items()})
        missing = int(left) - sum(shares[name] for name in targets)
        by_remainder = sorted(targets, key=lambda name: (shares[name] - targets[name], name))
        for name in by_remainder[:missing]:
            shares[name] += 1
    return shares


def wilson_interval(successes: int, trials: int, share_taken: float = 0.0) -> tuple[float | None, float | None]:
    """Return Wilson's 95% score interval of a proportion (Wilson, 1927), with finite population correction; (None,
    None) without trials.

    A sample that is `share_taken` of the population counts as 1 / (1 - share_taken) times as large; the population
    itself is exact.
    """
    if trials == 0:
        return None, None
    share, z2 = successes / trials, Z_95**2
    if share_taken >= 1:
        return share, share
    size = trials / (1 - share_taken)
    centre = (share + z2 / (2 * size)) / (1 + z2 / size)
    half = Z_95 * math.sqrt(share * (1 - share) / size + z2 / (4 * size**2)) / (1 + z2 / size)
    # At both ends the exact value is 0 or 1, and rounding would show .9999999999999999.
    low = 0.0 if successes == 0 else min(centre - half, share)
    return low, 1.0 if successes == trials else max(centre + half, share)
