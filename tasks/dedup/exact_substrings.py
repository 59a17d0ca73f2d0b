"""Repeated passages, byte for byte (Lee et al. 2022, section 4.1): of equal ones the first in keep order is kept.

A passage of at least L bytes is repeated exactly where each of its windows of L bytes is. So windows replace a suffix
array: each is hashed as it rolls over the text, hashes are sorted in ranges of their upper bits, as many ranges as a
bound on memory requires, and where a hash occurs again a second, independent hash (128 bits together) and the order of
documents distinguish the first from its copies. The result is that of the suffix array (a test compares them), which
would need eight times the text in memory.

A copy that overlaps its own first occurrence (a row of dashes) does not count, so that the first is kept whole. What is
found is cut at whole lines where these are L bytes or more, else at character borders, where that leaves L bytes or
more, else not at all.
"""

from collections.abc import Iterator

import numpy as np

from model.kernels import kernel
from tasks.artifacts.tables.columns import text_buffers
from tasks.common.groups import begins_group, first_of_group
from tasks.common.utf8 import ROLLING_BASE
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus
from tasks.dedup.lsh import passes_within
from tasks.dedup.minhash import I64, U8, U64
from tasks.dedup.near_duplicates import DuplicateDecisions

BYTES_PER_WINDOW = 48
_SECOND_BASE = np.uint64(0xE7037ED1A0B428DB)
MIX = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(31)
_TABLE_BITS = 24


def _byte_values(seed: int) -> U64:
    return np.random.RandomState(seed).randint(0, 1 << 64, 256, dtype=np.uint64)


_FIRST_VALUES, _SECOND_VALUES = _byte_values(1), _byte_values(2)


def repeated_substrings(
    corpus: Corpus, decisions: DuplicateDecisions, config: DedupConfig
) -> tuple[I64, I64, I64, I64]:
    """Return (global rows, starts, ends, rows of the document that keeps its beginning) of every cut, in order."""
    length = config.repeated_bytes
    assert length is not None
    passes = passes_within(int(corpus.sizes.sum()) * BYTES_PER_WINDOW, config.memory_bytes)
    found = [_copies_in_range(corpus, decisions, length, passes, number) for number in range(passes)]
    rows, places, firsts = np.concatenate([np.empty((3, 0), np.int64), *found], axis=1)
    order = np.lexsort((places, rows))
    return _join_windows(corpus, rows[order], places[order], firsts[order], length)


def _copies_in_range(
    corpus: Corpus, decisions: DuplicateDecisions, length: int, passes: int, number: int
) -> np.ndarray:
    """Return (rows, positions, rows of the first occurrence) of the windows of one range that repeat an earlier one."""
    buffer = np.empty(int(corpus.sizes.max(initial=0)) + 1, np.uint64)
    hashes: list[U64] = []
    for _, data, offsets, rows in _kept_texts(corpus, decisions):
        arguments = (data, offsets, rows, length, _FIRST_VALUES, ROLLING_BASE, passes, np.uint64(number), buffer)
        out = np.empty(_hashes_in_range(*arguments, buffer[:0]), np.uint64)
        if out.size:
            _hashes_in_range(*arguments, out)
            hashes.append(out)
    together = np.concatenate([np.empty(0, np.uint64), *hashes])
    del hashes
    together.sort()
    repeated = np.unique(together[1:][together[1:] == together[:-1]])
    del together
    if not repeated.size:
        return np.empty((3, 0), np.int64)
    seen = _bitmap(repeated)
    bases = np.array([ROLLING_BASE, _SECOND_BASE])
    second_buffer = np.empty(buffer.size, np.uint64)
    columns: list[np.ndarray] = []
    for part, data, offsets, rows in _kept_texts(corpus, decisions):
        values = (_FIRST_VALUES, _SECOND_VALUES, bases)
        arguments = (data, offsets, rows, length, *values, repeated, seen, buffer, second_buffer)
        out = np.empty((4, _find_windows(*arguments, np.empty((4, 0), np.uint64))), np.uint64)
        if out.shape[1]:
            _find_windows(*arguments, out)
            out[2] += np.uint64(corpus.first_row[part])
            columns.append(out)
    first, second, rows, places = np.concatenate(columns, axis=1)
    rows, places = rows.astype(np.int64), places.astype(np.int64)
    order = np.lexsort((places, decisions.rank[rows], second, first))
    first, second, rows, places = first[order], second[order], rows[order], places[order]
    is_first = begins_group(first, second)
    origin = first_of_group(is_first)
    overlapping = (rows == rows[origin]) & (places < places[origin] + length)
    copy = ~is_first & ~overlapping
    return np.stack([rows[copy], places[copy], rows[origin][copy]])


def _kept_texts(corpus: Corpus, decisions: DuplicateDecisions) -> Iterator[tuple[int, U8, I64, I64]]:
    for part in corpus.own_parts:
        data, offsets = text_buffers(corpus.texts_of_part(part))
        yield part, data, offsets, decisions.kept_rows(corpus, part)


