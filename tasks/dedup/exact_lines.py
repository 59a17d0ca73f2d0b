"""Exact repetitions: repeated lines or paragraphs, and the plan of all cuts.

Of equal lines or paragraphs the first in keep order is kept (CCNet, Wenzek et al. 2020, section 3.1). Lines are
compared by their words, so that case, punctuation and indentation do not matter; unlike in CCNet numbers do, as tables
and dates would otherwise lose rows. A paragraph is a run of lines between blank ones. Lines with few words (closing
brackets, headings, speaker names) are kept, however often they occur. Hashes are compared in ranges of their upper
bits, so that memory is bounded.

Cuts are planned over the whole corpus and applied by part. Every cut names the document in which the passage is kept,
of several the one that keeps its beginning; it is a half-open range of UTF-8 bytes at character borders.
"""

import functools
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from model.kernels import kernel
from tasks.artifacts.tables.columns import text_buffers
from tasks.common.groups import begins_group, first_of_group
from tasks.common.utf8 import ROLLING_BASE
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus
from tasks.dedup.exact_substrings import MIX, repeated_substrings
from tasks.dedup.lsh import in_range, passes_within
from tasks.dedup.minhash import I64, U8, U64, fold_table, hash_words
from tasks.dedup.near_duplicates import DuplicateDecisions

BYTES_PER_LINE = 64

_TEXT_BYTES_PER_LINE = 40
"""An estimate, to bound the memory of one pass."""

_SHIFT = np.uint64(29)

Lines = tuple[U64, I64, I64, I64]
"""Hash, row within the part, start and end (bytes of the document) of each line that is long enough."""

REPEATED_LINE = "repeated_line"
REPEATED_SUBSTRING = "repeated_substring"
NOTHING_OF_ITS_OWN = "nothing_of_its_own"


@dataclass(frozen=True)
class Cuts:
    """Cuts of one kind: aligned arrays in order of document and position, without overlap."""

    rows: I64
    """Global row of each cut's document."""
    starts: I64
    ends: I64
    firsts: I64
    """Global row of the document in which the passage is kept, or its beginning."""

    def of(self, row: int) -> list[tuple[int, int, int]]:
        """Return (start, end, row of the document that keeps the passage) of each cut of a document."""
        begin, end = np.searchsorted(self.rows, [row, row + 1])
        own = slice(begin, end)
        return list(zip(self.starts[own].tolist(), self.ends[own].tolist(), self.firsts[own].tolist(), strict=True))


@dataclass(frozen=True)
class CutPlan:
    """The cuts of each rule, and the documents of which nothing would be left."""

    by_rule: dict[str, Cuts]
    emptied: npt.NDArray[np.bool_]
    """Whether nothing is left, by global row."""

    def rows_between(self, begin: int, end: int) -> list[int]:
        """Return the global rows from `begin` on, before `end`, that have cuts."""
        found = [cuts.rows[slice(*np.searchsorted(cuts.rows, [begin, end]))] for cuts in self.by_rule.values()]
        return np.unique(np.concatenate([np.empty(0, np.int64), *found])).tolist()

    def of(self, row: int) -> list[tuple[int, int, int, str]]:
        """Return (start, end, row that keeps it, rule) of a document's cuts in order, overlaps cut once."""
        found = sorted((*cut, rule) for rule, cuts in self.by_rule.items() for cut in cuts.of(row))
        merged: list[tuple[int, int, int, str]] = []
        reached = 0
        for start, end, first, rule in found:
            if end > reached:
                merged.append((max(start, reached), end, first, rule))
                reached = end
        return merged


def plan_cuts(corpus: Corpus, decisions: DuplicateDecisions, config: DedupConfig) -> CutPlan:
    """Plan the cuts that the settings ask for, over all documents that are kept.

    A document that represents removed copies, or that keeps a passage which is cut from another, is never emptied: it
    is kept whole. Where one rule cuts what another keeps there, its own records lead on.
    """
    by_rule: dict[str, Cuts] = {}
    if config.repeated_lines != "keep":
        by_rule[REPEATED_LINE] = Cuts(*repeated_lines(corpus, decisions, config))
    if config.repeated_bytes is not None:
        by_rule[REPEATED_SUBSTRING] = Cuts(*repeated_substrings(corpus, decisions, config))
    plan = CutPlan(by_rule, np.zeros(len(corpus), np.bool_))
    is_survivor = np.zeros(len(corpus), np.bool_)
    is_survivor[decisions.representative[decisions.representative >= 0]] = True
    for cuts in by_rule.values():
        is_survivor[cuts.firsts[cuts.firsts != cuts.rows]] = True
    whole = np.zeros(len(corpus), np.bool_)
    for part in corpus.own_parts:
        begin, end = int(corpus.first_row[part]), int(corpus.first_row[part + 1])
        rows = plan.rows_between(begin, end)
        if not rows:
            continue
        data, offsets = text_buffers(corpus.texts_of_part(part))
        for row in rows:
            text = data[offsets[row - begin] : offsets[row - begin + 1]].tobytes()
            left = remove_ranges(text, [(start, stop) for start, stop, *_ in plan.of(row)])
            if not left.decode().strip():  # of a text: bytes know no white space beyond ASCII
                (whole if is_survivor[row] else plan.emptied)[row] = True
    return replace(plan, by_rule={rule: _drop_rows(cuts, whole) for rule, cuts in by_rule.items()})


