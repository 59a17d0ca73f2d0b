"""Benchmark tasks that a network answers by likelihood: choices, minimal pairs, Winograd schemas, and cloze.

A task defines what is requested for an item, the item's score, and the metrics of a group of items. Choices are
compared by the sum of log p of their tokens, by that sum per character or per UTF-8 byte of the scored text (the space
before it included), or by that sum less log p of the choice without the question (Brown et al. 2020, section 2.4). One
of the four is declared as primary before the run and reported as `acc`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tasks.evaluate.benchmarks.likelihood import NO_TEXT
from tasks.evaluate.benchmarks.prompts import Asked, Requester, Response
from tasks.evaluate.scores import Measurement, mean_with_error

UNCONDITIONAL = "unconditional"

LENGTHS: dict[str, Callable[[str], int]] = {
    "sum": lambda text: 1,
    "chars": len,
    "bytes": lambda text: len(text.encode()),
}


@dataclass(frozen=True)
class MetricValue:
    """One metric of a group of items, as in a row of SCORES."""

    metric: str
    measured: Measurement
    note: str


class Task(Protocol):
    """How the items of one form are requested and scored."""

    metric: str
    """Name of the primary metric in SCORES."""

    def request(self, requester: Requester, asked: Sequence[Asked]) -> Sequence[Response | None]:
        """Request the network's response to each item; None where it cannot be scored."""
        ...

    def value(self, response: Response) -> float | None:
        """Return the primary metric of one item; None where it has none."""
        ...

    def metrics(self, part: Sequence[Response]) -> list[MetricValue]:
        """Return all metrics of a group of items, which may be empty; the primary one first."""
        ...


def is_right(response: Response, normaliser: str, texts: Sequence[str]) -> bool:
    """Return whether the likeliest choice is the right one; the first of equals counts, in the item's shuffled
    order."""
    if normaliser == UNCONDITIONAL:
        pairs = zip(response.log_probabilities, response.unconditional, strict=True)
        scores = [conditional - unconditional for conditional, unconditional in pairs]
    else:
        length = LENGTHS[normaliser]
        scores = [nats / length(text) for nats, text in zip(response.log_probabilities, texts, strict=True)]
    return scores.index(max(scores)) == response.item.answer


class MultipleChoiceTask:
    """Several texts after a context, or several whole texts (`pairs`), of which one is right."""

    metric = "acc"

    def __init__(self, normalisers: Sequence[str], primary: str) -> None:
        self._primary = primary
        self._others = [name for name in normalisers if name != primary]
        self._unconditional = UNCONDITIONAL in normalisers

    def request(self, requester: Requester, asked: Sequence[Asked]) -> list[Response | None]:
        return [requester.likelihoods(*one, unconditional=self._unconditional) for one in asked]

    def value(self, response: Response) -> float:
        return float(self._right(response, self._primary))

    def metrics(self, part: Sequence[Response]) -> list[MetricValue]:
        named = {"acc": self._primary, **{f"acc_{name}": name for name in self._others}}
        return [
            MetricValue(
                metric, mean_with_error([self._right(one, name) for one in part]), f"per {name}; {_chance(part)}"
            )
            for metric, name in named.items()
        ]

    def _right(self, response: Response, normaliser: str) -> bool:
        # Without a question there is nothing to divide out.
        known = normaliser if normaliser != UNCONDITIONAL or response.unconditional else "sum"
        return is_right(response, known, response.item.continuations)


class PartialScoringTask:
    """One ending after several beginnings; the beginning that makes it likeliest is the answer."""

    metric = "acc"

    def request(self, requester: Requester, asked: Sequence[Asked]) -> list[Response | None]:
        """Request log p of the same ending after each beginning; None for an item without a common ending."""
        return [requester.partial(item, examples) if item.ending else None for item, examples in asked]

    def value(self, response: Response) -> float:
        return float(is_right(response, "sum", response.item.choices))

    def metrics(self, part: Sequence[Response]) -> list[MetricValue]:
        """Return accuracy: all choices end in the same tokens, so that there is one way to compare them."""
        share = mean_with_error([self.value(one) for one in part])
        return [MetricValue("acc", share, f"per sum of the common ending; {_chance(part)}")]


class ClozeTask:
    """A free answer: right (`exact`) when the likeliest token at each position spells it, as LAMBADA is scored
    (Paperno et al. 2016). Its bits per byte distinguish weak models better."""

    metric = "exact"

    def __init__(self, *, can_generate: bool, bits_metric: str) -> None:
        self._can_generate, self._bits_metric = can_generate, bits_metric

    def request(self, requester: Requester, asked: Sequence[Asked]) -> list[Response | None]:
        return [requester.likelihoods(*one, greedy=True) for one in asked]

    def value(self, response: Response) -> float | None:
        """Return 1 for an answer that the network spells, else 0; None of a network that cannot generate."""
        return None if response.is_greedy is None else float(response.is_greedy)

    def metrics(self, part: Sequence[Response]) -> list[MetricValue]:
        size = sum(len(one.item.continuations[one.item.answer].encode()) for one in part)
        bits = -math.fsum(one.log_probabilities[one.item.answer] for one in part) / math.log(2)
        share = mean_with_error([float(one.is_greedy) for one in part if one.is_greedy is not None])
        compared = "likeliest tokens spell the answer" if self._can_generate else NO_TEXT
        note = f"{'' if self._can_generate else 'pseudo-'}bits per byte of the given answer"
        return [
            MetricValue("exact", share, compared),
            MetricValue(self._bits_metric, Measurement(bits / size if size else None), note),
        ]


def _chance(part: Sequence[Response]) -> str:
    if not part:
        return "no items"
    return f"chance {sum(1 / len(one.item.choices) for one in part) / len(part):.3f}"
