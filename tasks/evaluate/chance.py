"""How likely chance alone is: the tail of Student's t, and which of several findings stand together."""

import math
from collections.abc import Sequence


def student_tail(t: float, freedom: int) -> float:
    """P(T > t) for Student's t with `freedom` degrees of freedom (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if freedom == 1:
        within = 2 * angle / math.pi
    elif odd:
        within = 2 * (angle + sine * total) / math.pi
    else:
        within = sine * total
    return min(1.0, max(0.0, (1 - within) / 2))


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