def _drop_rows(cuts: Cuts, rows: npt.NDArray[np.bool_]) -> Cuts:
    kept = ~rows[cuts.rows]
    return Cuts(cuts.rows[kept], cuts.starts[kept], cuts.ends[kept], cuts.firsts[kept])


def remove_ranges(text: bytes, cuts: Iterable[tuple[int, int]]) -> bytes:
    """Return `text` without the ranges [start, end) of `cuts`, which are in order and do not overlap."""
    pieces: list[bytes] = []
    position = 0
    for start, end in cuts:
        pieces.append(text[position:start])
        position = end
    return b"".join([*pieces, text[position:]])


def repeated_lines(corpus: Corpus, decisions: DuplicateDecisions, config: DedupConfig) -> tuple[I64, I64, I64, I64]:
    """Return (global rows, starts, ends, rows of the document that keeps the line) of every line to cut, in order."""

    def of_part(number: int, part: int) -> Lines:
        data, offsets = text_buffers(corpus.texts_of_part(part))
        hashes, owners, starts, ends = lines_of(data, offsets, decisions.kept_rows(corpus, part), config)
        chosen = in_range(hashes, number, passes)
        return hashes[chosen], owners[chosen] + corpus.first_row[part], starts[chosen], ends[chosen]

    lines = int(corpus.sizes.sum()) // _TEXT_BYTES_PER_LINE
    passes = passes_within(lines * BYTES_PER_LINE, config.memory_bytes)
    no_lines = (np.empty(0, np.uint64), *np.empty((3, 0), np.int64))
    found: list[np.ndarray] = []
    for number in range(passes):
        with ThreadPoolExecutor(config.threads) as pool:
            of_parts = [no_lines, *pool.map(functools.partial(of_part, number), corpus.own_parts)]
        hashes, rows, starts, ends = map(np.concatenate, zip(*of_parts, strict=True))
        order = np.lexsort((starts, decisions.rank[rows], hashes))
        hashes, rows, starts, ends = hashes[order], rows[order], starts[order], ends[order]
        is_first = begins_group(hashes)
        columns = (rows, starts, ends, rows[first_of_group(is_first)])
        found.append(np.stack([column[~is_first] for column in columns]))
    rows, starts, ends, firsts = np.concatenate(found, axis=1)
    order = np.lexsort((starts, rows))
    return rows[order], starts[order], ends[order], firsts[order]


def lines_of(data: U8, offsets: I64, rows: I64, config: DedupConfig) -> Lines:
    """Return the lines (or paragraphs) of the given rows of an Arrow string column's buffers."""
    capacity = _count_line_ends(data, offsets, rows)
    words = np.empty(int((offsets[rows + 1] - offsets[rows]).max(initial=0)) // 2 + 2, np.uint64)
    hashes = np.empty(capacity, np.uint64)
    owners, starts, ends = (np.empty(capacity, np.int64) for _ in range(3))
    paragraphs = config.repeated_lines == "paragraph"
    least = config.repeated_line_words
    count = _lines_of(data, offsets, rows, fold_table(), paragraphs, least, words, hashes, owners, starts, ends)
    return hashes[:count], owners[:count], starts[:count], ends[:count]


@kernel
def _lines_of(data, offsets, rows, fold, paragraphs, least_words, words, hashes, owners, starts, ends):
    """Write the lines (or paragraphs) of some documents; returns how many. Ends are behind the line feed."""
    count = 0
    for row in rows:
        begin, end = offsets[row], offsets[row + 1]
        start = begin
        while start < end:
            stop = start
            while True:
                line = stop
                while stop < end and data[stop] != ord("\n"):
                    stop += 1
                blank = _is_blank(data, line, stop)
                if stop < end:
                    stop += 1
                if not paragraphs or blank or stop >= end:
                    break
            found = hash_words(data, start, stop, fold, words)
            if found >= least_words:
                value = np.uint64(found)
                for index in range(found):
                    value = value * ROLLING_BASE + words[index]
                value = (value ^ (value >> _SHIFT)) * MIX
                hashes[count] = value ^ (value >> _SHIFT)
                owners[count] = row
                starts[count] = start - begin
                ends[count] = stop - begin
                count += 1
            start = stop
    return count


@kernel
def _is_blank(data, start, end):
    for position in range(start, end):
        if data[position] != ord(" ") and data[position] != ord("\t") and data[position] != ord("\r"):
            return False
    return True


@kernel
def _count_line_ends(data, offsets, rows):
    count = 0
    for row in rows:
        for position in range(offsets[row], offsets[row + 1]):
            count += data[position] == ord("\n")
        count += 1
    return count
