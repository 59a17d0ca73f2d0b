"""What to search for in documents: the words of every item, and an index of the short n-grams that lead to them.

An item is the row of its parts: each field of its context, each choice, each answer. Items without a part that is long
enough by itself, and contexts too short for a long seed, have short seeds (`seeds`) as well.

The index is a few arrays: hashes in order with the place of each in the words of all items, a directory by their first
bits, and a bitmap that answers most probes. Nothing in it is a Python object of an n-gram or an item.
"""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from model.errors import InputError
from model.kernels import kernel
from tasks.common.groups import begins_group, find_sorted
from tasks.common.utf8 import GOLDEN
from tasks.decontaminate.benchmarks import CHOICE, Item
from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.seeds import (
    CHARACTER_KIND,
    I64,
    KIND,
    LONG_CHARACTERS,
    LONG_SPAN,
    NUMBER_KIND,
    U32,
    U64,
    WORD_UNITS,
    hash_texts,
    join_pairs,
    long_seed,
    seeds_at,
    short_seed,
    units_of,
)

_DENSE_WORDS, _LONG_WORDS = 20, 40
"""In parts of more words every second place has a seed, or every third; any 13 words contain several of them."""

MOST_WORDS = 1 << 30
"""Twice the place of a word, and one bit, are a number of 32 bits with a sign."""

SMALL_PART = 12
_ITEMS_AT_ONCE = 20_000
_WORD_COUNTS, _FEW_ITEMS = 1 << 18, 1 << 12
_BITMAP_BITS_PER_SEED = 12
_BLOCK, _SIX_BITS = 6, np.uint64(63)
_SEEDS_PER_BUCKET = 2


class ItemIndex(NamedTuple):
    """The words of all items, their parts, and the seeds that lead to them."""

    words: U32
    """Hashes of all words of all parts in order; the lowest two bits are the kind of word."""
    letters: npt.NDArray[np.uint16]
    """Which letters occur an odd number of times in each word, as bits: a typing error changes at most two."""
    part_first: I64
    """Parts + 1 places in `words`."""
    part_characters: npt.NDArray[np.int32]
    """Characters of each part's text."""
    part_choice: npt.NDArray[np.bool_]
    """Whether the part is a choice or an answer; else it is of the context, or all that the item has."""
    part_own: npt.NDArray[np.bool_]
    """Whether a seed of the part leads to it; others are templates, or too short for any."""
    part_item: npt.NDArray[np.int32]
    item_first: I64
    """Items + 1 places in the list of parts."""
    block_part: npt.NDArray[np.int32]
    """The part of the first of every 64 words."""
    seeds: U64
    """Hashes of the seeds, ascending, one for each place that has it."""
    places: npt.NDArray[np.int32]
    """Twice the place in `words` where the seed begins, plus 1 where its part is so small that one seed has to do; the
    bits inverted where the seed is part of a template, which leads to no item."""
    directory: npt.NDArray[np.int32]
    """Where in `seeds` each value of a hash's first bits begins, and the end."""
    bitmaps: U64
    """One of long seeds, one of short ones, with two bits of a word for each seed."""
    bitmap_first: I64
    """Where each begins, and the end."""
    word_items: npt.NDArray[np.int32]
    """In how many items the words are whose hashes have these lowest bits, without the two of the kind."""

    @property
    def items(self) -> int:
        """Number of items."""
        return self.item_first.size - 1

    def information_of(self, places: I64) -> float:
        """Return the information of the distinct words at `places` in `words`, in bits.

        A word in one of n items has log2(n) bits, a word in all of them or a number has none. Few items do not show
        which words are usual: theirs count as in one of many.
        """
        words = np.unique(self.words[places])
        words = words[words & KIND != NUMBER_KIND]
        items = self.word_items[(words >> np.uint32(2)) & np.uint32(self.word_items.size - 1)]
        return float(np.log2(max(self.items, _FEW_ITEMS) / np.maximum(items, 1)).sum())

    def words_of(self, item: int) -> tuple[I64, I64]:
        """Return the first place of each part of an item, and the place after it."""
        bounds = self.part_first[self.item_first[item] : self.item_first[item + 1] + 1]
        return bounds[:-1], bounds[1:]

    def seed_places(self, first: int, last: int) -> I64:
        """Return where in `seeds` the seeds within `words[first:last]` are, without those that are not there."""
        long, tiny = seeds_at(self.words[first:last])
        places, is_there = find_sorted(self.seeds, np.concatenate([long, tiny]))
        return places[is_there]


