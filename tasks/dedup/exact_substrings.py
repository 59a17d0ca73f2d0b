"""Repeated passages, byte for byte (Lee et al. 2022, section 4.1): of equal ones the first in keep order stays.

A passage of at least L bytes stands elsewhere exactly where each of its windows of L bytes does. So windows take the
place of a suffix array: each is hashed as it rolls over the text, hashes are sorted in ranges of their upper bits, as
many ranges as a bound on memory asks for, and where a hash occurs again a second, independent hash (128 bits together)
and the order of documents tell the first from its copies. The result is that of the suffix array (a test compares
them), which would need eight times the text in memory.

A copy that overlaps its own first occurrence (a row of dashes) does not count, so that the first stays whole. What is
found is cut at whole lines where it covers any, else at character borders, and only while L bytes remain.
"""

from collections.abc import Iterator

import numpy as np

from tasks.common.kernels import kernel
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus
from tasks.dedup.minhash import I64, U8, U64, text_buffers
from tasks.dedup.near_duplicates import Fates

BYTES_A_WINDOW = 48

_FIRST_BASE, _SECOND_BASE = np.uint64(0xA0761D6478BD642F), np.uint64(0xE7037ED1A0B428DB)

_MIX = np.uint64(0xBF58476D1CE4E5B9)

_SHIFT = np.uint64(31)

_TABLE_BITS = 24


def _byte_values(seed: int) -> U64:
    return np.random.RandomState(seed).randint(0, 1 << 64, 256, dtype=np.uint64)


_FIRST_VALUES, _SECOND_VALUES = _byte_values(1), _byte_values(2)


@kernel
def _power(base, exponent):
    power = np.uint64(1)
    for _ in range(exponent):
        power *= base
    return power


@kernel
def _hash_windows(data, begin, end, length, base, values, out):
    """Hash of each window of data[begin:end]; there must be at least one."""
    rolling = np.uint64(0)
    for position in range(begin, begin + length):
        rolling = rolling * base + values[data[position]]
    power = _power(base, length)
    mixed = (rolling ^ (rolling >> _SHIFT)) * _MIX
    out[0] = mixed ^ (mixed >> _SHIFT)
    for position in range(begin + length, end):
        rolling = rolling * base + values[data[position]] - values[data[position - length]] * power
        mixed = (rolling ^ (rolling >> _SHIFT)) * _MIX
        out[position - begin - length + 1] = mixed ^ (mixed >> _SHIFT)


@kernel
def _in_range(data, offsets, rows, length, values, base, passes, number, room, out):
    """Hashes of all windows whose upper bits give `number` of `passes`; an `out` of size 0 only counts."""
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
        _hash_windows(data, begin, end, length, base, values, room)
        for index in range(windows):
            if passes == 1 or (room[index] >> shift) == number:
                if out.size:
                    out[count] = room[index]
                count += 1
    return count


@kernel
def _find(sorted_values, value):
    low, high = 0, sorted_values.size
    while low < high:
        middle = (low + high) // 2
        if sorted_values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low < sorted_values.size and sorted_values[low] == value


@kernel
def _places(data, offsets, rows, length, firsts, seconds, bases, again, seen, room, second_room, columns):
    """Windows whose first hash is in `again`: hash, second hash, row and place into `columns`; returns how many.

    `seen` is a bitmap over the hashes' lower bits that spares most searches.
    """
    mask = np.uint64(seen.size * 8 - 1)
    count = 0
    for row in rows:
        begin, end = offsets[row], offsets[row + 1]
        if end - begin < length:
            continue
        windows = end - begin - length + 1
        _hash_windows(data, begin, end, length, bases[0], firsts, room)
        hashed = False
        for index in range(windows):
            low = room[index] & mask
            if not (seen[low >> np.uint64(3)] >> (low & np.uint64(7))) & np.uint8(1):
                continue
            if not _find(again, room[index]):
                continue
            if columns.shape[1]:
                if not hashed:
                    _hash_windows(data, begin, end, length, bases[1], seconds, second_room)
                    hashed = True
                columns[0, count] = room[index]
                columns[1, count] = second_room[index]
                columns[2, count] = np.uint64(row)
                columns[3, count] = np.uint64(index)
            count += 1
    return count


@kernel
def _snapped(data, begin, end, start, stop, length):
    """data[start:stop] within data[begin:end] at whole lines, else at character borders; empty where too short."""
    while start < stop and (data[start] & 0xC0) == 0x80:
        start += 1
    while stop < end and stop > start and (data[stop] & 0xC0) == 0x80:
        stop -= 1
    first = start
    while first < stop and first > begin and data[first - 1] != 0x0A:
        first += 1
    last = stop
    while last > first and last < end and data[last - 1] != 0x0A:
        last -= 1
    if last - first >= length:
        return first, last
    if stop - start >= length:
        return start, stop
    return start, start


