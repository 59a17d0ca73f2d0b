"""Forms of tasks that a network answers by likelihood: choices, minimal pairs, Winograd schemas, and cloze.

A form says how an item is put, what it scores, and which figures come of a group of items. Choices are compared by the
sum of log p of their tokens, by that sum per character or per UTF-8 byte (of the text that is scored, the blank before
it included), or less what the choice is worth without the question (Brown et al., 2020, section 2.4). One of the four
is declared as primary before the run and called `acc`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tasks.evaluate.benchmarks.items import Item
from tasks.evaluate.benchmarks.prompts import Answered, Asker
from tasks.evaluate.config import PRIMARIES

UNCONDITIONAL = "unconditional"

NORMALISERS: dict[str, Callable[[str], int]] = {
    "sum": lambda text: 1,
    "chars": len,
    "bytes": lambda text: len(text.encode()),
}


@dataclass(frozen=True)
class Figure:
    """One number about a group of items, as a row of SCORES holds it."""

    metric: str
    value: float | None
    stderr: float | None = None
    note: str = ""


class TaskForm(Protocol):
    """One form of asking and scoring."""

    metric: str
    """Name of the primary figure in SCORES."""

    def ask(self, asker: Asker, item: Item, examples: Sequence[Item]) -> Answered | None:
        """Put one item; None where it cannot be scored."""
        ...

    def value(self, answered: Answered) -> float | None:
        """The primary figure of one item; None where it has none."""
        ...

    def figures(self, part: Sequence[Answered]) -> list[Figure]:
        """All figures of a group of items, which may be empty; the primary one first."""
        ...


def mean_with_error(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and its standard error sd / sqrt(n), which is sqrt(p (1 - p) / (n - 1)) for shares; None without enough."""
    n = len(values)
    if n == 0:
        return None, None
    mean = math.fsum(values) / n
    if n == 1:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)


def right(answered: Answered, normaliser: str, texts: Sequence[str]) -> bool:
    """Whether the likeliest choice is the right one; the first of equals counts, in an order of the item's own."""
    if normaliser == UNCONDITIONAL:
        scores = [told - alone for told, alone in zip(answered.log_probabilities, answered.unconditional, strict=True)]
    else:
        length = NORMALISERS[normaliser]
        scores = [told / length(text) for told, text in zip(answered.log_probabilities, texts, strict=True)]
    return scores.index(max(scores)) == answered.item.answer


class ChoiceForm:
    """Several texts after a context, or several whole texts (`pairs`), of which one is right."""

    metric = "acc"

    def __init__(self, normalisers: Sequence[str], primary: str) -> None:
        self._primary = primary
        self._others = [name for name in normalisers if name != primary]
        self._unconditional = UNCONDITIONAL in normalisers

    def ask(self, asker: Asker, item: Item, examples: Sequence[Item]) -> Answered | None:
        """Behind the same prompt, each choice by itself."""
        return asker.likelihoods(item, examples, unconditional=self._unconditional)

    def value(self, answered: Answered) -> float | None:
        """1 for a right answer."""
        return float(self._right(answered, self._primary))

    def figures(self, part: Sequence[Answered]) -> list[Figure]:
        """Accuracy by each way to compare."""
        named = {"acc": self._primary, **{f"acc_{name}": name for name in self._others}}
        return [
            Figure(metric, *mean_with_error([self._right(one, name) for one in part]), f"per {name}; {_chance(part)}")
            for metric, name in named.items()
        ]

    def _right(self, answered: Answered, normaliser: str) -> bool:
        # Without a question there is nothing to divide out.
        known = normaliser if normaliser != UNCONDITIONAL or answered.unconditional else "sum"
        return right(answered, known, answered.item.continuations)


class PartialForm:
    """One ending after several beginnings; the beginning that makes it likeliest is the answer."""

    metric = "acc"

    def ask(self, asker: Asker, item: Item, examples: Sequence[Item]) -> Answered | None:
        """The same ending behind each beginning; an item without a common ending cannot be asked."""
        return asker.partial(item, examples) if item.ending else None

    def value(self, answered: Answered) -> float | None:
        """1 for a right answer."""
        return float(right(answered, "sum", answered.item.choices))

    def figures(self, part: Sequence[Answered]) -> list[Figure]:
        """Accuracy: all choices end in the same tokens, so that there is one way to compare."""
        share = mean_with_error([right(one, "sum", one.item.choices) for one in part])
        return [Figure("acc", *share, f"per sum of the common ending; {_chance(part)}")]


class ClozeForm:
    """A free answer: right (`exact`) when the likeliest token at each place spells it, as LAMBADA is scored (Paperno et
    al., 2016); its bits per byte tell more of a weak model."""

    metric = "exact"

    def __init__(self, *, spells: bool, bits_metric: str) -> None:
        self._spells, self._bits_metric = spells, bits_metric

    def ask(self, asker: Asker, item: Item, examples: Sequence[Item]) -> Answered | None:
        """The answer behind the prompt."""
        return asker.likelihoods(item, examples, spelled=True)

    def value(self, answered: Answered) -> float | None:
        """1 for an answer that is spelled; None of a network that spells none."""
        return None if answered.spelled is None else float(answered.spelled)

    def figures(self, part: Sequence[Answered]) -> list[Figure]:
        """The share of answers spelled, and the bits per byte of all."""
        size = sum(len(one.item.continuations[one.item.answer].encode()) for one in part)
        bits = -math.fsum(one.log_probabilities[one.item.answer] for one in part) / math.log(2)
        share = mean_with_error([float(one.spelled) for one in part if one.spelled is not None])
        told = "likeliest tokens spell the answer" if self._spells else "declined: a BERT writes no text"
        note = f"{'' if self._spells else 'pseudo-'}bits per byte of the given answer"
        return [
            Figure("exact", *share, told),
            Figure(self._bits_metric, bits / size if size else None, None, note),
        ]


def choice_form(form: str, primary: str) -> ChoiceForm:
    """`choice` or `pairs`; whole texts have no question to divide out."""
    return ChoiceForm(PRIMARIES[form], primary)


def _chance(part: Sequence[Answered]) -> str:
    if not part:
        return "no items"
    return f"chance {sum(1 / len(one.item.choices) for one in part) / len(part):.3f}"
