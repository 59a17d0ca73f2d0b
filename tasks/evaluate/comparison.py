"""Statistics of comparisons: two models on the same items or documents, and leaked items against clean ones.

Items differ in difficulty far more than models do, so two models are compared item by item, and the interval is that of
the mean difference, not of either score (Miller 2024, Adding Error Bars to Evals, section 4).

Whether a later model is worse is tested by turning the signs of paired differences at random, corrected for the number
of tests (Holm 1979). Such a test assumes nothing about how differences are distributed over documents. Student's t on
the error of a ratio does: with documents of very unequal lengths it called 9 to 15 of 100 equal models worse, instead
of 5 (docs/decisions.md).

Whether a model scores better on leaked than on clean items is a comparison of two samples, since the groups are
different items: of all ways to label as many of the items leaked, which share has means that lie as far apart? (A
permutation test, Good 2005, which assumes nothing about the distribution of scores; for right and wrong it is Fisher's
exact test.) Leaked items may be easier by nature, which no test can show; the same benchmark under a model whose
training text was decontaminated does.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from model.errors import InputError
from tasks.common.numeric import Z_95, seed64

ALL_SOURCES = "all sources"
ALL_SIGNS = 13
"""With at most so many differences all ways to sign them are enumerated; with more, `ROUNDS` random ones are drawn."""
ROUNDS = 9_999
ROUNDS_AT_ONCE = 256
ROUNDING = 1e-12
"""Sums that differ by less than this share of all magnitudes are the same sum, added up in another order."""
SIGNIFICANCE_LEVEL = 0.01
"""Gaps with a smaller p-value are flagged. A run has tens of gaps, of which .05 would flag one in twenty for
nothing."""
MOST_DRAWS = 1 << 25
Key = tuple[str, str, int]
"""Task, metric, and number of shots."""


@dataclass(frozen=True)
class Difference:
    """How much the first model scores above the second on items that both answered."""

    n: int
    mean: float
    low: float | None
    high: float | None
    """Ends of the 95% interval of the mean; None for a single item."""

    @property
    def verdict(self) -> str:
        """`better` or `worse` where the interval excludes 0, else `no difference`."""
        if self.low is not None and self.low > 0:
            return "better"
        return "worse" if self.high is not None and self.high < 0 else "no difference"


def paired_difference(a: Mapping[Any, float], b: Mapping[Any, float]) -> Difference:
    """Return the difference a - b over the items that both models have, from scores by item.

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
    reach = Z_95 * math.sqrt(spread / n)
    return Difference(n, mean, mean - reach, mean + reach)


def paired_differences(a: pa.Table, b: pa.Table) -> dict[Key, Difference]:
    """Return (task, metric, shots) -> the first model less the second, where both tables of ITEM_SCORES have items."""
    return {key: paired_difference(ours, theirs) for key, ours, theirs in _shared_scores(a, b)}


def _shared_scores(a: pa.Table, b: pa.Table) -> Iterator[tuple[Key, dict[str, float], dict[str, float]]]:
    """Yield the scores by item of both tables of ITEM_SCORES, for each key with items that both have: of the first
    table those items, of the second one all."""
    ours, theirs = _by_task(a), _by_task(b)
    for key in (key for key in ours if key in theirs):
        if shared := {item: value for item, value in ours[key].items() if item in theirs[key]}:
            yield key, shared, theirs[key]


def _by_task(scores: pa.Table) -> dict[Key, dict[str, float]]:
    found: dict[Key, dict[str, float]] = {}
    for row in scores.to_pylist():
        found.setdefault((row["task"], row["metric"], row["shots"]), {})[row["item_id"]] = row["value"]
    return found


@dataclass(frozen=True)
class Regression:
    """By how much a model is worse than an earlier one in one metric, over what both were scored on."""

    what: str
    n: int
    before: float
    """The earlier model's metric."""
    after: float
    worse_by: float
    """Rise of bits per byte, or fall of a score; negative where the model is better."""
    chance: float
    """p-value of so large a difference if the two models are equally good: paired, one-sided, by signs."""


def bits_regressions(after: pa.Table, before: pa.Table) -> list[Regression]:
    """Compare DOCUMENT_SCORES of a model with those of an earlier one: one line for each source and metric that both
    have, over documents of which both scored the same bytes; and one for all sources together, where there are
    several."""
    pairs: dict[tuple[str, str], list[tuple[float, float, int]]] = {}
    known = {_document(row): row["bits"] for row in before.to_pylist()}
    for row in after.to_pylist():
        if (was := known.get(_document(row))) is not None and row["bytes"]:
            pairs.setdefault((row["source"], row["metric"]), []).append((row["bits"], was, row["bytes"]))
    for metric in {metric for _, metric in pairs}:
        of_metric = [found for (_, its), found in sorted(pairs.items()) if its == metric]
        if len(of_metric) > 1:
            pairs[ALL_SOURCES, metric] = [one for found in of_metric for one in found]
    lines: list[Regression] = []
    for (source, metric), found in sorted(pairs.items()):
        size = sum(bytes_ for *_, bytes_ in found)
        now, was = (math.fsum(one[place] for one in found) / size for place in (0, 1))
        rises = [bits - old for bits, old, _ in found]
        lines.append(_worse(f"{source}: {metric}", was, now, math.fsum(rises) / size, rises))
    return lines