def repeated_substrings(corpus: Corpus, fates: Fates, config: DedupConfig) -> tuple[I64, I64, I64, I64]:
    """(Global rows, starts, ends, rows of the document in which the passage stays) of every cut, in order."""
    length = config.repeated_bytes
    assert length is not None
    parts = range(corpus.earlier_parts, len(corpus.parts))
    passes = passes_of(int(corpus.sizes.sum()), config.memory_bytes)
    found = [_copies(corpus, fates, parts, length, passes, number) for number in range(passes)]
    rows, places, firsts = np.concatenate([np.empty((3, 0), np.int64), *found], axis=1)
    order = np.lexsort((places, rows))
    return _joined(corpus, rows[order], places[order], firsts[order], length)


def passes_of(text_bytes: int, memory_bytes: int) -> int:
    """Passes (a power of two) in which the windows of so much text are compared within about `memory_bytes`."""
    return 1 << max(0, (-(-text_bytes * BYTES_A_WINDOW // memory_bytes) - 1).bit_length())


def _kept_texts(corpus: Corpus, fates: Fates, parts: range) -> Iterator[tuple[int, U8, I64, I64]]:
    for part in parts:
        data, offsets = text_buffers(corpus.texts_of_part(part))
        yield part, data, offsets, fates.kept_rows(corpus, part) - corpus.first_row[part]


def _copies(corpus: Corpus, fates: Fates, parts: range, length: int, passes: int, number: int) -> np.ndarray:
    """(Rows, places, rows of the first occurrence) of the windows of one range that have occurred before."""
    room = np.empty(int(corpus.sizes.max(initial=0)) + 1, np.uint64)
    hashes: list[U64] = []
    for _, data, offsets, rows in _kept_texts(corpus, fates, parts):
        arguments = (data, offsets, rows, length, _FIRST_VALUES, _FIRST_BASE, passes, np.uint64(number), room)
        out = np.empty(_in_range(*arguments, room[:0]), np.uint64)
        if out.size:
            _in_range(*arguments, out)
            hashes.append(out)
    together = np.concatenate([np.empty(0, np.uint64), *hashes])
    del hashes
    together.sort()
    again = np.unique(together[1:][together[1:] == together[:-1]])
    del together
    if not again.size:
        return np.empty((3, 0), np.int64)
    seen = _bitmap(again)
    bases = np.array([_FIRST_BASE, _SECOND_BASE])
    second_room = np.empty(room.size, np.uint64)
    columns: list[np.ndarray] = []
    for part, data, offsets, rows in _kept_texts(corpus, fates, parts):
        arguments = (data, offsets, rows, length, _FIRST_VALUES, _SECOND_VALUES, bases, again, seen, room, second_room)
        out = np.empty((4, _places(*arguments, np.empty((4, 0), np.uint64))), np.uint64)
        if out.shape[1]:
            _places(*arguments, out)
            out[2] += np.uint64(corpus.first_row[part])
            columns.append(out)
    first, second, rows, places = np.concatenate(columns, axis=1)
    rows, places = rows.astype(np.int64), places.astype(np.int64)
    order = np.lexsort((places, fates.rank[rows], second, first))
    first, second, rows, places = first[order], second[order], rows[order], places[order]
    opens = np.ones(first.size, np.bool_)
    opens[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    origin = np.flatnonzero(opens)[np.cumsum(opens) - 1]
    overlapping = (rows == rows[origin]) & (places < places[origin] + length)
    copy = ~opens & ~overlapping
    return np.stack([rows[copy], places[copy], rows[origin][copy]])


def _bitmap(values: U64) -> U8:
    """A bitmap over the lower bits of `values`, of about 16 bits a value (2^24 bits at least)."""
    bits = max(_TABLE_BITS, (values.size * 16).bit_length())
    bitmap = np.zeros((1 << bits) // 8, np.uint8)
    low = values & np.uint64((1 << bits) - 1)
    np.bitwise_or.at(bitmap, low >> np.uint64(3), np.uint8(1) << (low & np.uint64(7)).astype(np.uint8))
    return bitmap


def _joined(corpus: Corpus, rows: I64, places: I64, firsts: I64, length: int) -> tuple[I64, I64, I64, I64]:
    """Windows (by row and place) joined into passages, and these snapped."""
    opens = np.ones(rows.size, np.bool_)
    opens[1:] = (rows[1:] != rows[:-1]) | (places[1:] > places[:-1] + length)
    begins = np.flatnonzero(opens)
    ends = np.append(begins[1:], rows.size)[: begins.size] - 1
    cuts: list[tuple[int, int, int, int]] = []
    parts = np.searchsorted(corpus.first_row, rows[begins], side="right") - 1
    for part in np.unique(parts).tolist():
        data, offsets = text_buffers(corpus.texts_of_part(part))
        for index in np.flatnonzero(parts == part).tolist():
            row = int(rows[begins[index]])
            begin, end = offsets[row - corpus.first_row[part] : row - corpus.first_row[part] + 2].tolist()
            start, stop = begin + int(places[begins[index]]), begin + int(places[ends[index]]) + length
            start, stop = _snapped(data, begin, end, start, stop, length)
            if stop > start:
                cuts.append((row, start - begin, stop - begin, int(firsts[begins[index]])))
    table = np.array(cuts, np.int64).reshape(-1, 4)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]