def build_index(items: Iterable[Item], config: DecontaminateConfig) -> ItemIndex:
    """Build the index of `items`, in batches; about 30 bytes a word. Raises InputError for more than `MOST_WORDS`."""
    words, letters, lengths = [np.empty(0, np.uint32)], [np.empty(0, np.uint16)], [np.empty(0, np.int64)]
    characters, choice, counts = [np.empty(0, np.int32)], [np.empty(0, np.bool_)], [0]
    remaining = iter(items)
    while batch := list(islice(remaining, _ITEMS_AT_ONCE)):
        parts = [part for item in batch for part in item.searched]
        counts += [len(item.searched) for item in batch]
        choice.append(np.array([part.role == CHOICE for part in parts], np.bool_))
        characters.append(np.array([len(part.text.strip()) for part in parts], np.int32))
        hashed, lettered, sizes = hash_texts([part.text for part in parts])
        words.append(hashed)
        letters.append(lettered)
        lengths.append(sizes)
    all_words = np.concatenate(words)
    if all_words.size > MOST_WORDS:
        raise InputError(
            f"decontaminate.benchmarks: the items have {all_words.size:,} words, and at most {MOST_WORDS:,} can be"
            f" searched for at once. Name fewer benchmarks, and those left out in a run of their own."
        )
    part_first = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    item_first = np.cumsum(counts).astype(np.int64)
    part_choice = np.concatenate(choice)
    del words, lengths
    seeds, places, long = _all_seeds(all_words, part_first, part_choice, item_first, config.short_words * WORD_UNITS)
    bitmaps = [_bitmap(seeds[:long]), _bitmap(seeds[long:])]
    order = np.argsort(seeds, kind="stable")
    seeds, places = seeds[order], places[order]
    del order
    seeds, places = _without_templates(seeds, places, all_words, part_first, item_first, config.template_items)
    part_own = np.zeros(part_choice.size, np.bool_)
    part_own[np.searchsorted(part_first, places[places >= 0] >> 1, side="right") - 1] = True
    bits = max(1, (seeds.size // _SEEDS_PER_BUCKET).bit_length())
    directory = np.searchsorted(seeds, np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits))
    return ItemIndex(
        all_words,
        np.concatenate(letters),
        part_first,
        np.concatenate(characters),
        part_choice,
        part_own,
        np.repeat(np.arange(item_first.size - 1, dtype=np.int32), np.diff(item_first)),
        item_first,
        (np.searchsorted(part_first, np.arange(0, all_words.size + 1, 1 << _BLOCK), side="right") - 1).astype(np.int32),
        seeds,
        places,
        np.append(directory, seeds.size).astype(np.int32),
        np.concatenate(bitmaps),
        np.array([0, bitmaps[0].size, bitmaps[0].size + bitmaps[1].size]),
        _items_of_words(all_words, part_first[item_first]),
    )


@kernel
def _items_of_words(words, item_words):
    counts, last = np.zeros(_WORD_COUNTS, np.int32), np.full(_WORD_COUNTS, -1, np.int32)
    for item in range(item_words.size - 1):
        for place in range(item_words[item], item_words[item + 1]):
            at = (words[place] >> np.uint32(2)) & np.uint32(_WORD_COUNTS - 1)
            counts[at] += last[at] != item
            last[at] = item
    return counts


def _all_seeds(
    words: U32, part_first: I64, part_choice: npt.NDArray[np.bool_], item_first: I64, enough: int
) -> tuple[U64, npt.NDArray[np.int32], int]:
    """Return all seeds in order of the items, long ones before short ones, their places, and how many are long."""
    pairs = np.empty(int(np.diff(part_first).max(initial=0)) + 1, np.uint64)
    given = (words, part_first, part_choice, item_first, enough, pairs)
    long = _collect_seeds(*given, False, np.empty(0, np.uint64), np.empty(0, np.int32))
    short = _collect_seeds(*given, True, np.empty(0, np.uint64), np.empty(0, np.int32))
    seeds, places = np.empty(long + short, np.uint64), np.empty(long + short, np.int32)
    _collect_seeds(*given, False, seeds[:long], places[:long])
    _collect_seeds(*given, True, seeds[long:], places[long:])
    return seeds, places, long


@kernel
def _collect_seeds(words, part_first, part_choice, item_first, enough, pairs, short, seeds, places):
    """Write the long or the short seeds of all items, or count them where the outputs are empty."""
    filled = 0
    for item in range(item_first.size - 1):
        longest = 0
        for part in range(item_first[item], item_first[item + 1]):
            units = 0
            for at in range(part_first[part], part_first[part + 1]):
                units += units_of(words[at])
            longest = max(longest, units)
        for part in range(item_first[item], item_first[item + 1]):
            first, last = part_first[part], part_first[part + 1]
            span = LONG_CHARACTERS if _unspaced(words[first:last]) else LONG_SPAN
            if short and longest >= enough and (part_choice[part] or last - first >= span):
                continue
            here = words[first:last]
            join_pairs(here, here.size, pairs)
            step = 1 if here.size <= _DENSE_WORDS else 2 if here.size <= _LONG_WORDS else 3
            for at in range(0, here.size, step):
                seed = short_seed(here, pairs, at, here.size) if short else long_seed(here, pairs, at, here.size)
                if seed and _names_something(here, at):
                    if seeds.size:
                        seeds[filled], places[filled] = seed, 2 * (first + at) + (here.size <= SMALL_PART)
                    filled += 1
    return filled


@kernel
def _unspaced(words):
    characters = 0
    for word in words:
        characters += word & KIND == CHARACTER_KIND
    return 2 * characters > words.size


@kernel
def _names_something(words, at):
    """Return whether at most half of the words of a seed are numbers."""
    numbers = 0
    for word in words[at : at + LONG_SPAN]:
        numbers += word & KIND == NUMBER_KIND
    return numbers <= 2


def _without_templates(
    seeds: U64, places: npt.NDArray[np.int32], words: U32, part_first: I64, item_first: I64, limit: int
) -> tuple[U64, npt.NDArray[np.int32]]:
    """Return the seeds with one entry, its place inverted, for each that is in more than `limit` items.

    A passage of many questions is one text of more than `_LONG_WORDS` words, and counts once.
    """
    begins = np.flatnonzero(begins_group(seeds))
    sizes = np.diff(np.append(begins, seeds.size))
    many = sizes > limit
    if not many.any():
        return seeds, places
    inside = np.repeat(many, sizes)
    group = np.repeat(np.flatnonzero(many), sizes[many])
    parts = np.searchsorted(part_first, places[inside] >> 1, side="right") - 1
    items = np.searchsorted(item_first, parts, side="right") - 1
    long = np.diff(part_first)[parts] > _LONG_WORDS
    owners = np.where(long, _text_digests(words, part_first)[parts], items.astype(np.uint64))
    template = np.minimum(_distinct(group, owners, sizes.size), _distinct(group, items, sizes.size)) > limit
    kept = ~np.repeat(template, sizes)
    kept[begins[template]] = True
    places = places.copy()
    places[begins[template]] = ~places[begins[template]]
    return seeds[kept], places[kept]


def _distinct(group: I64, values: I64 | U64, groups: int) -> I64:
    """Return how many different values each group has."""
    order = np.lexsort((values, group))
    group, values = group[order], values[order]
    return np.bincount(group[begins_group(group, values)], minlength=groups).astype(np.int64)


@kernel
def _text_digests(words, part_first):
    digests = np.zeros(part_first.size - 1, np.uint64)
    for part in range(part_first.size - 1):
        for at in range(part_first[part], part_first[part + 1]):
            digests[part] = (digests[part] ^ np.uint64(words[at])) * GOLDEN
            digests[part] ^= digests[part] >> np.uint64(29)
    return digests


def _bitmap(seeds: U64) -> U64:
    bits = seeds.size * _BITMAP_BITS_PER_SEED
    bitmap = np.zeros(1 << max(0, (bits - 1).bit_length() - 6) if bits else 0, np.uint64)
    _fill_bitmap(seeds, bitmap)
    return bitmap


@kernel
def _fill_bitmap(seeds, bitmap):
    mask = np.uint64(bitmap.size - 1)
    for seed in seeds:
        bitmap[(seed >> np.uint64(8)) & mask] |= seed_bits(seed)


@kernel
def seed_bits(seed):
    """Return the two bits that a seed sets in its word of the bitmap."""
    low = np.uint64(1) << ((seed >> np.uint64(34)) & _SIX_BITS)
    return low | np.uint64(1) << ((seed >> np.uint64(40)) & _SIX_BITS)


@kernel
def part_at(place, part_first, block_part):
    """Return the part that has the word at `place`."""
    part = np.int64(block_part[place >> _BLOCK])
    while part_first[part + 1] <= place:
        part += 1
    return part
