"""What to look for in documents: every n-gram of every item, and short items as a whole, in one exact hash table.

A pattern is a run of words with a 64-bit hash. n-grams are patterns of `ngram` words; an item with fewer words is one
pattern of its full length, found by an anchor, its first 8 (or 4, or fewer) words, so that the scan makes one probe per
anchor length and word. A bitmap before each table answers most probes; the tables decide exactly.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.items import Item
from tasks.decontaminate.words import fold_table, hash_words, word_room
from tasks.kernels import kernel

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

BASE = np.uint64(0xA0761D6478BD642F)
SPREAD = np.uint64(0x9E3779B97F4A7C15)
_ANCHORS = (8, 4, 3, 2, 1)
_BITS_PER_SLOT = 4


@kernel
def _run_hashes(words, length):
    hashes = np.empty(max(0, words.size - length + 1), np.uint64)
    for begin in range(hashes.size):
        rolling = np.uint64(0)
        for index in range(begin, begin + length):
            rolling = rolling * BASE + words[index]
        hashes[begin] = rolling
    return hashes


@kernel
def _fill_table(anchors, first, slot_shift, bit_shift, slots, bitmap):
    """Enter the first pattern of every distinct anchor (they are sorted) by open addressing."""
    slot_mask = np.uint64(slots.size - 1)
    for index in range(anchors.size):
        spread = anchors[index] * SPREAD
        bit = spread >> bit_shift
        bitmap[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))
        if index > 0 and anchors[index] == anchors[index - 1]:
            continue
        slot = spread >> slot_shift
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & slot_mask
        slots[slot] = first + index


@dataclass(frozen=True)
class Patterns:
    """All patterns in order of (anchor length, anchor, length, hash), and where they occur in items."""

    anchors: U64
    lengths: I64
    """Words of each pattern."""
    hashes: U64
    group_lengths: I64
    """Anchor length of each group, longest first; groups + 1 boundaries in each of the next three."""
    group_patterns: I64
    group_slots: I64
    group_bits: I64
    slot_shifts: U64
    """A group's slot of an anchor is (anchor * SPREAD) >> slot_shift, its bit (anchor * SPREAD) >> bit_shift."""
    bit_shifts: U64
    slots: npt.NDArray[np.int32]
    bitmaps: U64
    posting_start: I64
    """Postings of pattern p stand at posting_start[p] : posting_start[p + 1], one per item that holds it."""
    posting_item: I64
    posting_word: I64
    """The first word in the item at which the pattern stands."""
    totals: I64
    """Distinct patterns of each item; 0 where the item cannot be matched."""
    item_words: I64
    """Words of each item."""
    short: npt.NDArray[np.bool_]
    """Whether the item is matched as a whole."""
    unspaced: npt.NDArray[np.bool_]
    """Whether most of the item's words are characters of scripts without blanks."""

    def __len__(self) -> int:
        return self.hashes.size


def build_patterns(items: list[Item], config: DecontaminateConfig) -> Patterns:
    """The patterns of `items`; deterministic, in memory (about 60 bytes per n-gram)."""
    columns: list[tuple[I64, U64, I64, U64, I64, I64]] = []
    totals, item_words = np.zeros(len(items), np.int64), np.zeros(len(items), np.int64)
    short, unspaced = np.zeros(len(items), np.bool_), np.zeros(len(items), np.bool_)
    for number, item in enumerate(items):
        words, own = _item_words(item.match_text)
        item_words[number] = words.size
        unspaced[number] = 2 * own > words.size
        length, anchor = config.ngram, config.ngram
        if words.size < config.ngram:
            short[number] = True
            if not words.size:
                continue
            if words.size < config.short_words and len(item.match_text.strip()) < config.short_chars:
                continue
            length = words.size
            anchor = next(size for size in _ANCHORS if size <= length)
        hashes = _run_hashes(words, length)
        anchors = hashes if anchor == length else _run_hashes(words, anchor)[: hashes.size]
        hashes, at = np.unique(hashes, return_index=True)
        totals[number] = hashes.size
        size = hashes.size
        columns.append(
            (
                np.full(size, anchor, np.int64),
                anchors[at],
                np.full(size, length, np.int64),
                hashes,
                np.full(size, number, np.int64),
                at.astype(np.int64),
            )
        )
    return _assemble(columns, totals, item_words, short, unspaced)


