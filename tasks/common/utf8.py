"""Characters and words of UTF-8 text in kernels."""

import numpy as np

from model.kernels import inlined_kernel, kernel

FNV_BASIS = np.uint64(0xCBF29CE484222325)
"""The offset basis of FNV-1a."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio, odd."""

ROLLING_BASE = np.uint64(0xA0761D6478BD642F)
"""The base of polynomial hashes of words."""

_FINISH = np.uint64(0xD6E8FEB86659FD93)
_SHIFT32 = np.uint64(32)


@inlined_kernel
def decode(data, position):
    """Return (code point, position of the next character) of the character at `position` of valid UTF-8.

    `data` is uint8 [bytes]; both results are int64.
    """
    byte = np.int64(data[position])
    if byte < 0x80:
        return byte, position + 1
    second = np.int64(data[position + 1] & 0x3F)
    if byte < 0xE0:
        return ((byte & 0x1F) << 6) | second, position + 2
    third = np.int64(data[position + 2] & 0x3F)
    if byte < 0xF0:
        return ((byte & 0x0F) << 12) | (second << 6) | third, position + 3
    fourth = np.int64(data[position + 3] & 0x3F)
    return ((byte & 0x07) << 18) | (second << 12) | (third << 6) | fourth, position + 4


@inlined_kernel
def finish_word(state):
    """Return the hash of a word whose characters were hashed to `state`: all of its bits change the upper ones."""
    return (state ^ (state >> _SHIFT32)) * _FINISH


def byte_set(characters: str) -> np.ndarray:
    """Return which bytes are one of some characters of ASCII (bool [256]), for kernels to look up."""
    return np.isin(np.arange(256), list(characters.encode("ascii")))


@inlined_kernel
def has_bytes(data, position, end, wanted, begin, size):
    """Return whether the bytes wanted[begin:begin + size] are at `position` of data[:end]."""
    offset = 0
    if position + size <= end:
        while offset < size and data[position + offset] == wanted[begin + offset]:
            offset += 1
    return offset == size


@kernel
def has_word(data, begin, position, end, word):
    """Return whether a word of ASCII (lower case, uint8) is at `position` of data[begin:end], in any case."""
    if position < begin or position + len(word) > end:
        return False
    for offset in range(len(word)):
        byte = data[position + offset]
        if byte != word[offset] and (word[offset] < ord("a") or byte | 32 != word[offset]):
            return False
    return True
