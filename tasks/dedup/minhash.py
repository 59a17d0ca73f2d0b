"""MinHash signatures over whole Arrow string columns, bit for bit those of datasketch 2 (`scheme="affine32"`).

A word is a run of letters, digits, marks and underscores, lower-cased (`\\w+`, and marks that `\\w` leaves out); in
scripts without spaces each character is a word. A shingle is `width` consecutive words; a text with fewer words has one
shingle of all of them, and a text without any word has one of its raw bytes, so that every document can be compared.
A licence header at the beginning of source code is left out (`licence_headers`).
Shingles are 64-bit hashes, computed from UTF-8 bytes. All 64 bits represent the shingle where true Jaccard similarity
is computed; the upper 32 bits go into MinHash.

There, each 32-bit hash is mixed once by MurmurHash3's finalizer and then permuted by a * h + b modulo 2^32 with odd a;
a signature holds the smallest value of every permutation. The share of equal values in two signatures estimates the
Jaccard similarity of the shingle sets (Broder 1997). Source of the scheme: datasketch 2.0, `datasketch/minhash.py`.
Each build signs a sample of its documents with datasketch itself, too (`check_with_datasketch`).
"""

import functools
import unicodedata
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from model.errors import Bug
from model.kernels import kernel
from tasks.common.text import is_unspaced
from tasks.common.utf8 import FNV_BASIS, GOLDEN, ROLLING_BASE, decode, finish_word
from tasks.dedup.licence_headers import body_start

if TYPE_CHECKING:
    from datasketch import MinHash

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

_MURMUR32_MIX1 = np.uint32(0x85EBCA6B)
_MURMUR32_MIX2 = np.uint32(0xC2B2AE35)
_SHIFT13 = np.uint32(13)
_SHIFT16 = np.uint32(16)
_SHIFT32 = np.uint64(32)
_BLOCK = 2048
_BAND_SHIFT = np.uint64(29)
_TABLE_SIZE = 0x20000

CHARACTER_WORD = np.uint32(1 << 31)
"""Set in `fold_table` where a character is a word by itself."""

_FIRST_IDEOGRAPH, _LAST_IDEOGRAPH = 0x20000, 0x3FFFD

_FEW_WORDS = np.uint64(0xE7037ED1A0B428DB)
_NO_WORDS = np.uint64(0x8EBC6AF09C88C6E3)
_MURMUR64_MIX1 = np.uint64(0xFF51AFD7ED558CCD)
_MURMUR64_MIX2 = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT33 = np.uint64(33)


def signatures_of(data: U8, offsets: I64, width: int, length: int, seed: int) -> U32:
    """Return the signatures (rows, length) of the texts in an Arrow string column's buffers."""
    capacity = int(np.diff(offsets).max(initial=0)) // 2 + 2
    words, shingles = np.empty(capacity, np.uint64), np.empty(capacity, np.uint64)
    signatures = np.full((offsets.size - 1, length), np.uint32(0xFFFFFFFF))
    a, b = permutations(length, seed)
    _sign(data, offsets, fold_table(), width, a, b, words, shingles, np.empty(_BLOCK, np.uint32), signatures)
    return signatures


@kernel
def _sign(data, offsets, fold, width, a, b, words, shingles, mixed, signatures):
    for row in range(offsets.size - 1):
        count = hash_shingles(data, offsets[row], offsets[row + 1], fold, width, words, shingles)
        for begin in range(0, count, _BLOCK):
            size = min(_BLOCK, count - begin)
            for index in range(size):
                value = np.uint32(shingles[begin + index] >> _SHIFT32)
                value = np.uint32(value ^ (value >> _SHIFT16))
                value = np.uint32(value * _MURMUR32_MIX1)
                value = np.uint32(value ^ (value >> _SHIFT13))
                value = np.uint32(value * _MURMUR32_MIX2)
                mixed[index] = np.uint32(value ^ (value >> _SHIFT16))
            for permutation in range(a.size):
                factor, shift = a[permutation], b[permutation]
                smallest = signatures[row, permutation]
                for index in range(size):
                    smallest = min(smallest, np.uint32(factor * mixed[index] + shift))
                signatures[row, permutation] = smallest


