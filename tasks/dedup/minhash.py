"""MinHash signatures, bit for bit those of datasketch 2 (`scheme="affine32"`), over whole Arrow string columns.

Each 32-bit shingle hash is mixed once by MurmurHash3's finalizer and then permuted by a * h + b modulo 2^32 with odd a;
a signature holds the smallest value of every permutation. The share of equal values in two signatures estimates the
Jaccard similarity of the shingle sets (Broder 1997). Source of the scheme: datasketch 2.0, `datasketch/minhash.py`.
Each build signs a sample of its documents with datasketch itself, too (`check_with_datasketch`).
"""

import functools
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model.errors import Bug
from tasks.dedup.shingles import I64, U8, U32, U64, fold_table, hash_shingles, shingle_sets
from tasks.kernels import kernel

if TYPE_CHECKING:
    from datasketch import MinHash

_MIX1 = np.uint32(0x85EBCA6B)
_MIX2 = np.uint32(0xC2B2AE35)
_SHIFT13 = np.uint32(13)
_SHIFT16 = np.uint32(16)
_SHIFT32 = np.uint64(32)
_BLOCK = 2048
_BAND_PRIME = np.uint64(0x9E3779B97F4A7C15)
_BAND_SHIFT = np.uint64(29)


@functools.cache
def permutations(length: int, seed: int) -> tuple[U32, U32]:
    """The (a, b) of `length` permutations as datasketch draws them from `RandomState(seed)`."""
    generator = np.random.RandomState(seed)
    a = generator.randint(0, 1 << 31, length, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    b = generator.randint(0, 1 << 32, length, dtype=np.uint32)
    return a, b


@kernel
def _sign(data, offsets, fold, width, a, b, words, shingles, mixed, signatures):
    for row in range(offsets.size - 1):
        count = hash_shingles(data, offsets[row], offsets[row + 1], fold, width, words, shingles)
        for begin in range(0, count, _BLOCK):
            size = min(_BLOCK, count - begin)
            for index in range(size):
                value = np.uint32(shingles[begin + index] >> _SHIFT32)
                value = np.uint32(value ^ (value >> _SHIFT16))
                value = np.uint32(value * _MIX1)
                value = np.uint32(value ^ (value >> _SHIFT13))
                value = np.uint32(value * _MIX2)
                mixed[index] = np.uint32(value ^ (value >> _SHIFT16))
            for permutation in range(a.size):
                factor, shift = a[permutation], b[permutation]
                smallest = signatures[row, permutation]
                for index in range(size):
                    smallest = min(smallest, np.uint32(factor * mixed[index] + shift))
                signatures[row, permutation] = smallest


def signatures_of(data: U8, offsets: I64, width: int, length: int, seed: int) -> U32:
    """Signatures (rows, length) of the texts in an Arrow string column's buffers; `offsets` has rows + 1 values."""
    room = int(np.diff(offsets).max(initial=0)) // 2 + 2
    words, shingles = np.empty(room, np.uint64), np.empty(room, np.uint64)
    signatures = np.full((offsets.size - 1, length), np.uint32(0xFFFFFFFF))
    a, b = permutations(length, seed)
    _sign(data, offsets, fold_table(), width, a, b, words, shingles, np.empty(_BLOCK, np.uint32), signatures)
    return signatures


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


def text_buffers(texts: pa.Array) -> tuple[U8, I64]:
    """The (bytes, offsets) of an Arrow large_string array without copying; a slice keeps its parent's bytes."""
    _, offsets, data = texts.buffers()
    starts = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8), starts


def band_keys(signatures: U32, band: int, rows: int) -> U64:
    """One 64-bit key per document for a band: equal when all of the band's values are. Other bands get other keys."""
    keys = np.full(signatures.shape[0], band + 1, np.uint64)
    for column in range(band * rows, (band + 1) * rows):
        keys = (keys ^ signatures[:, column].astype(np.uint64)) * _BAND_PRIME
        keys ^= keys >> _BAND_SHIFT
    return keys


def s_curve(bands: int, rows: int) -> list[list[float]]:
    """[[J, chance that a pair with true Jaccard J is compared at all], ...]: 1 - (1 - J^rows)^bands."""
    points: npt.NDArray[np.float64] = np.arange(10, 21) / 20
    return [[round(float(j), 2), round(float(1 - (1 - j**rows) ** bands), 4)] for j in points]
