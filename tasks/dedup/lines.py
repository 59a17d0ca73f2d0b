"""Repeated lines or paragraphs (CCNet, Wenzek et al. 2020, section 3.1): of equal ones the first in keep order stays.

Lines are compared by their words, so that case, punctuation and indentation don't matter; unlike CCNet numbers do, as
tables and dates would otherwise lose rows. A paragraph is a run of lines between blank ones. Lines with few words
(closing brackets, headings, speaker names) stay, however often they occur. Hashes are compared in ranges of their upper
bits, so that those in memory stay within a bound.
"""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus
from tasks.dedup.minhash import text_buffers
from tasks.dedup.shingles import I64, U8, U64, fold_table, hash_words
from tasks.dedup.survivors import Fates
from tasks.kernels import kernel

BYTES_A_LINE = 64
_BASE = np.uint64(0xA0761D6478BD642F)
_SHIFT = np.uint64(29)
_MIX = np.uint64(0xBF58476D1CE4E5B9)

Lines = tuple[U64, I64, I64, I64]
"""Hash, row within the part, start and end (bytes of the document) of each line that is long enough."""


@kernel
def _is_blank(data, start, end):
    for position in range(start, end):
        if data[position] != 0x20 and data[position] != 0x09 and data[position] != 0x0D:
            return False
    return True


@kernel
def _lines_of(data, offsets, rows, fold, paragraphs, least_words, words, hashes, owners, starts, ends):
    """Write the lines (or paragraphs) of some documents; returns how many. Ends are behind the line's own line end."""
    count = 0
    for row in rows:
        begin, end = offsets[row], offsets[row + 1]
        start = begin
        while start < end:
            stop = start
            while True:
                line = stop
                while stop < end and data[stop] != 0x0A:
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
                    value = value * _BASE + words[index]
                value = (value ^ (value >> _SHIFT)) * _MIX
                hashes[count] = value ^ (value >> _SHIFT)
                owners[count] = row
                starts[count] = start - begin
                ends[count] = stop - begin
                count += 1
            start = stop
    return count


@kernel
def _count_line_ends(data, offsets, rows):
    count = 0
    for row in rows:
        for position in range(offsets[row], offsets[row + 1]):
            count += data[position] == 0x0A
        count += 1
    return count


def lines_of(data: U8, offsets: I64, rows: I64, config: DedupConfig) -> Lines:
    """The lines (or paragraphs) of the given rows of an Arrow string column's buffers."""
    room = _count_line_ends(data, offsets, rows)
    words = np.empty(int((offsets[rows + 1] - offsets[rows]).max(initial=0)) // 2 + 2, np.uint64)
    hashes = np.empty(room, np.uint64)
    owners, starts, ends = (np.empty(room, np.int64) for _ in range(3))
    paragraphs = config.repeated_lines == "paragraph"
    least = config.repeated_line_words
    count = _lines_of(data, offsets, rows, fold_table(), paragraphs, least, words, hashes, owners, starts, ends)
    return hashes[:count], owners[:count], starts[:count], ends[:count]


def repeated_lines(corpus: Corpus, fates: Fates, config: DedupConfig) -> tuple[I64, I64, I64, I64]:
    """(Global rows, starts, ends, rows of the document in which the line stays) of every line to cut, in order."""
    parts = range(corpus.earlier_parts, len(corpus.parts))

    def of_part(wanted: Callable[[U64], np.ndarray], part: int) -> Lines:
        rows = fates.kept_rows(corpus, part) - corpus.first_row[part]
        data, offsets = text_buffers(corpus.texts_of_part(part))
        hashes, owners, starts, ends = lines_of(data, offsets, rows, config)
        chosen = wanted(hashes)
        return hashes[chosen], owners[chosen] + corpus.first_row[part], starts[chosen], ends[chosen]

    passes = _passes(corpus, config)
    shift = np.uint64(64 - (passes.bit_length() - 1)) if passes > 1 else None
    found: list[np.ndarray] = []
    for number in range(passes):
        of_range = functools.partial(of_part, functools.partial(_in_range, shift, np.uint64(number)))
        with ThreadPoolExecutor(config.threads) as pool:
            columns = list(zip(*pool.map(of_range, parts), strict=True))
        hashes, rows, starts, ends = (np.concatenate(column) for column in columns)
        order = np.lexsort((starts, fates.rank[rows], hashes))
        hashes, rows, starts, ends = hashes[order], rows[order], starts[order], ends[order]
        opens = np.ones(hashes.size, np.bool_)
        opens[1:] = hashes[1:] != hashes[:-1]
        firsts = rows[np.flatnonzero(opens)[np.cumsum(opens) - 1]] if hashes.size else rows
        again = ~opens
        found.append(np.stack([rows[again], starts[again], ends[again], firsts[again]]))
    rows, starts, ends, firsts = np.concatenate(found, axis=1)
    order = np.lexsort((starts, rows))
    return rows[order], starts[order], ends[order], firsts[order]


def _in_range(shift: np.uint64 | None, number: np.uint64, hashes: U64) -> np.ndarray:
    return np.ones(hashes.size, np.bool_) if shift is None else (hashes >> shift) == number


def _passes(corpus: Corpus, config: DedupConfig) -> int:
    """Passes (a power of two) that keep the lines of one pass within the bound, taking 40 bytes of text for a line."""
    needed = int(corpus.sizes.sum()) // 40 * BYTES_A_LINE
    return 1 << max(0, (-(-needed // config.memory_bytes) - 1).bit_length())
