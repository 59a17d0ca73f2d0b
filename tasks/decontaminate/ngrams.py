"""What to search for in documents: the words of every item, and an index of the short n-grams that lead to them.

An item is the row of its parts: each field of its context, each choice, each answer. A seed is four words of five in a
row (the third may differ), so that one changed word within seven leaves a seed on its other side or around it; in
scripts without spaces, eight characters of nine. Items without a part that is long enough by itself, and contexts too
short for such a seed, have seeds of three words, or six characters, as well. Numbers are equal in a seed, whatever
their digits. Spaced seeds: Ma, Tromp and Li 2002, PatternHunter.

The index is a few arrays: hashes in order with the place of each in the words of all items, a directory by their first
bits, and a bitmap that answers most probes. Nothing in it is a Python object of an n-gram or an item.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model.kernels import kernel
from tasks.artifacts.tables.columns import text_buffers
from tasks.common.groups import begins_group
from tasks.decontaminate.benchmarks import CHOICE, Item
from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.normalize import CHARACTER, GOLDEN, NUMBER, fold_table, hash_words, max_words

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
BASE = np.uint64(0xA0761D6478BD642F)
WORD_UNITS, CHARACTER_UNITS = 3, 2
"""Evidence is counted in thirds of a word, of which a character of a script without spaces has two."""

LONG_SPAN, SHORT_SPAN = 5, 3
_LONG_CHARACTERS, _SHORT_CHARACTERS = 9, 6
_DENSE_WORDS, _LONG_WORDS = 20, 40
"""In parts of more words every second place has a seed, or every third; any 13 words contain several of them."""

SMALL_PART = 12
_ITEMS_AT_ONCE = 20_000
_WORD_COUNTS, _FEW_ITEMS = 1 << 18, 1 << 12
_BITMAP_BITS_PER_SEED = 12
_BLOCK, _SIX_BITS = 6, np.uint64(63)
_SEEDS_PER_BUCKET = 2
_TINY = np.uint64(0x9FB21C651E98DF25)
_LOW_BITS = np.uint64(3)
KIND = np.uint32(3)
"""Bits of a word that say whether it is a number, or a character of a script without spaces."""

_NUMBER_KIND, CHARACTER_KIND = np.uint32(NUMBER), np.uint32(CHARACTER)


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
        words = words[words & KIND != _NUMBER_KIND]
        items = self.word_items[(words >> np.uint32(2)) & np.uint32(self.word_items.size - 1)]
        return float(np.log2(max(self.items, _FEW_ITEMS) / np.maximum(items, 1)).sum())

    def words_of(self, item: int) -> tuple[I64, I64]:
        """Return the first place of each part of an item, and the place after it."""
        bounds = self.part_first[self.item_first[item] : self.item_first[item + 1] + 1]
        return bounds[:-1], bounds[1:]

    def seed_places(self, first: int, last: int) -> I64:
        """Return where in `seeds` the seeds within `words[first:last]` are, without those that are not there."""
        long, tiny = _seeds_at(self.words[first:last])
        places, is_there = find_sorted(self.seeds, np.concatenate([long, tiny]))
        return places[is_there]


def build_index(items: Iterable[Item], config: DecontaminateConfig) -> ItemIndex:
    """Build the index of `items`, in batches; about 30 bytes a word."""
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


def find_sorted(values: npt.NDArray[np.integer], sought: npt.NDArray[np.integer]) -> tuple[I64, npt.NDArray[np.bool_]]:
    """Return the first place of each of `sought` in ascending `values`, and which are there; the place of another is
    that of the next larger value, or the end."""
    places = np.searchsorted(values, sought)
    is_there = places < values.size
    is_there[is_there] = values[places[is_there]] == sought[is_there]
    return places, is_there


def hash_texts(texts: Sequence[str]) -> tuple[U32, npt.NDArray[np.uint16], I64]:
    """Return words and letters of all texts, as in `ItemIndex`, and how many words each text has."""
    data, offsets = text_buffers(pa.array(texts, pa.large_string()))
    capacity = max_words(int(np.diff(offsets).max(initial=0)))
    buffers = (np.empty(capacity, np.uint64), np.empty(capacity, np.int64), np.empty(capacity, np.int64))
    counts = np.zeros(len(texts), np.int64)
    found, letters = np.empty(max_words(int(offsets[-1])), np.uint32), np.empty(max_words(int(offsets[-1])), np.uint16)
    filled = _hash_texts(data, offsets, fold_table(), *buffers, counts, found, letters)
    return found[:filled].copy(), letters[:filled].copy(), counts


@kernel
def _hash_texts(data, offsets, table, words, starts, ends, counts, found, letters):
    filled = 0
    for text in range(counts.size):
        counts[text] = hash_words(data, offsets[text], offsets[text + 1], table, words, starts, ends)
        for word in range(counts[text]):
            found[filled] = narrow(words[word])
            letters[filled] = odd_letters(data, offsets[text] + starts[word], offsets[text] + ends[word])
            filled += 1
    return filled


@kernel
def _items_of_words(words, item_words):
    counts, last = np.zeros(_WORD_COUNTS, np.int32), np.full(_WORD_COUNTS, -1, np.int32)
    for item in range(item_words.size - 1):
        for place in range(item_words[item], item_words[item + 1]):
            at = (words[place] >> np.uint32(2)) & np.uint32(_WORD_COUNTS - 1)
            counts[at] += last[at] != item
            last[at] = item
    return counts


@kernel
def odd_letters(data, start, end):
    """Return which letters, of sixteen classes, the bytes have an odd number of; of ASCII without case."""
    odd = np.uint16(0)
    for at in range(start, end):
        odd ^= np.uint16(1) << np.uint16(data[at] & 15)
    return odd


@kernel
def narrow(word):
    """Return a word's hash in 32 bits, with its kind in the lowest two."""
    return np.uint32((word >> np.uint64(32)) & ~_LOW_BITS) | np.uint32(word & _LOW_BITS)


