"""Read numbers with a suffix: tokens as 2M or 1.5B, sizes of files as 500MB or 5GB."""

import math
import re

from model.errors import RecipeError

_MULTIPLES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
"""Powers of ten, as in `transformers`."""

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([KMGBT]?)", re.IGNORECASE)


def parse_count(text: str, where: str) -> float:
    """Return a positive count such as `300B`, `1.5M` or `3e11`; RecipeError, which begins with `where`, for others."""
    found = _number(text, "KMBT")
    if found is None:
        raise RecipeError(f"{where} is {text!r}; write a positive count such as 2000000, 2M, 1.5B or 3e11")
    return found


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `5GB` or `500MB`; RecipeError for another form."""
    stripped = text.strip()
    found = _number(stripped[:-1], "KMG") if stripped[-1:].upper() == "B" else None
    if found is None or found < 1:
        raise RecipeError(f"--shard-size {text}: write a size such as 5GB or 500MB")
    return int(found)


def _number(text: str, suffixes: str) -> float | None:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].upper() not in ("", *suffixes):
        return None
    number = float(match[1]) * _MULTIPLES[match[2].upper()]
    return number if 0 < number < math.inf else None
