"""What modified Kneser-Ney smoothing takes from each count (Chen and Goodman 1998, equation 26)."""

import numpy as np

from tasks.kernels import kernel

FALLBACK = (0.0, 0.5, 1.0, 1.5)
"""Taken from n-grams counted once, twice, more often, where their own counts give no discounts: KenLM's fallback."""


def discounts_of(counts_of_counts: np.ndarray) -> tuple[np.ndarray, bool]:
    """Discounts f64[4] of counts 0, 1, 2 and more, and whether they are those of the formula.

    `counts_of_counts` i64[5]: how many n-grams have each count, up to 4 (what stands at 0 is not looked at). The
    formula needs some of each, and discounts between nothing and the count; a small text may give neither.
    """
    _, once, twice, thrice, four_times = counts_of_counts.tolist()
    if min(once, twice, thrice) == 0:
        return np.array(FALLBACK), False
    share = once / (once + 2 * twice)
    found = (
        0.0,
        1 - 2 * share * twice / once,
        2 - 3 * share * thrice / twice,
        3 - 4 * share * four_times / thrice,
    )
    if all(0 <= discount <= count for count, discount in enumerate(found)):
        return np.array(found), True
    return np.array(FALLBACK), False


@kernel
def discounted(count: int, discounts: np.ndarray) -> float:
    """What is left of a count; a count of 3 or more loses the last discount."""
    return count - discounts[min(count, 3)]