@functools.cache
def permutations(length: int, seed: int) -> tuple[U32, U32]:
    """Return the (a, b) of `length` permutations as datasketch draws them from `RandomState(seed)`."""
    generator = np.random.RandomState(seed)
    a = generator.randint(0, 1 << 31, length, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    b = generator.randint(0, 1 << 32, length, dtype=np.uint32)
    return a, b


def band_keys(signatures: U32, band: int, rows: int) -> U64:
    """Return a 64-bit key per document for a band, equal where all of its values are; bands have different keys."""
    keys = np.full(signatures.shape[0], band + 1, np.uint64)
    for column in range(band * rows, (band + 1) * rows):
        keys = (keys ^ signatures[:, column].astype(np.uint64)) * GOLDEN
        keys ^= keys >> _BAND_SHIFT
    return keys


def s_curve(bands: int, rows: int) -> list[list[float]]:
    """Return [[J, chance that a pair with true Jaccard J is compared at all], ...]: 1 - (1 - J^rows)^bands."""
    points: npt.NDArray[np.float64] = np.arange(10, 21) / 20
    return [[round(float(j), 2), round(float(1 - (1 - j**rows) ** bands), 4)] for j in points]


def shingle_sets(data: U8, offsets: I64, rows: I64, width: int) -> tuple[U64, I64]:
    """Return the shingle sets of some rows of an Arrow string column: (sorted hashes of all rows in a line, set sizes).

    `data` and `offsets` are the column's buffers, `offsets` int64 of rows + 1 values.
    """
    sizes = offsets[rows + 1] - offsets[rows]
    capacity = int(sizes.max(initial=0)) // 2 + 2
    words, shingles = np.empty(capacity, np.uint64), np.empty(capacity, np.uint64)
    flat = np.empty(int((sizes // 2 + 2).sum()), np.uint64)
    lengths = np.empty(rows.size, np.int64)
    filled = _sets_of(data, offsets, rows, fold_table(), width, words, shingles, flat, lengths)
    return flat[:filled].copy(), lengths


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


@kernel
def hash_shingles(data, start, end, fold, width, words, shingles):
    """Write the hash of each shingle of data[start:end] into `shingles`; returns how many there are (at least one).

    A licence header at the beginning of source code is left out.
    `words` and `shingles` are buffers of at least (end - start) // 2 + 2 values; a shingle that occurs twice is written
    twice. Polynomial rolling hash over the words' hashes modulo 2^64, then a mixer.
    """
    start = body_start(data, start, end)
    count = hash_words(data, start, end, fold, words)
    if count == 0:
        state = _NO_WORDS
        for position in range(start, end):
            state = (state ^ np.uint64(data[position])) * GOLDEN
        shingles[0] = _murmur64(state)
        return 1
    power = np.uint64(1)
    rolling = np.uint64(0)
    for index in range(min(width, count)):
        rolling = rolling * ROLLING_BASE + words[index]
        power *= ROLLING_BASE
    if count < width:
        shingles[0] = _murmur64(rolling + np.uint64(count) * _FEW_WORDS)
        return 1
    shingles[0] = _murmur64(rolling)
    for index in range(width, count):
        rolling = rolling * ROLLING_BASE + words[index] - words[index - width] * power
        shingles[index - width + 1] = _murmur64(rolling)
    return count - width + 1


@kernel
def hash_words(data, start, end, fold, words):
    """Write the hash of each word of data[start:end] into `words`; returns how many there are."""
    count = 0
    state = FNV_BASIS
    inside = False
    position = start
    while position < end:
        codepoint, position = decode(data, position)
        if codepoint < _TABLE_SIZE:
            folded = fold[codepoint]
        elif _FIRST_IDEOGRAPH <= codepoint <= _LAST_IDEOGRAPH:
            folded = np.uint32(codepoint) | CHARACTER_WORD
        else:
            folded = np.uint32(0)
        if folded != 0 and folded < CHARACTER_WORD:
            state = (state ^ np.uint64(folded)) * GOLDEN
            inside = True
            continue
        if inside:
            words[count] = finish_word(state)
            count += 1
            state = FNV_BASIS
            inside = False
        if folded != 0:
            words[count] = finish_word((FNV_BASIS ^ np.uint64(folded)) * GOLDEN)
            count += 1
    if inside:
        words[count] = finish_word(state)
        count += 1
    return count


@kernel
def _murmur64(value):
    value ^= value >> _SHIFT33
    value *= _MURMUR64_MIX1
    value ^= value >> _SHIFT33
    value *= _MURMUR64_MIX2
    return value ^ (value >> _SHIFT33)


@functools.cache
def fold_table() -> U32:
    """Return a table of code points below 0x20000: 0 for separators, else the lower case.

    CHARACTER_WORD marks a word of one character. Code points above are ideographs (words of one character) or
    separators.
    """
    table = np.zeros(_TABLE_SIZE, np.uint32)
    for codepoint in range(_TABLE_SIZE):
        character = chr(codepoint)
        if character == "_" or unicodedata.category(character)[0] in "LNM":
            lower = character.lower()
            folded = ord(lower) if len(lower) == 1 else codepoint
            table[codepoint] = folded | (int(CHARACTER_WORD) if is_unspaced(codepoint) else 0)
    table.setflags(write=False)
    return table


@functools.cache
def empty_minhash(length: int, seed: int) -> "MinHash":
    """Return a `datasketch.MinHash` of no shingles under our scheme; copy it before an update."""
    from datasketch import MinHash

    return MinHash(num_perm=length, seed=seed, hashfunc=int, scheme="affine32")


def sign_with_datasketch(data: U8, offsets: I64, row: int, width: int, length: int, seed: int) -> "MinHash":
    """Return the `datasketch.MinHash` of one text of an Arrow string column, of the same shingles as ours."""
    hashes, _ = shingle_sets(data, offsets, np.array([row]), width)
    # A copy shares the permutations: datasketch draws them once, not for each text.
    minhash = empty_minhash(length, seed).copy()
    for begin in range(0, hashes.size, _BLOCK):
        # datasketch makes a matrix of shingles x permutations: blocks bound its memory.
        minhash.update_batch((hashes[begin : begin + _BLOCK] >> _SHIFT32).tolist())
    return minhash


def check_with_datasketch(
    data: U8, offsets: I64, rows: I64, width: int, seed: int, signatures: U32, where: str
) -> None:
    """Sign the given rows of an Arrow string column with datasketch and compare with our `signatures` (texts, length).

    Raises Bug for the first row in which a bit differs; `where` names the column.
    """
    for row in rows:
        theirs = sign_with_datasketch(data, offsets, row, width, signatures.shape[1], seed)
        wrong = np.flatnonzero(signatures[row] != theirs.hashvalues)
        if wrong.size:
            value = wrong[0]
            raise Bug(
                f"dedup: value {value} of the MinHash signature of row {row} of {where} is"
                f" {signatures[row, value]}, and datasketch computes {theirs.hashvalues[value]}. Nothing was published."
                f" The compiled kernel is wrong on this machine: remove numba's cache folder and run again; if that"
                f" does not help, report it with the processor and the versions of numba and llvmlite."
            )