def _item_words(text: str) -> tuple[U64, int]:
    data = np.frombuffer(text.encode() or b" ", np.uint8)
    room = word_room(data.size)
    hashes, starts, ends = np.empty(room, np.uint64), np.empty(room, np.int64), np.empty(room, np.int64)
    table = fold_table()
    count, own = hash_words(data, 0, data.size, table.entries, table.pool, hashes, starts, ends)
    return hashes[:count].copy(), int(own)


def _assemble(
    columns: list[tuple[I64, U64, I64, U64, I64, I64]],
    totals: I64,
    item_words: I64,
    short: npt.NDArray[np.bool_],
    unspaced: npt.NDArray[np.bool_],
) -> Patterns:
    def column(index: int, kind: Any) -> Any:
        return np.concatenate([np.empty(0, kind), *(entry[index] for entry in columns)])

    anchor_length, lengths, owners, places = (column(index, np.int64) for index in (0, 2, 4, 5))
    anchors, hashes = column(1, np.uint64), column(3, np.uint64)
    order = np.lexsort((owners, hashes, lengths, anchors, -anchor_length))
    anchor_length, anchors, lengths, hashes = (part[order] for part in (anchor_length, anchors, lengths, hashes))
    opens = np.ones(order.size, np.bool_)
    opens[1:] = (hashes[1:] != hashes[:-1]) | (lengths[1:] != lengths[:-1]) | (anchors[1:] != anchors[:-1])
    firsts = np.flatnonzero(opens)
    anchor_length, anchors, lengths, hashes = (part[firsts] for part in (anchor_length, anchors, lengths, hashes))
    group_lengths = np.unique(anchor_length)[::-1].copy()
    slot_shifts, bit_shifts = [], []
    slots, bitmaps, pattern_bounds, slot_bounds, bit_bounds = [], [], [0], [0], [0]
    for length in group_lengths.tolist():
        members = anchors[anchor_length == length]
        power = max(4, int(2 * members.size - 1).bit_length())
        table = np.full(1 << power, -1, np.int32)
        bitmap = np.zeros(table.size * _BITS_PER_SLOT // 64, np.uint64)
        slot_shifts.append(64 - power)
        bit_shifts.append(64 - int(bitmap.size * 64 - 1).bit_length())
        _fill_table(members, pattern_bounds[-1], np.uint64(slot_shifts[-1]), np.uint64(bit_shifts[-1]), table, bitmap)
        slots.append(table)
        bitmaps.append(bitmap)
        pattern_bounds.append(pattern_bounds[-1] + members.size)
        slot_bounds.append(slot_bounds[-1] + table.size)
        bit_bounds.append(bit_bounds[-1] + bitmap.size)
    return Patterns(
        anchors=anchors,
        lengths=lengths,
        hashes=hashes,
        group_lengths=group_lengths,
        group_patterns=np.array(pattern_bounds),
        group_slots=np.array(slot_bounds),
        group_bits=np.array(bit_bounds),
        slot_shifts=np.array(slot_shifts, np.uint64),
        bit_shifts=np.array(bit_shifts, np.uint64),
        slots=np.concatenate([np.empty(0, np.int32), *slots]),
        bitmaps=np.concatenate([np.empty(0, np.uint64), *bitmaps]),
        posting_start=np.concatenate([firsts, [order.size]]).astype(np.int64),
        posting_item=owners[order],
        posting_word=places[order],
        totals=totals,
        item_words=item_words,
        short=short,
        unspaced=unspaced,
    )


def template_patterns(patterns: Patterns, items: list[Item], config: DecontaminateConfig) -> npt.NDArray[np.bool_]:
    """Patterns that stand in so many items of one benchmark that they are its template, not one item's text."""
    names = sorted({item.benchmark for item in items})
    number_of = {name: number for number, name in enumerate(names)}
    benchmark = np.array([number_of[item.benchmark] for item in items], np.int64)
    sizes = np.bincount(benchmark, minlength=len(names))
    pattern = np.repeat(np.arange(len(patterns)), np.diff(patterns.posting_start))
    pairs, counts = np.unique(pattern * len(names) + benchmark[patterns.posting_item], return_counts=True)
    limits = np.maximum(config.template_items, config.template_share * sizes)
    found = np.zeros(len(patterns), np.bool_)
    found[pairs[counts > limits[pairs % len(names)]] // len(names)] = True
    return found & ~patterns.short[patterns.posting_item[patterns.posting_start[:-1]]]
