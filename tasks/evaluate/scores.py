"""Rows of SCORES: ratios of sums over documents with bootstrapped standard errors, by source, by language, and as
the sources' plain mean."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tasks.artifacts.tables.rows import HELDOUT, HELDOUT_ALL, LANGUAGE, DocumentScoreRow, GapRow, ItemScoreRow, ScoreRow
from tasks.common.numeric import seed64
from tasks.evaluate.heldout import HeldoutDocument

DRAWS_AT_ONCE = 1 << 22
"""Documents drawn at once by a bootstrap, over all its rounds: all languages of a run together may have millions."""


@dataclass
class Scores:
    """Rows of SCORES; of benchmarks rows of ITEM_SCORES and GAPS; of held-out text rows of DOCUMENT_SCORES."""

    rows: list[ScoreRow] = field(default_factory=list)
    items: list[ItemScoreRow] = field(default_factory=list)
    gaps: list[GapRow] = field(default_factory=list)
    documents: list[DocumentScoreRow] = field(default_factory=list)


class Measurement(NamedTuple):
    """A value and its standard error; None where there can be none."""

    value: float | None
    stderr: float | None = None


NO_MEASUREMENT = Measurement(None)


def score_row(
    task: str, metric: str, measured: Measurement, *, n: int, shots: int = 0, subset: str = "all", note: str = ""
) -> ScoreRow:
    """Return a row of SCORES; a value that is not finite becomes null."""
    value, stderr = (one if one is not None and math.isfinite(one) else None for one in measured)
    return {
        "task": task,
        "metric": metric,
        "shots": shots,
        "subset": subset,
        "n": n,
        "value": value,
        "stderr": stderr,
        "note": note,
    }


def mean_with_error(values: Sequence[float]) -> Measurement:
    """Return the mean and its standard error sd / sqrt(n), for shares sqrt(p (1 - p) / (n - 1)); None where n is too
    small."""
    n = len(values)
    if n == 0:
        return NO_MEASUREMENT
    mean = math.fsum(values) / n
    if n == 1:
        return Measurement(mean)
    return Measurement(mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n))


class HeldoutRows:
    """Collects rows of SCORES about held-out text: by source, their plain mean, and by language.

    Languages are those of documents, whatever their source; all documents of a language are pooled. Standard errors
    come from `rounds` resamples of the documents.
    """

    def __init__(self, rounds: int, seed: int) -> None:
        self._rounds, self._seed = rounds, seed
        self._rows: list[ScoreRow] = []
        self._documents: list[DocumentScoreRow] = []
        self._by_metric: dict[str, list[tuple[Measurement, int]]] = {}
        self._by_language: dict[tuple[str, str], list[list[float]]] = {}

    def ratio(self, source: str, above: np.ndarray, below: np.ndarray) -> Measurement:
        """Return `ratio` of a source's documents; all metrics of a source have the same draws."""
        return ratio(above, below, self._rounds, seed64(self._seed, "evaluate", "bootstrap", source))

    def add(self, source: str, metric: str, measured: Measurement, documents: int, note: str) -> None:
        """Add one metric of one source, measured on `documents` documents."""
        self._rows.append(score_row(f"{HELDOUT}{source}", metric, measured, n=documents, note=note))
        self._by_metric.setdefault(metric, []).append((measured, documents))

    def add_languages(self, metric: str, languages: Sequence[str | None], above: np.ndarray, below: np.ndarray) -> None:
        """Add the documents of one source to the metrics by language; those without a language count in none."""
        for language, *pair in zip(languages, above.tolist(), below.tolist(), strict=True):
            if language is not None:
                self._by_language.setdefault((language, metric), []).append(pair)

    def add_documents(
        self, source: str, metric: str, documents: Sequence[HeldoutDocument], bits: np.ndarray, sizes: np.ndarray
    ) -> None:
        """Add the bits of each document of a source, and the bytes that they encode: by language and one by one."""
        self.add_languages(metric, [one.language for one in documents], bits, sizes)
        for one, more, size in zip(documents, bits.tolist(), sizes.tolist(), strict=True):
            row = DocumentScoreRow(
                source=source, doc_id=one.doc_id, piece=one.piece, metric=metric, bits=more, bytes=int(size)
            )
            self._documents.append(row)

    def scores(self) -> Scores:
        """Return all rows of SCORES and of DOCUMENT_SCORES; the mean of a metric that a source lacks is null."""
        means = [
            score_row(
                HELDOUT_ALL,
                metric,
                plain_mean([measured for measured, _ in found]),
                n=sum(documents for _, documents in found),
                note=f"plain mean of {len(found)} sources",
            )
            for metric, found in self._by_metric.items()
        ]
        languages: list[ScoreRow] = []
        for (language, metric), pairs in sorted(self._by_language.items()):
            above, below = np.array(pairs).T
            task, note = f"{LANGUAGE}{language}", f"{len(pairs)} documents of all sources together"
            languages.append(score_row(task, metric, self.ratio(task, above, below), n=len(pairs), note=note))
        return Scores([*self._rows, *means, *languages], documents=self._documents)


def plain_mean(results: Sequence[Measurement]) -> Measurement:
    """Return the mean over sources, each counting the same (Paloma), with the standard error of independent sources;
    no value where one of them has none."""
    values = [result.value for result in results if result.value is not None]
    if len(values) < len(results):
        return NO_MEASUREMENT
    value = sum(values) / len(values)
    errors = [result.stderr for result in results if result.stderr is not None]
    if len(errors) < len(results):
        return Measurement(value)
    return Measurement(value, math.sqrt(sum(error**2 for error in errors)) / len(results))


def ratio(above: np.ndarray, below: np.ndarray, rounds: int, seed: int) -> Measurement:
    """Return the sum of `above` [documents] over the sum of `below` [documents] (bits over bytes, right answers over
    answers), with the standard error of a document bootstrap.

    Documents are drawn with replacement `rounds` times (Efron 1979); a single document has no standard error. A draw
    whose `below` sums to 0 is skipped.
    """
    if not below.sum():
        return NO_MEASUREMENT
    value = float(above.sum() / below.sum())
    if len(above) < 2:
        return Measurement(value)
    # Raw words of a counter-based generator, so that every version of NumPy draws the same documents.
    source = np.random.Philox(key=seed)
    rounds_at_once = max(1, DRAWS_AT_ONCE // len(above))
    ratios: list[np.ndarray] = []
    for first in range(0, rounds, rounds_at_once):
        some = min(rounds_at_once, rounds - first)
        drawn = source.random_raw(some * len(above)).reshape(some, -1) % np.uint64(len(above))
        index = drawn.astype(np.int64)
        sums = below[index].sum(axis=1)
        held = sums > 0
        ratios.append(above[index].sum(axis=1)[held] / sums[held])
    return Measurement(value, float(np.concatenate(ratios).std(ddof=1)))


def split_evenly(tokens: int, most: int) -> list[tuple[int, int]]:
    """Return (begin, end) of the fewest segments of at most `most` tokens each, whose lengths differ by at most one;
    none for no tokens."""
    count = -(-tokens // most)
    return [(tokens * nth // count, tokens * (nth + 1) // count) for nth in range(count)]
