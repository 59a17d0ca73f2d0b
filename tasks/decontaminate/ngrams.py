"""What to search for in documents: every n-gram of every item's texts, and short texts as a whole, in one exact table.

A pattern is a run of words with a 64-bit hash. n-grams are patterns of `ngram` words; a text with fewer words is one
pattern of its full length, found by an anchor, its first 8 (or 4, or fewer) words, so that the scan makes one probe per
anchor length and word. A bitmap before each table answers most probes; the tables decide exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.common.kernels import kernel
from tasks.decontaminate.benchmarks import Item
from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.normalize import GOLDEN, fold_table, hash_words, max_words

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
BASE = np.uint64(0xA0761D6478BD642F)
_ANCHORS = (8, 4, 3, 2, 1)
_BITMAP_BITS_PER_SLOT = 4


@dataclass(frozen=True)
class Patterns:
    """All patterns in order of (anchor length, anchor, length, hash), and where they occur in items' texts."""

    texts: tuple[str, ...]
    """Every text of the items that is searched for, in order of the items."""
    text_item: I64
    """The item of each text."""
    anchors: U64
    lengths: npt.NDArray[np.int16]
    """Words of each pattern."""
    hashes: U64
    group_lengths: I64
    """Anchor length of each group, longest first; groups + 1 boundaries in each of the next three."""
    group_patterns: I64
    group_slots: I64
    group_bits: I64
    slot_shifts: U64
    """A group's slot of an anchor is (anchor * GOLDEN) >> slot_shift, its bit (anchor * GOLDEN) >> bit_shift."""
    bit_shifts: U64
    slots: npt.NDArray[np.int32]
    bitmaps: U64
    posting_start: I64
    """Postings of pattern p are posting_start[p] : posting_start[p + 1], one per text that contains it."""
    posting_text: npt.NDArray[np.int32]
    posting_word: npt.NDArray[np.int32]
    """The first word of the pattern's occurrence in the text."""
    totals: I64
    """Distinct patterns of each text; 0 where the text cannot be matched."""
    text_words: I64
    """Words of each text."""
    short: npt.NDArray[np.bool_]
    """Whether the text is matched as a whole."""
    unsegmented: npt.NDArray[np.bool_]
    """Whether most of the text's words are characters of scripts without spaces."""

    def __len__(self) -> int:
        return self.hashes.size

    def item_totals(self, items: int) -> I64:
        """Return the most distinct patterns of a text of each item; 0 where the item cannot be matched."""
        found = np.zeros(items, np.int64)
        np.maximum.at(found, self.text_item, self.totals)
        return found

    def items_with(self, pattern: int) -> I64:
        """Return the items that contain a pattern, ascending."""
        posted = self.posting_text[self.posting_start[pattern] : self.posting_start[pattern + 1]]
        return np.unique(self.text_item[posted])

    def is_first_text(self, text: int) -> bool:
        """Return whether a text is its item's `match_text`, and not a part of the context by itself."""
        return text == 0 or self.text_item[text] != self.text_item[text - 1]

    def whole_texts(self) -> npt.NDArray[np.bool_]:
        """Return which patterns are short texts, matched as a whole."""
        return self.short[self.posting_text[self.posting_start[:-1]]]


