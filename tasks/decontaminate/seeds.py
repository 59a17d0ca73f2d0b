"""The words of texts as numbers, what each is as evidence, and the seeds that a few words in a row are.

A seed is four words of five in a row (the third may differ), so that one changed word within seven leaves a seed on its
other side or around it; in scripts without spaces, eight characters of nine. A short seed is three words, or six
characters. Numbers are equal in a seed, whatever their digits. Spaced seeds: Ma, Tromp and Li 2002, PatternHunter.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model.kernels import kernel
from tasks.artifacts.tables.columns import text_buffers
from tasks.common.utf8 import GOLDEN, ROLLING_BASE
from tasks.decontaminate.normalize import CHARACTER, NUMBER, fold_table, hash_words, max_words

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]

WORD_UNITS, CHARACTER_UNITS = 3, 2
"""Evidence is counted in thirds of a word, of which a character of a script without spaces has two."""

LONG_SPAN, SHORT_SPAN = 5, 3
LONG_CHARACTERS, _SHORT_CHARACTERS = 9, 6
_TINY = np.uint64(0x9FB21C651E98DF25)
_LOW_BITS = np.uint64(3)
KIND = np.uint32(3)
"""Bits of a word that say whether it is a number, or a character of a script without spaces."""

NUMBER_KIND, CHARACTER_KIND = np.uint32(NUMBER), np.uint32(CHARACTER)


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
    return one == other or (one & KIND == NUMBER_KIND and other & KIND == NUMBER_KIND)


@kernel
def units_of(word):
    """Return the evidence that a word is, in thirds of a word; a number is none."""
    kind = word & KIND
    if kind == NUMBER_KIND:
        return 0
    return CHARACTER_UNITS if kind == CHARACTER_KIND else WORD_UNITS


def seeds_at(words: U32) -> tuple[U64, U64]:
    """Return the long and the short seeds that begin at any place of words."""
    pairs = np.empty(max(1, words.size), np.uint64)
    long, tiny = np.zeros(words.size, np.uint64), np.zeros(words.size, np.uint64)
    _write_seeds(words, pairs, long, tiny)
    return long[long > 0], tiny[tiny > 0]


@kernel
def _write_seeds(words, pairs, long, tiny):
    join_pairs(words, words.size, pairs)
    for at in range(words.size):
        long[at], tiny[at] = long_seed(words, pairs, at, words.size), short_seed(words, pairs, at, words.size)


@kernel
def join_pairs(words, count, pairs):
    """Write the joined values of each two neighbours."""
    for at in range(count - 1):
        pairs[at] = seed_value(words[at]) * GOLDEN + seed_value(words[at + 1])


@kernel
def long_seed(words, pairs, at, last):
    """Return the hash of the long seed at `at` of words that end at `last`; 0 where it would be longer.

    pairs[i] joins the values of the words i and i + 1.
    """
    if at + 1 < last and (words[at] & KIND == CHARACTER_KIND or words[at + 1] & KIND == CHARACTER_KIND):
        if at + LONG_CHARACTERS > last:
            return np.uint64(0)
        first = (pairs[at] * ROLLING_BASE + pairs[at + 2]) * ROLLING_BASE
        return mixed((first + pairs[at + 5]) * ROLLING_BASE + pairs[at + 7])
    if at + LONG_SPAN > last:
        return np.uint64(0)
    return spaced_long_seed(pairs, at)


@kernel
def short_seed(words, pairs, at, last):
    """Return the hash of the short seed at `at`; 0 where it would be longer than the words."""
    if at + 1 < last and (words[at] & KIND == CHARACTER_KIND or words[at + 1] & KIND == CHARACTER_KIND):
        if at + _SHORT_CHARACTERS > last:
            return np.uint64(0)
        return mixed(((pairs[at] * ROLLING_BASE + pairs[at + 2]) * ROLLING_BASE + pairs[at + 4]) ^ _TINY)
    if at + SHORT_SPAN > last:
        return np.uint64(0)
    return spaced_short_seed(words, pairs, at)


@kernel
def spaced_long_seed(pairs, at):
    """Return the hash of a long seed of words with spaces between."""
    return mixed(pairs[at] * ROLLING_BASE + pairs[at + 3])


@kernel
def spaced_short_seed(words, pairs, at):
    """Return the hash of a short seed of words with spaces between."""
    return mixed((pairs[at] * ROLLING_BASE + seed_value(words[at + 2])) ^ _TINY)


@kernel
def seed_value(word):
    """Return what a word is in a seed: itself, or the same for all numbers."""
    return np.uint64(NUMBER) if word & KIND == NUMBER_KIND else np.uint64(word)


@kernel
def mixed(value):
    """Return a hash whose first bits depend on all of `value`; never 0."""
    value ^= value >> np.uint64(32)
    return (value * GOLDEN) | np.uint64(1)
