"""Intervals of measured shares."""

import math

WILSON_Z = 1.959963984540054


def wilson_interval(successes: int, trials: int) -> tuple[float | None, float | None]:
    """Wilson's 95% score interval of a proportion; (None, None) without trials."""
    if trials == 0:
        return None, None
    share, z2 = successes / trials, WILSON_Z**2
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = WILSON_Z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    # At the ends the formula's exact value is 0 or 1; rounding would show .9999999999999999.
    return 0.0 if successes == 0 else centre - half, 1.0 if successes == trials else centre + half