def _bitmap(values: U64) -> U8:
    """Return a bitmap over the lower bits of `values`, of about 16 bits a value (2^24 bits at least)."""
    bits = max(_TABLE_BITS, (values.size * 16).bit_length())
    bitmap = np.zeros((1 << bits) // 8, np.uint8)
    low = values & np.uint64((1 << bits) - 1)
    np.bitwise_or.at(bitmap, low >> np.uint64(3), np.uint8(1) << (low & np.uint64(7)).astype(np.uint8))
    return bitmap


def _join_windows(corpus: Corpus, rows: I64, places: I64, firsts: I64, length: int) -> tuple[I64, I64, I64, I64]:
    """Join windows (by row and position) into passages, and snap these to lines.

    The windows of a passage may repeat several documents: named is the one that keeps the beginning of what is cut.
    """
    is_first = np.ones(rows.size, np.bool_)
    is_first[1:] = (rows[1:] != rows[:-1]) | (places[1:] > places[:-1] + length)
    begins = np.flatnonzero(is_first)
    ends = np.append(begins[1:], rows.size)[: begins.size] - 1
    cuts: list[tuple[int, int, int, int]] = []
    parts = np.searchsorted(corpus.first_row, rows[begins], side="right") - 1
    for part in np.unique(parts).tolist():
        data, offsets = text_buffers(corpus.texts_of_part(part))
        for index in np.flatnonzero(parts == part).tolist():
            row = int(rows[begins[index]])
            begin, end = offsets[row - corpus.first_row[part] : row - corpus.first_row[part] + 2].tolist()
            start, stop = begin + int(places[begins[index]]), begin + int(places[ends[index]]) + length
            start, stop = _snap_to_lines(data, begin, end, start, stop, length)
            if stop > start:
                windows = slice(begins[index], ends[index] + 1)
                at = int(np.searchsorted(places[windows], start - begin, side="right")) - 1
                cuts.append((row, start - begin, stop - begin, int(firsts[windows][at])))
    table = np.array(cuts, np.int64).reshape(-1, 4)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


@kernel
def _snap_to_lines(data, begin, end, start, stop, length):
    """Shrink data[start:stop] within data[begin:end] to whole lines, to characters where these are too short, and to
    nothing where those are."""
    while start < stop and (data[start] & 0xC0) == 0x80:
        start += 1
    while stop < end and stop > start and (data[stop] & 0xC0) == 0x80:
        stop -= 1
    first = start
    while first < stop and first > begin and data[first - 1] != ord("\n"):
        first += 1
    last = stop
    while last > first and last < end and data[last - 1] != ord("\n"):
        last -= 1
    if last - first >= length:
        return first, last
    if stop - start >= length:
        return start, stop
    return start, start


@kernel
def _hashes_in_range(data, offsets, rows, length, values, base, passes, number, buffer, out):
    """Write the hashes of all windows whose upper bits are `number` of `passes`; an `out` of size 0 only counts."""
    shift = np.uint64(0)
    step = passes
    while step > 1:
        shift += np.uint64(1)
        step //= 2
    shift = np.uint64(64) - shift
    count = 0
    for row in rows:
        begin, end = offsets[row], offsets[row + 1]
        if end - begin < length:
            continue
        windows = end - begin - length + 1
        _hash_windows(data, begin, end, length, base, values, buffer)
        for index in range(windows):
            if passes == 1 or (buffer[index] >> shift) == number:
                if out.size:
                    out[count] = buffer[index]
                count += 1
    return count


@kernel
def _find_windows(data, offsets, rows, length, firsts, seconds, bases, repeated, seen, buffer, second_buffer, columns):
    """Write hash, second hash, row and position of windows whose first hash is in `repeated`; returns how many.

    `seen` is a bitmap over the hashes' lower bits that saves most searches.
    """
    mask = np.uint64(seen.size * 8 - 1)
    count = 0
    for row in rows:
        begin, end = offsets[row], offsets[row + 1]
        if end - begin < length:
            continue
        windows = end - begin - length + 1
        _hash_windows(data, begin, end, length, bases[0], firsts, buffer)
        hashed = False
        for index in range(windows):
            low = buffer[index] & mask
            if not (seen[low >> np.uint64(3)] >> (low & np.uint64(7))) & np.uint8(1):
                continue
            place = np.searchsorted(repeated, buffer[index])
            if place == repeated.size or repeated[place] != buffer[index]:
                continue
            if columns.shape[1]:
                if not hashed:
                    _hash_windows(data, begin, end, length, bases[1], seconds, second_buffer)
                    hashed = True
                columns[0, count] = buffer[index]
                columns[1, count] = second_buffer[index]
                columns[2, count] = np.uint64(row)
                columns[3, count] = np.uint64(index)
            count += 1
    return count


@kernel
def _hash_windows(data, begin, end, length, base, values, out):
    """Hash each window of data[begin:end]; there must be at least one."""
    rolling = np.uint64(0)
    for position in range(begin, begin + length):
        rolling = rolling * base + values[data[position]]
    power = _power(base, length)
    mixed = (rolling ^ (rolling >> _SHIFT)) * MIX
    out[0] = mixed ^ (mixed >> _SHIFT)
    for position in range(begin + length, end):
        rolling = rolling * base + values[data[position]] - values[data[position - length]] * power
        mixed = (rolling ^ (rolling >> _SHIFT)) * MIX
        out[position - begin - length + 1] = mixed ^ (mixed >> _SHIFT)


@kernel
def _power(base, exponent):
    power = np.uint64(1)
    for _ in range(exponent):
        power *= base
    return power