@kernel
def same_word(one, other):
    """Return whether two words are equal, or both numbers."""
    return one == other or (one & KIND == _NUMBER_KIND and other & KIND == _NUMBER_KIND)


@kernel
def seed_value(word):
    """Return what a word is in a seed: itself, or the same for all numbers."""
    return np.uint64(NUMBER) if word & KIND == _NUMBER_KIND else np.uint64(word)


@kernel
def long_seed(words, pairs, at, last):
    """Return the hash of the long seed at `at` of words that end at `last`; 0 where it would be longer.

    pairs[i] joins the values of the words i and i + 1.
    """
    if at + 1 < last and (words[at] & KIND == CHARACTER_KIND or words[at + 1] & KIND == CHARACTER_KIND):
        if at + _LONG_CHARACTERS > last:
            return np.uint64(0)
        first = (pairs[at] * BASE + pairs[at + 2]) * BASE
        return mixed((first + pairs[at + 5]) * BASE + pairs[at + 7])
    if at + LONG_SPAN > last:
        return np.uint64(0)
    return spaced_long_seed(pairs, at)


@kernel
def short_seed(words, pairs, at, last):
    """Return the hash of the short seed at `at`; 0 where it would be longer than the words."""
    if at + 1 < last and (words[at] & KIND == CHARACTER_KIND or words[at + 1] & KIND == CHARACTER_KIND):
        if at + _SHORT_CHARACTERS > last:
            return np.uint64(0)
        return mixed(((pairs[at] * BASE + pairs[at + 2]) * BASE + pairs[at + 4]) ^ _TINY)
    if at + SHORT_SPAN > last:
        return np.uint64(0)
    return spaced_short_seed(words, pairs, at)


@kernel
def spaced_long_seed(pairs, at):
    """Return the hash of a long seed of words with spaces between."""
    return mixed(pairs[at] * BASE + pairs[at + 3])


@kernel
def spaced_short_seed(words, pairs, at):
    """Return the hash of a short seed of words with spaces between."""
    return mixed((pairs[at] * BASE + seed_value(words[at + 2])) ^ _TINY)


@kernel
def mixed(value):
    """Return a hash whose first bits depend on all of `value`; never 0."""
    value ^= value >> np.uint64(32)
    return (value * GOLDEN) | np.uint64(1)


@kernel
def join_pairs(words, count, pairs):
    """Write the joined values of each two neighbours."""
    for at in range(count - 1):
        pairs[at] = seed_value(words[at]) * GOLDEN + seed_value(words[at + 1])


@kernel
def units_of(word):
    """Return the evidence that a word is, in thirds of a word; a number is none."""
    kind = word & KIND
    if kind == _NUMBER_KIND:
        return 0
    return CHARACTER_UNITS if kind == CHARACTER_KIND else WORD_UNITS


def _seeds_at(words: U32) -> tuple[U64, U64]:
    pairs = np.empty(max(1, words.size), np.uint64)
    long, tiny = np.zeros(words.size, np.uint64), np.zeros(words.size, np.uint64)
    _write_seeds(words, pairs, long, tiny)
    return long[long > 0], tiny[tiny > 0]


@kernel
def _write_seeds(words, pairs, long, tiny):
    join_pairs(words, words.size, pairs)
    for at in range(words.size):
        long[at], tiny[at] = long_seed(words, pairs, at, words.size), short_seed(words, pairs, at, words.size)


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
            span = _LONG_CHARACTERS if _unspaced(words[first:last]) else LONG_SPAN
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
        numbers += word & KIND == _NUMBER_KIND
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