def score_regressions(after: pa.Table, before: pa.Table) -> list[Regression]:
    """Compare ITEM_SCORES of a model with those of an earlier one: one line for each benchmark, metric and number of
    shots that both have, over the items that both answered."""
    lines: list[Regression] = []
    for (task, metric, shots), ours, theirs in _shared_scores(after, before):
        falls = [theirs[item] - score for item, score in ours.items()]
        now, was = math.fsum(ours.values()) / len(ours), math.fsum(theirs[item] for item in ours) / len(ours)
        lines.append(_worse(f"{task} {shots}-shot: {metric}", was, now, math.fsum(falls) / len(falls), falls))
    return lines


def _document(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["source"], row["doc_id"], row["piece"], row["metric"], row["bytes"]


def _worse(what: str, before: float, after: float, worse_by: float, differences: list[float]) -> Regression:
    chance = sign_flip_p_value(differences, what) if worse_by > 0 else 1.0
    return Regression(what, len(differences), before, after, worse_by, chance)


def sign_flip_p_value(differences: Sequence[float], key: str) -> float:
    """Return the share of all ways to sign the differences that have as large a sum as the differences themselves.

    If two models are equally good, each difference between them might as well have the other sign (Fisher 1935, section
    21; Pitman 1937). `key` names the comparison and seeds the random signs where there are too many ways to enumerate.
    """
    values = np.abs(np.array(differences, dtype=np.float64))
    least = float(np.sum(differences)) - ROUNDING * float(values.sum())
    if len(values) <= ALL_SIGNS:
        ways = np.arange(1 << len(values))[:, None] >> np.arange(len(values)) & 1
        return float(np.mean((1 - 2 * ways) @ values >= least))
    # Raw bits of a counter-based generator, so that every version of NumPy draws the same signs.
    source = np.random.Philox(key=seed64(0, "evaluate", "signs", key))
    words = -(-len(values) // 64)
    as_large = 0
    for first in range(0, ROUNDS, ROUNDS_AT_ONCE):
        rounds = min(ROUNDS_AT_ONCE, ROUNDS - first)
        raw = source.random_raw(rounds * words).astype("<u8").view(np.uint8).reshape(rounds, -1)
        ways = np.unpackbits(raw, axis=1, count=len(values), bitorder="little").astype(np.float64)
        as_large += int(np.count_nonzero((1 - 2 * ways) @ values >= least))
    return (1 + as_large) / (1 + ROUNDS)


def smallest_p_value(differences: int) -> float:
    """Return the least that `sign_flip_p_value` can give for so many differences: all of them have the same sign."""
    return 0.5**differences if differences <= ALL_SIGNS else 1 / (1 + ROUNDS)


def holm_significant(p_values: Sequence[float], level: float) -> list[bool]:
    """Return which of several p-values are significant at a family-wise error rate of at most `level` (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    significant = [False] * len(p_values)
    for passed, place in enumerate(order):
        if p_values[place] > level / (len(p_values) - passed):
            break
        significant[place] = True
    return significant


@dataclass(frozen=True)
class ContaminationGap:
    """Mean score of leaked items less that of clean ones."""

    difference: float
    stderr: float | None
    p: float

    @property
    def is_significant(self) -> bool:
        """Whether random divisions hardly ever give so large a gap."""
        return self.p < SIGNIFICANCE_LEVEL


def measure_gap(leaked: Sequence[float], clean: Sequence[float], seed: int) -> ContaminationGap | None:
    """Return the gap between two groups of scores; None where one of them is empty."""
    if not leaked or not clean:
        return None
    scores = np.array([*leaked, *clean], dtype=np.float64)
    difference = float(scores[: len(leaked)].mean() - scores[len(leaked) :].mean())
    errors = [float(np.var(group, ddof=1)) / len(group) for group in (leaked, clean) if len(group) > 1]
    stderr = math.sqrt(sum(errors)) if len(errors) == 2 else None
    rounds = max(999, min(ROUNDS, MOST_DRAWS // len(scores)))
    # Raw words of a counter-based generator, so that every version of NumPy draws the same divisions.
    words = np.random.Philox(key=seed).random_raw(rounds * len(scores)).reshape(rounds, -1)
    called_leaked = np.argpartition(words, len(leaked) - 1, axis=1)[:, : len(leaked)]
    sums = scores[called_leaked].sum(axis=1)
    drawn = sums / len(leaked) - (scores.sum() - sums) / len(clean)
    rounding = ROUNDING * np.abs(scores).sum() * (1 / len(leaked) + 1 / len(clean))
    as_large = int((np.abs(drawn) >= abs(difference) - rounding).sum())
    return ContaminationGap(difference, stderr, (1 + as_large) / (1 + rounds))
