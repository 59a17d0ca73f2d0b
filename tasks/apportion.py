"""Dividing a whole number among sources by weight, with limits on what each can give.

The largest-remainder method (Hamilton, 1792) on exact fractions. A source whose share exceeds its limit gives all it
has, and the surplus goes to the others in proportion to their weights, until it is placed or all are full: the
weight-preserving form of UniMax (Chung et al., 2023, arXiv 2304.09151).
"""

from collections.abc import Mapping
from fractions import Fraction


def apportion(total: int, weights: Mapping[str, float], limits: Mapping[str, int]) -> dict[str, int]:
    """Whole shares by name that sum to min(total, sum of limits) and keep to `limits`.

    Names of weight 0 get nothing. Ties of remainders go to the name that sorts first. Raises ValueError for a
    negative weight or total.
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
