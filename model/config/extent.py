"""Lengths of a part of a training: a share of it, or a number of steps or tokens.

warmup_share = 0.05
warmup_share = "2000 steps"
warmup_share = "375M tokens"
"""

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from model.errors import Bug

FORMS = 'a share of the training such as 0.05, or a text such as "2000 steps" or "1.5B tokens"'

MULTIPLES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}

_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMBT]?) (steps?|tokens?)", re.IGNORECASE)


def _check_form(value: Any) -> Any:
    if value is None:
        return None  # A form's field that keeps the recipe's value; the type refuses it elsewhere.
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"must be {FORMS}")  # noqa: TRY004  # pydantic reports ValueErrors
    if isinstance(value, str):
        if _AMOUNT.fullmatch(value.strip()) is None:
            raise ValueError(f"must be {FORMS}")
        return " ".join(value.split())
    if value > 1:
        raise ValueError(
            f'a number is a share of the training, 0 to 1; write "{value:g} steps" or "{value:g} tokens" for others'
        )
    if not value >= 0:
        raise ValueError(f"must not be negative: {FORMS}")
    return float(value)


def _check_no_steps(value: float | str) -> float | str:
    if isinstance(value, str) and amount_of(value)[1] == "steps":
        raise ValueError("cannot be counted in steps, whose length is what changes; write a share, or tokens")
    return value


Extent = Annotated[float | str, BeforeValidator(_check_form)]
"""A share of the training (0 to 1), "N steps" or "N tokens" with K, M, B or T for thousands to trillions."""

TokenExtent = Annotated[Extent, AfterValidator(_check_no_steps)]
"""The same without steps."""


def amount_of(extent: str) -> tuple[int, str]:
    """Return the number and `steps` or `tokens` of a text that was checked."""
    match = _AMOUNT.fullmatch(extent)
    if match is None:
        raise Bug(f"{extent!r} is not {FORMS}")
    return round(float(match[1]) * MULTIPLES[match[2].upper()]), f"{match[3].lower().rstrip('s')}s"


def share_of(extent: float | str, tokens: int, of_steps: Callable[[int], float] | None = None) -> float:
    """Return an extent as a share of a training of `tokens` tokens; above 1 where it is longer than the training.

    `of_steps` returns the share of a number of steps.
    """
    if not isinstance(extent, str):
        return extent
    amount, unit = amount_of(extent)
    if unit == "tokens":
        return amount / tokens
    if of_steps is None:
        raise Bug(f"{extent!r}: steps were refused by validation")
    return of_steps(amount)


def as_share(extent: float | str) -> float:
    """Return an extent that has been resolved."""
    if isinstance(extent, str):
        raise Bug(f"{extent!r} was not resolved; TrainingSchedule does so")
    return extent
