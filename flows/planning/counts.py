"""Numbers as people write them on a command line: `300B`, `1.5M`, `40%`."""

import re

from model.errors import RecipeError

_MULTIPLES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([KMBT]?)", re.IGNORECASE)


def count(text: str | None, option: str) -> float | None:
    """The positive number that `300B` or `3e11` means; None for None, RecipeError for anything else."""
    if text is None:
        return None
    match = _COUNT.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise RecipeError(f"{option} {text}: write a positive count such as 2000000, 2M, 1.5B or 3e11")
    return float(match[1]) * _MULTIPLES[match[2].upper()]
