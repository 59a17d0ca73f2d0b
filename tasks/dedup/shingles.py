"""Word shingles of a text as 64-bit hashes, straight from its UTF-8 bytes.

A word is a run of letters, digits, marks and underscores, lower-cased (`\\w+`, and marks that `\\w` leaves out); in
scripts without blanks each character is a word. A shingle is `width` consecutive words; a text with fewer words has one
shingle of all of them, and a text without any word has one of its raw bytes, so that every document can be compared.
The upper 32 bits of a shingle's hash feed MinHash, all 64 stand for the shingle where true Jaccard similarity is
computed.
"""

import functools
import unicodedata

import numpy as np
import numpy.typing as npt

from tasks.kernels import kernel
from tasks.scripts import is_unspaced

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

_TABLE_SIZE = 0x20000
_OWN_WORD = np.uint32(1 << 31)
_BEYOND_FIRST, _BEYOND_LAST = 0x20000, 0x3FFFD
_BASIS = np.uint64(0xCBF29CE484222325)
_WORD_PRIME = np.uint64(0x9E3779B97F4A7C15)
_WORD_FINISH = np.uint64(0xD6E8FEB86659FD93)
_SHINGLE_BASE = np.uint64(0xA0761D6478BD642F)
_FEW_WORDS = np.uint64(0xE7037ED1A0B428DB)
_NO_WORDS = np.uint64(0x8EBC6AF09C88C6E3)
_MIX1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX2 = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT32 = np.uint64(32)
_SHIFT33 = np.uint64(33)


@functools.cache
def fold_table() -> U32:
    """Code point below 0x20000 -> 0 where it separates words, else its lower case; the top bit marks a word of one
    character. Code points above are ideographs (words of one character) or separators."""
    table = np.zeros(_TABLE_SIZE, np.uint32)
    for codepoint in range(_TABLE_SIZE):
        character = chr(codepoint)
        if character == "_" or unicodedata.category(character)[0] in "LNM":
            lower = character.lower()
            folded = ord(lower) if len(lower) == 1 else codepoint
            table[codepoint] = folded | (int(_OWN_WORD) if is_unspaced(codepoint) else 0)
    table.setflags(write=False)
    return table


@kernel
def _finish_word(state):
    state ^= state >> _SHIFT32
    return state * _WORD_FINISH


@kernel
def _mix(value):
    value ^= value >> _SHIFT33
    value *= _MIX1
    value ^= value >> _SHIFT33
    value *= _MIX2
    return value ^ (value >> _SHIFT33)


@kernel
def hash_words(data, start, end, fold, words):
    """Write the hash of each word of data[start:end] into `words`; returns how many there are."""
    count = 0
    state = _BASIS
    inside = False
    position = start
    while position < end:
        byte = data[position]
        if byte < 0x80:
            codepoint = np.int64(byte)
            position += 1
        elif byte < 0xE0:
            codepoint = (np.int64(byte & 0x1F) << 6) | np.int64(data[position + 1] & 0x3F)
            position += 2
        elif byte < 0xF0:
            codepoint = (
                (np.int64(byte & 0x0F) << 12)
                | (np.int64(data[position + 1] & 0x3F) << 6)
                | np.int64(data[position + 2] & 0x3F)
            )
            position += 3
        else:
            codepoint = (
                (np.int64(byte & 0x07) << 18)
                | (np.int64(data[position + 1] & 0x3F) << 12)
                | (np.int64(data[position + 2] & 0x3F) << 6)
                | np.int64(data[position + 3] & 0x3F)
            )
            position += 4
        if codepoint < _TABLE_SIZE:
            folded = fold[codepoint]
        elif _BEYOND_FIRST <= codepoint <= _BEYOND_LAST:
            folded = np.uint32(codepoint) | _OWN_WORD
        else:
            folded = np.uint32(0)
        if folded != 0 and folded < _OWN_WORD:
            state = (state ^ np.uint64(folded)) * _WORD_PRIME
            inside = True
            continue
        if inside:
            words[count] = _finish_word(state)
            count += 1
            state = _BASIS
            inside = False
        if folded != 0:
            words[count] = _finish_word((_BASIS ^ np.uint64(folded)) * _WORD_PRIME)
            count += 1
    if inside:
        words[count] = _finish_word(state)
        count += 1
    return count


@kernel
def hash_shingles(data, start, end, fold, width, words, shingles):
    """Write the hash of each shingle of data[start:end] into `shingles`; returns how many there are (at least one).

    `words` and `shingles` are buffers of at least (end - start) // 2 + 2 values; a shingle that occurs twice is written
    twice. Polynomial rolling hash over the words' hashes modulo 2^64, then a mixer.
    """
    count = hash_words(data, start, end, fold, words)
    if count == 0:
        state = _NO_WORDS
        for position in range(start, end):
            state = (state ^ np.uint64(data[position])) * _WORD_PRIME
        shingles[0] = _mix(state)
        return 1
    power = np.uint64(1)
    rolling = np.uint64(0)
    for index in range(min(width, count)):
        rolling = rolling * _SHINGLE_BASE + words[index]
        power *= _SHINGLE_BASE
    if count < width:
        shingles[0] = _mix(rolling + np.uint64(count) * _FEW_WORDS)
        return 1
    shingles[0] = _mix(rolling)
    for index in range(width, count):
        rolling = rolling * _SHINGLE_BASE + words[index] - words[index - width] * power
        shingles[index - width + 1] = _mix(rolling)
    return count - width + 1


@kernel
def _sets_of(data, offsets, rows, fold, width, words, shingles, flat, lengths):
    filled = 0
    for index in range(rows.size):
        start, end = offsets[rows[index]], offsets[rows[index] + 1]
        found = np.sort(shingles[: hash_shingles(data, start, end, fold, width, words, shingles)])
        first = filled
        for position in range(found.size):
            if position == 0 or found[position] != found[position - 1]:
                flat[filled] = found[position]
                filled += 1
        lengths[index] = filled - first
    return filled


def shingle_sets(data: U8, offsets: I64, rows: I64, width: int) -> tuple[U64, I64]:
    """The shingle sets of some rows of an Arrow string column: (sorted hashes of all rows in a line, set sizes).

    `data` and `offsets` are the column's buffers, `offsets` int64 of rows + 1 values.
    """
    sizes = offsets[rows + 1] - offsets[rows]
    room = int(sizes.max(initial=0)) // 2 + 2
    words, shingles = np.empty(room, np.uint64), np.empty(room, np.uint64)
    flat = np.empty(int((sizes // 2 + 2).sum()), np.uint64)
    lengths = np.empty(rows.size, np.int64)
    filled = _sets_of(data, offsets, rows, fold_table(), width, words, shingles, flat, lengths)
    return flat[:filled].copy(), lengths


def true_jaccard(first: U64, second: U64) -> float:
    """|A and B| / |A or B| of two sorted shingle sets."""
    common = int(np.intersect1d(first, second, assume_unique=True).size)
    return common / (first.size + second.size - common)
