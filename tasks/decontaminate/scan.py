"""One pass over the documents for all benchmarks at once, which finds every occurrence of every pattern.

Words are hashed from the Arrow buffer, a run's hash comes from polynomial prefix sums in constant time, and one probe
per anchor length and word finds its patterns. What the table finds by 64-bit hash is then verified word by word against
the item's own words, so every hit is certain.
"""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.common.kernels import kernel
from tasks.decontaminate.ngrams import BASE, I64, Patterns
from tasks.decontaminate.normalize import GOLDEN, Word, fold_table, fold_words, hash_words, max_words

_FIRST_CAPACITY = 1 << 16


@dataclass(frozen=True)
class Hits:
    """Verified occurrences of patterns, in order of (row, word): parallel arrays."""

    row: I64
    pattern: I64
    word: I64
    """Index of the first word within the document."""
    start: I64
    end: I64
    """UTF-8 bytes within the document's text, half-open."""

    def __len__(self) -> int:
        return self.row.size

    def select(self, which: npt.NDArray[np.bool_]) -> "Hits":
        """Return the hits where `which` holds."""
        return Hits(*(getattr(self, name)[which] for name in ("row", "pattern", "word", "start", "end")))


def scan_texts(data: npt.NDArray[np.uint8], offsets: I64, patterns: Patterns) -> Hits:
    """Return every occurrence of every pattern, by hash, in the texts of an Arrow large_string column's buffers."""
    found: list[I64] = []
    if len(patterns) and offsets.size > 1:
        table = fold_table()
        capacity = max_words(int(np.diff(offsets).max()))
        longest = int(patterns.lengths.max())
        powers = _powers(max(longest, int(patterns.group_lengths.max())))
        words, prefix = np.empty(capacity, np.uint64), np.empty(capacity + 1, np.uint64)
        starts, ends = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        out = np.empty((5, _FIRST_CAPACITY), np.int64)
        row = 0
        while row < offsets.size - 1:
            filled, next_row = _scan_rows(
                data, offsets, row, table.entries, table.pool,
                patterns.group_lengths, patterns.group_patterns, patterns.group_slots, patterns.group_bits,
                patterns.slot_shifts, patterns.bit_shifts,
                patterns.slots, patterns.bitmaps, patterns.anchors, patterns.lengths, patterns.hashes,
                words, starts, ends, prefix, powers, out,
            )  # fmt: skip
            found.append(out[:, :filled].copy())
            if next_row == row:
                out = np.empty((5, 2 * out.shape[1]), np.int64)
            row = next_row
    hits = np.concatenate([np.empty((5, 0), np.int64), *found], axis=1)
    order = np.lexsort((hits[1], hits[2], hits[0]))
    return Hits(*hits[:, order])


def _powers(longest: int) -> npt.NDArray[np.uint64]:
    powers = np.empty(longest + 1, np.uint64)
    powers[0] = 1
    for exponent in range(longest):
        powers[exponent + 1] = (int(powers[exponent]) * int(BASE)) & ((1 << 64) - 1)
    return powers


@kernel
def _scan_rows(
    data, offsets, first_row, entries, pool,
    group_lengths, group_patterns, group_slots, group_bits, slot_shifts, bit_shifts,
    slots, bitmaps, anchors, lengths, hashes,
    words, starts, ends, prefix, powers, out,
):  # fmt: skip
    """Write hits of rows from `first_row` on into `out` (5, capacity); returns (hits, next row).

    Stops before a row that does not fit.
    """
    filled = 0
    for row in range(first_row, offsets.size - 1):
        begin_of_row = filled
        count, _ = hash_words(data, offsets[row], offsets[row + 1], entries, pool, words, starts, ends)
        prefix[0] = np.uint64(0)
        for index in range(count):
            prefix[index + 1] = prefix[index] * BASE + words[index]
        for group in range(group_lengths.size):
            length = group_lengths[group]
            power = powers[length]
            slot_base, slot_mask = group_slots[group], group_slots[group + 1] - group_slots[group] - 1
            slot_shift, bit_shift = slot_shifts[group], bit_shifts[group]
            bitmap = bitmaps[group_bits[group] : group_bits[group + 1]]
            last = group_patterns[group + 1]
            for word in range(count - length + 1):
                anchor = prefix[word + length] - prefix[word] * power
                spread = anchor * GOLDEN
                bit = spread >> bit_shift
                if not (bitmap[bit >> np.uint64(6)] >> (bit & np.uint64(63))) & np.uint64(1):
                    continue
                slot = np.int64(spread >> slot_shift)
                pattern = np.int64(slots[slot_base + slot])
                while pattern >= 0 and anchors[pattern] != anchor:
                    slot = (slot + 1) & slot_mask
                    pattern = np.int64(slots[slot_base + slot])
                while 0 <= pattern < last and anchors[pattern] == anchor:
                    whole = lengths[pattern]
                    if word + whole <= count and (
                        prefix[word + whole] - prefix[word] * powers[whole] == hashes[pattern]
                    ):
                        if filled == out.shape[1]:
                            return begin_of_row, row
                        out[0, filled], out[1, filled], out[2, filled] = row, pattern, word
                        out[3, filled], out[4, filled] = starts[word], ends[word + whole - 1]
                        filled += 1
                    pattern += 1
    return filled, offsets.size - 1


class Verifier:
    """Checks hits word by word in plain Python, run by run of touching hits."""

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._words_of = functools.lru_cache(maxsize=4096)(self._fold_text)

    def _fold_text(self, text: int) -> list[str]:
        return [word.text for word in fold_words(self._patterns.texts[text])]

    def pattern_words(self, pattern: int) -> list[str]:
        """Return the folded words of a pattern, from the first text that contains it."""
        posting = int(self._patterns.posting_start[pattern])
        word = int(self._patterns.posting_word[posting])
        length = int(self._patterns.lengths[pattern])
        return self._words_of(int(self._patterns.posting_text[posting]))[word : word + length]

    def verified(self, data: npt.NDArray[np.uint8], offsets: I64, hits: Hits) -> Hits:
        """Return the hits whose words are truly those of their pattern."""
        good = np.zeros(len(hits), np.bool_)
        first = 0
        while first < len(hits):
            row, run_end, last = hits.row[first], hits.end[first], first + 1
            while last < len(hits) and hits.row[last] == row and hits.start[last] <= run_end:
                run_end = max(run_end, hits.end[last])
                last += 1
            base = int(hits.start[first])
            begin = int(offsets[row])
            words = fold_words(data[begin + base : begin + int(run_end)].tobytes().decode())
            places = _words_by_start(words)
            for hit in range(first, last):
                expected = self.pattern_words(int(hits.pattern[hit]))
                good[hit] = any(
                    [word.text for word in words[place : place + len(expected)]] == expected
                    for place in places.get(int(hits.start[hit]) - base, ())
                )
            first = last
        return hits.select(good)


def _words_by_start(words: list[Word]) -> dict[int, list[int]]:
    """Return byte where a word begins -> the words that begin there (a compatibility character may contain several)."""
    places: dict[int, list[int]] = {}
    for index, word in enumerate(words):
        places.setdefault(word.start, []).append(index)
    return places


def text_buffers(texts: pa.LargeStringArray) -> tuple[npt.NDArray[np.uint8], I64]:
    """Return the UTF-8 bytes of an Arrow column of texts and the rows + 1 offsets into them, without a copy."""
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer or b"\0" * 8, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(data_buffer if data_buffer is not None and data_buffer.size else b" ", np.uint8)
    return data, offsets
