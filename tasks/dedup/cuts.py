"""Passages that stand elsewhere too, cut out of documents that stay: planned over the whole corpus, applied by part.

Every cut names the document in which the passage stays. Cuts are half-open ranges of UTF-8 bytes at character borders.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus
from tasks.dedup.lines import repeated_lines
from tasks.dedup.minhash import text_buffers
from tasks.dedup.shingles import I64
from tasks.dedup.substrings import repeated_substrings
from tasks.dedup.survivors import Fates

REPEATED_LINE = "repeated_line"
REPEATED_SUBSTRING = "repeated_substring"
NOTHING_OF_ITS_OWN = "nothing_of_its_own"


@dataclass(frozen=True)
class Cuts:
    """Cuts of one kind: aligned arrays in order of document and place, without overlap."""

    rows: I64
    """Global row of each cut's document."""
    starts: I64
    ends: I64
    firsts: I64
    """Global row of the document in which the passage stays."""

    @staticmethod
    def none() -> "Cuts":
        """No cuts."""
        return Cuts(*(np.empty(0, np.int64) for _ in range(4)))

    def of(self, row: int) -> list[tuple[int, int, int]]:
        """(start, end, row of the document in which it stays) of each cut of a document."""
        begin, end = np.searchsorted(self.rows, [row, row + 1])
        own = slice(begin, end)
        return list(zip(self.starts[own].tolist(), self.ends[own].tolist(), self.firsts[own].tolist(), strict=True))


@dataclass(frozen=True)
class CutPlan:
    """The cuts of each rule, and the documents of which nothing would be left."""

    by_rule: dict[str, Cuts]
    emptied: npt.NDArray[np.bool_]
    """By global row."""

    def rows_between(self, begin: int, end: int) -> list[int]:
        """The global rows from `begin` on, before `end`, that have cuts."""
        found = [
            cuts.rows[slice(*np.searchsorted(cuts.rows, [begin, end]))]
            for cuts in self.by_rule.values()
            if cuts.rows.size
        ]
        return np.unique(np.concatenate([np.empty(0, np.int64), *found])).tolist()

    def of(self, row: int) -> list[tuple[int, int, int, str]]:
        """(start, end, row in which it stays, rule) of a document's cuts in order, overlaps cut once."""
        found = sorted((*cut, rule) for rule, cuts in self.by_rule.items() for cut in cuts.of(row))
        merged: list[tuple[int, int, int, str]] = []
        reached = 0
        for start, end, first, rule in found:
            if end > reached:
                merged.append((max(start, reached), end, first, rule))
                reached = end
        return merged


def plan_cuts(corpus: Corpus, fates: Fates, config: DedupConfig) -> CutPlan:
    """The cuts that the settings ask for, over all documents that stay.

    A document that stands for removed copies is not emptied: it stays whole.
    """
    by_rule: dict[str, Cuts] = {}
    if config.repeated_lines != "keep":
        by_rule[REPEATED_LINE] = Cuts(*repeated_lines(corpus, fates, config))
    if config.repeated_bytes is not None:
        by_rule[REPEATED_SUBSTRING] = Cuts(*repeated_substrings(corpus, fates, config))
    plan = CutPlan(by_rule, np.zeros(len(corpus), np.bool_))
    stands_for_copies = np.zeros(len(corpus), np.bool_)
    stands_for_copies[fates.survivor[fates.survivor >= 0]] = True
    whole = np.zeros(len(corpus), np.bool_)
    for part in range(corpus.earlier_parts, len(corpus.parts)):
        begin, end = int(corpus.first_row[part]), int(corpus.first_row[part + 1])
        rows = plan.rows_between(begin, end)
        if not rows:
            continue
        data, offsets = text_buffers(corpus.texts_of_part(part))
        for row in rows:
            text = data[offsets[row - begin] : offsets[row - begin + 1]].tobytes()
            if not without(text, [(start, stop) for start, stop, *_ in plan.of(row)]).strip():
                (whole if stands_for_copies[row] else plan.emptied)[row] = True
    return replace(plan, by_rule={rule: _without_rows(cuts, whole) for rule, cuts in by_rule.items()})


def _without_rows(cuts: Cuts, rows: npt.NDArray[np.bool_]) -> Cuts:
    stay = ~rows[cuts.rows]
    return Cuts(cuts.rows[stay], cuts.starts[stay], cuts.ends[stay], cuts.firsts[stay])


def without(text: bytes, cuts: Iterable[tuple[int, int]]) -> bytes:
    """`text` without the ranges [start, end) of `cuts`, which are in order and don't overlap."""
    pieces: list[bytes] = []
    position = 0
    for start, end in cuts:
        pieces.append(text[position:start])
        position = end
    return b"".join([*pieces, text[position:]])