def build_patterns(items: Sequence[Item], config: DecontaminateConfig) -> Patterns:
    """Build the patterns of `items`; deterministic, in memory (about 200 bytes per n-gram)."""
    texts = tuple(text for item in items for text in item.texts)
    text_item = np.repeat(np.arange(len(items)), [len(item.texts) for item in items]).astype(np.int64)
    column = pa.array([*texts, ""], pa.large_string())
    data = np.frombuffer(column.buffers()[2] or b" ", np.uint8)
    offsets = np.frombuffer(column.buffers()[1], np.int64)[: len(texts) + 1]
    capacity = max_words(int(np.diff(offsets).max(initial=0)))
    buffers = (np.empty(capacity, np.uint64), np.empty(capacity, np.int64), np.empty(capacity, np.int64))
    table = fold_table()
    counts, unsegmented_words = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
    _count_words(data, offsets, table.entries, table.pool, *buffers, counts, unsegmented_words)
    short = counts < config.ngram
    characters = np.array([len(text.strip()) for text in texts], np.int64)
    matchable = ~short | ((counts > 0) & ((counts >= config.short_words) | (characters >= config.short_chars)))
    lengths = np.where(short, counts, config.ngram)
    anchor_lengths = np.where(short, 0, config.ngram)
    for size in _ANCHORS:
        anchor_lengths[(anchor_lengths == 0) & (lengths >= size)] = size
    bounds = np.concatenate([[0], np.cumsum(np.where(matchable, counts - lengths + 1, 0))]).astype(np.int64)
    anchors, hashes = np.empty(bounds[-1], np.uint64), np.empty(bounds[-1], np.uint64)
    _write_patterns(
        data, offsets, table.entries, table.pool, lengths, anchor_lengths, bounds, *buffers, anchors, hashes
    )
    owners = np.repeat(np.arange(len(texts), dtype=np.int32), np.diff(bounds))
    places = (np.arange(bounds[-1]) - bounds[owners]).astype(np.int32)
    return _assemble(
        texts,
        text_item,
        anchors,
        hashes,
        owners,
        places,
        lengths,
        anchor_lengths,
        counts,
        short,
        2 * unsegmented_words > counts,
    )


@kernel
def _count_words(data, offsets, entries, pool, words, starts, ends, counts, unsegmented_counts):
    for text in range(counts.size):
        counts[text], unsegmented_counts[text] = hash_words(
            data, offsets[text], offsets[text + 1], entries, pool, words, starts, ends
        )


@kernel
def _write_patterns(
    data, offsets, entries, pool, lengths, anchor_lengths, bounds, words, starts, ends, anchors, hashes
):
    """Write the runs of `lengths[text]` words of each text that has patterns, from bounds[text] on, in order."""
    for text in range(lengths.size):
        if bounds[text] == bounds[text + 1]:
            continue
        hash_words(data, offsets[text], offsets[text + 1], entries, pool, words, starts, ends)
        for begin in range(bounds[text + 1] - bounds[text]):
            rolling = np.uint64(0)
            for index in range(lengths[text]):
                rolling = rolling * BASE + words[begin + index]
                if index == anchor_lengths[text] - 1:
                    anchors[bounds[text] + begin] = rolling
            hashes[bounds[text] + begin] = rolling


