"""Two models on the same items: the mean of their differences, and whether it can be told from none.

Items differ in difficulty far more than models do, so that scores of two models are compared item by item; the interval
is that of the mean difference, not of either score (Miller 2024, Adding Error Bars to Evals, section 4).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from model.errors import InputError
from tasks.evaluate.chance import chance_of_sum

ALL_SOURCES = "all sources"
WITHIN = 1.96
"""Standard errors on each side of a 95% interval."""
ITEM_SCORES = pa.schema(
    [
        pa.field("task", pa.string(), nullable=False),
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("shots", pa.int32(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
    ]
)
"""The primary metric of every item: 1 or 0 for right or wrong, else a share from 0 to 1 (chrF: to 100). `state` is that
of LEAKS."""


@dataclass(frozen=True)
class Difference:
    """How much the first model scores above the second on items that both answered."""

    n: int
    mean: float
    low: float | None
    high: float | None
    """Ends of the 95% interval of the mean; None from a single item."""

    @property
    def verdict(self) -> str:
        """`better` or `worse` where the interval excludes 0, else `no difference`."""
        if self.low is not None and self.low > 0:
            return "better"
        return "worse" if self.high is not None and self.high < 0 else "no difference"


def paired_difference(a: Mapping[Any, float], b: Mapping[Any, float]) -> Difference:
    """Scores of two models by item -> the difference a - b over the items that both have.

    The interval is mean +- 1.96 sd(d) / sqrt(n). Raises InputError where they share no item.
    """
    shared = [key for key in a if key in b]
    if not shared:
        raise InputError(
            f"comparison: the two models share no item (the first has {len(a)}, the second {len(b)}). Compare runs that"
            f" were evaluated on the same benchmark under the same seed and max_items."
        )
    differences = [a[key] - b[key] for key in shared]
    n = len(differences)
    mean = math.fsum(differences) / n
    if n < 2:
        return Difference(n, mean, None, None)
    spread = math.fsum((one - mean) ** 2 for one in differences) / (n - 1)
    reach = WITHIN * math.sqrt(spread / n)
    return Difference(n, mean, mean - reach, mean + reach)


def paired_differences(a: pa.Table, b: pa.Table) -> list[dict[str, Any]]:
    """ITEM_SCORES of two models -> a line for each benchmark, metric and number of shots that both have: `task`,
    `metric`, `shots`, `n`, `mean`, `low`, `high`, `verdict`, of the first beside the second."""
    ours, theirs = _by_question(a.to_pylist()), _by_question(b.to_pylist())
    lines: list[dict[str, Any]] = []
    for key in (key for key in ours if key in theirs and ours[key].keys() & theirs[key].keys()):
        found = paired_difference(ours[key], theirs[key])
        numbers = {"n": found.n, "mean": found.mean, "low": found.low, "high": found.high, "verdict": found.verdict}
        lines.append({"task": key[0], "metric": key[1], "shots": key[2], **numbers})
    return lines


def _by_question(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, int], dict[str, float]]:
    found: dict[tuple[str, str, int], dict[str, float]] = {}
    for row in rows:
        found.setdefault((row["task"], row["metric"], row["shots"]), {})[row["item_id"]] = row["value"]
    return found


@dataclass(frozen=True)
class Worse:
    """By how much a model is worse than another in one figure, over what both were asked."""

    what: str
    n: int
    before: float
    """The other model's figure, over what both were asked."""
    after: float
    worse_by: float
    """Rise of bits per byte, or fall of a score; negative where it is better."""
    chance: float
    """How likely so much or more is where the two models are equally good: paired, one-sided, by signs."""


def risen_bits(after: pa.Table, before: pa.Table) -> list[Worse]:
    """DOCUMENT_SCORES of a model and of the one before it -> a line for each source and metric that both have, over
    the documents of which both were given the same bytes; and one for all sources together, where there are several."""
    pairs: dict[tuple[str, str], list[tuple[float, float, int]]] = {}
    known = {_document(row): row["bits"] for row in before.to_pylist()}
    for row in after.to_pylist():
        if (was := known.get(_document(row))) is not None and row["bytes"]:
            pairs.setdefault((row["source"], row["metric"]), []).append((row["bits"], was, row["bytes"]))
    for metric in {metric for _, metric in pairs}:
        of_metric = [found for (_, its), found in sorted(pairs.items()) if its == metric]
        if len(of_metric) > 1:
            pairs[ALL_SOURCES, metric] = [one for found in of_metric for one in found]
    lines: list[Worse] = []
    for (source, metric), found in sorted(pairs.items()):
        size = sum(bytes_ for *_, bytes_ in found)
        now, was = (math.fsum(one[place] for one in found) / size for place in (0, 1))
        rises = [bits - old for bits, old, _ in found]
        lines.append(_worse(f"{source}: {metric}", was, now, math.fsum(rises) / size, rises))
    return lines


def fallen_scores(after: pa.Table, before: pa.Table) -> list[Worse]:
    """ITEM_SCORES of a model and of the one before it -> a line for each benchmark, metric and number of shots that
    both have, over the items that both answered."""
    ours, theirs = _by_question(after.to_pylist()), _by_question(before.to_pylist())
    lines: list[Worse] = []
    for key in (key for key in ours if key in theirs):
        shared = [item for item in ours[key] if item in theirs[key]]
        if not shared:
            continue
        now, was = (math.fsum(scores[item] for item in shared) / len(shared) for scores in (ours[key], theirs[key]))
        falls = [theirs[key][item] - ours[key][item] for item in shared]
        lines.append(_worse(f"{key[0]} {key[2]}-shot: {key[1]}", was, now, math.fsum(falls) / len(shared), falls))
    return lines


def _document(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["source"], row["doc_id"], row["piece"], row["metric"], row["bytes"]


def _worse(what: str, before: float, after: float, worse_by: float, differences: list[float]) -> Worse:
    chance = chance_of_sum(differences, what) if worse_by > 0 else 1.0
    return Worse(what, len(differences), before, after, worse_by, chance)
