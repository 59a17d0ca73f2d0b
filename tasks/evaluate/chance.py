"""How likely chance alone is: signs of paired differences turned at random; which of several findings stand together.

A test by signs asks nothing of how differences are spread over documents. Student's t on the error of a ratio does:
with documents of very unequal lengths it called 9 to 15 of 100 equal models worse, instead of 5 (docs/log.md).
"""

from collections.abc import Sequence

import numpy as np

from tasks.seed import seed64

ALL_SIGNS = 13
"""Differences of which all ways to sign them are looked at; of more, `ROUNDS` random ones."""
ROUNDS = 9_999
ROUNDS_AT_ONCE = 256
ROUNDING = 1e-12
"""Sums that differ by less than this share of all magnitudes are the same sum, added up in another order."""


def chance_of_sum(differences: Sequence[float], key: str) -> float:
    """Of all ways to give each difference a sign, the share whose sum is as large as that of the differences.

    If two models are equally good, each difference between them might as well have the other sign (Fisher 1935, section
    21; Pitman 1937). `key` names what is compared, and draws the signs where there are too many ways.
    """
    values = np.abs(np.array(differences, dtype=np.float64))
    least = float(np.sum(differences)) - ROUNDING * float(values.sum())
    if len(values) <= ALL_SIGNS:
        ways = np.arange(1 << len(values))[:, None] >> np.arange(len(values)) & 1
        return float(np.mean((1 - 2 * ways) @ values >= least))
    # Bits of a counter-based generator, so that another NumPy draws the same signs.
    source = np.random.Philox(key=seed64(0, "evaluate", "signs", key))
    words = -(-len(values) // 64)
    as_large = 0
    for first in range(0, ROUNDS, ROUNDS_AT_ONCE):
        rounds = min(ROUNDS_AT_ONCE, ROUNDS - first)
        raw = source.random_raw(rounds * words).astype("<u8").view(np.uint8).reshape(rounds, -1)
        ways = np.unpackbits(raw, axis=1, count=len(values), bitorder="little").astype(np.float64)
        as_large += int(np.count_nonzero((1 - 2 * ways) @ values >= least))
    return (1 + as_large) / (1 + ROUNDS)


def stand_together(chances: Sequence[float], level: float) -> list[bool]:
    """Which of several findings are beyond chance, each with the chance of coming about by itself: at most `level` of
    all tellings in which nothing is true name any (Holm 1979)."""
    order = sorted(range(len(chances)), key=lambda place: chances[place])
    stand = [False] * len(chances)
    for passed, place in enumerate(order):
        if chances[place] > level / (len(chances) - passed):
            break
        stand[place] = True
    return stand