def _assemble(
    texts: tuple[str, ...],
    text_item: I64,
    anchors: U64,
    hashes: U64,
    owners: npt.NDArray[np.int32],
    places: npt.NDArray[np.int32],
    text_lengths: I64,
    anchor_lengths: I64,
    text_words: I64,
    short: npt.NDArray[np.bool_],
    unsegmented: npt.NDArray[np.bool_],
) -> Patterns:
    """Sort the runs group by group, merge equal ones into patterns, and insert each group into its table."""
    group_lengths = np.unique(anchor_lengths[owners])[::-1].copy()
    kept: dict[str, list[Any]] = {name: [] for name in ("anchors", "lengths", "hashes", "sizes", "owners", "places")}
    slots, bitmaps, slot_shifts, bit_shifts = [], [], [], []
    pattern_bounds, slot_bounds, bit_bounds = [0], [0], [0]
    for group in group_lengths.tolist():
        members = np.flatnonzero(anchor_lengths[owners] == group)
        # Stable sorts: runs are in order of their texts and places, and remain so within a pattern.
        if short[owners[members[0]]]:
            members = members[np.lexsort((hashes[members], text_lengths[owners[members]], anchors[members]))]
        else:
            members = members[np.argsort(hashes[members], kind="stable")]
        text_of = owners[members]
        is_first = np.ones(members.size, np.bool_)
        is_first[1:] = hashes[members[1:]] != hashes[members[:-1]]
        is_first[1:] |= (anchors[members[1:]] != anchors[members[:-1]]) | (np.diff(text_lengths[text_of]) != 0)
        is_repeat = ~is_first
        is_repeat[1:] &= text_of[1:] == text_of[:-1]
        members, text_of, is_first = members[~is_repeat], text_of[~is_repeat], is_first[~is_repeat]
        firsts = np.flatnonzero(is_first)
        kept["sizes"].append(np.diff(np.append(firsts, members.size)))
        kept["owners"].append(text_of)
        kept["places"].append(places[members])
        kept["lengths"].append(text_lengths[text_of[firsts]].astype(np.int16))
        kept["hashes"].append(hashes[members[firsts]])
        kept["anchors"].append(anchors[members[firsts]])
        power = max(4, int(2 * firsts.size - 1).bit_length())
        table = np.full(1 << power, -1, np.int32)
        bitmap = np.zeros(max(1, table.size * _BITMAP_BITS_PER_SLOT // 64), np.uint64)
        slot_shifts.append(64 - power)
        bit_shifts.append(64 - int(bitmap.size * 64 - 1).bit_length())
        _fill_table(
            kept["anchors"][-1],
            pattern_bounds[-1],
            np.uint64(slot_shifts[-1]),
            np.uint64(bit_shifts[-1]),
            table,
            bitmap,
        )
        slots.append(table)
        bitmaps.append(bitmap)
        pattern_bounds.append(pattern_bounds[-1] + firsts.size)
        slot_bounds.append(slot_bounds[-1] + table.size)
        bit_bounds.append(bit_bounds[-1] + bitmap.size)

    def joined(name: str, kind: Any) -> Any:
        return np.concatenate([np.empty(0, kind), *kept[name]])

    posting_text = joined("owners", np.int32)
    return Patterns(
        texts=texts,
        text_item=text_item,
        anchors=joined("anchors", np.uint64),
        lengths=joined("lengths", np.int16),
        hashes=joined("hashes", np.uint64),
        group_lengths=group_lengths,
        group_patterns=np.array(pattern_bounds),
        group_slots=np.array(slot_bounds),
        group_bits=np.array(bit_bounds),
        slot_shifts=np.array(slot_shifts, np.uint64),
        bit_shifts=np.array(bit_shifts, np.uint64),
        slots=np.concatenate([np.empty(0, np.int32), *slots]),
        bitmaps=np.concatenate([np.empty(0, np.uint64), *bitmaps]),
        posting_start=np.concatenate([[0], np.cumsum(joined("sizes", np.int64))]).astype(np.int64),
        posting_text=posting_text,
        posting_word=joined("places", np.int32),
        totals=np.bincount(posting_text, minlength=len(texts)).astype(np.int64),
        text_words=text_words,
        short=short,
        unsegmented=unsegmented,
    )


@kernel
def _fill_table(anchors, first, slot_shift, bit_shift, slots, bitmap):
    """Insert the first pattern of every distinct anchor (they are sorted) by open addressing."""
    slot_mask = np.uint64(slots.size - 1)
    for index in range(anchors.size):
        spread = anchors[index] * GOLDEN
        bit = spread >> bit_shift
        bitmap[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))
        if index > 0 and anchors[index] == anchors[index - 1]:
            continue
        slot = spread >> slot_shift
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & slot_mask
        slots[slot] = first + index


def template_patterns(patterns: Patterns, items: Sequence[Item], limit: int) -> npt.NDArray[np.bool_]:
    """Return the patterns in more than `limit` items of one benchmark: its template, not one item's text."""
    numbers = {name: number for number, name in enumerate(sorted({item.benchmark for item in items}))}
    benchmark = np.array([numbers[item.benchmark] for item in items], np.int64)
    sizes = np.diff(patterns.posting_start)
    found = np.zeros(len(patterns), np.bool_)
    for pattern in np.flatnonzero(sizes > limit).tolist():
        found[pattern] = np.bincount(benchmark[patterns.items_with(pattern)]).max() > limit
    return found
