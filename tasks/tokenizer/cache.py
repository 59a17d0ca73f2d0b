"""A set-associative cache of spans of text and their ids: 64-byte lines, four lines in a set, fixed size.

A line: word 0 the length in bytes, the number of ids, a byte for the algorithm's use and 40 bits of the hash; words 1
to 4 the span itself, up to 32 bytes; words 5 to 7 up to nine ids of 21 bits. A full set replaces the line that the hash
selects. Missing spans are computed again, so no result depends on the content of the cache."""

import numpy as np
import numpy.typing as npt

from model.kernels import kernel

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
MOST_BYTES = 32
MOST_IDS = 9
LINE = 8

IDS = 5
"""The first word of a line that holds ids."""

MASK_ID = np.uint64((1 << 21) - 1)
BITS_ID = np.uint64(21)
_WAYS = 4
_HASH = np.uint64(0xFFFFFFFFFF000000)
_BYTE = np.uint64(0xFF)
_8 = np.uint64(8)
_16 = np.uint64(16)
_29 = np.uint64(29)
_32 = np.uint64(32)
_PRIMES = tuple(map(np.uint64, (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xA0761D6478BD642F)))
_FIRST, _SECOND, _THIRD, _FOURTH = _PRIMES
_FINISH = np.uint64(0xD6E8FEB86659FD93)


def _masks() -> U64:
    """Return, by the length of a span, the masks of the bits of its four words, uint64 [33, 4]."""
    masks = np.zeros((MOST_BYTES + 1, 4), np.uint64)
    for size in range(MOST_BYTES + 1):
        for word in range(4):
            masks[size, word] = (1 << 8 * min(max(size - 8 * word, 0), 8)) - 1
    return masks


_MASKS = _masks()


def empty_cache(lines: int) -> U64:
    """Return an empty cache of `lines` lines, a power of two, each aligned to 64 bytes."""
    memory = np.zeros((lines + 1) * LINE, np.uint64)
    first = -(memory.ctypes.data // 8) % LINE
    return memory[first : first + lines * LINE]


def words_at_bytes(data: U8) -> U64:
    """Return the eight bytes from each byte of `data` on as words: a view with unaligned loads."""
    count = max(0, data.size - 7)
    return np.ndarray(count, np.uint64, data if count else np.empty(8, np.uint8), strides=(1,))


@kernel
def _mix(first, second, third, fourth, size):
    mixed = first * _FIRST + second * _SECOND + third * _THIRD + fourth * _FOURTH + np.uint64(size)
    mixed ^= mixed >> _32
    mixed *= _FINISH
    return mixed ^ (mixed >> _29)


@kernel
def _word(data, position, count):
    """Return `count` (at most 8) bytes from `position` on as a word, padded with zeros."""
    value = np.uint64(0)
    for index in range(min(count, 8)):
        value |= np.uint64(data[position + index]) << np.uint64(8 * index)
    return value


@kernel
def look_up(cache, data, words, borders, alone, count, lines):
    """Write for each of `count` spans where its line begins in the cache, or -1.

    Spans of one character, and of more than 32 bytes, are not looked up.
    """
    sets = np.uint64(cache.size // LINE - 1)
    for index in range(count):
        lines[index] = -1
        start = borders[index]
        size = borders[index + 1] - start
        if alone[index] >= 0 or size > MOST_BYTES:
            continue
        if start + 24 < words.size:
            first = words[start] & _MASKS[size, 0]
            second = words[start + 8] & _MASKS[size, 1]
            third = words[start + 16] & _MASKS[size, 2]
            fourth = words[start + 24] & _MASKS[size, 3]
        else:
            # Near the end of the data whole words would reach beyond it.
            first = _word(data, start, size)
            second = _word(data, start + 8, size - 8)
            third = _word(data, start + 16, size - 16)
            fourth = _word(data, start + 24, size - 24)
        mixed = _mix(first, second, third, fourth, size)
        home = np.int64(mixed & sets)
        wanted = (mixed & _HASH) | np.uint64(size)
        for way in range(_WAYS):
            at = (home ^ way) * LINE
            if (
                (cache[at] & (_HASH | _BYTE)) == wanted
                and cache[at + 1] == first
                and cache[at + 2] == second
                and cache[at + 3] == third
                and cache[at + 4] == fourth
            ):
                lines[index] = at
                break


@kernel
def keep(cache, data, words, borders, missing, ids):
    """Put spans of 2 to 32 bytes into the cache.

    `missing` int64 [spans, 4] has for each its number, where its 1 to 9 ids begin and end in `ids`, and the algorithm's
    byte.
    """
    sets = np.uint64(cache.size // LINE - 1)
    for index in range(len(missing)):
        span, begin, end, extra = missing[index, 0], missing[index, 1], missing[index, 2], missing[index, 3]
        start = borders[span]
        size = borders[span + 1] - start
        # Written out here and above: as a function of its own it took both 1.1 to 2 times as long.
        if start + 24 < words.size:
            first = words[start] & _MASKS[size, 0]
            second = words[start + 8] & _MASKS[size, 1]
            third = words[start + 16] & _MASKS[size, 2]
            fourth = words[start + 24] & _MASKS[size, 3]
        else:
            first = _word(data, start, size)
            second = _word(data, start + 8, size - 8)
            third = _word(data, start + 16, size - 16)
            fourth = _word(data, start + 24, size - 24)
        mixed = _mix(first, second, third, fourth, size)
        home = np.int64(mixed & sets)
        head = (mixed & _HASH) | np.uint64(size)
        at = (home ^ np.int64((mixed >> _29) & np.uint64(_WAYS - 1))) * LINE
        for way in range(_WAYS):
            line = (home ^ way) * LINE
            # Free, or the same span, which was missing twice in this block.
            if cache[line] == 0 or (cache[line] & (_HASH | _BYTE) == head and cache[line + 1] == first):
                at = line
                break
        cache[at] = head | (np.uint64(end - begin) << _8) | (np.uint64(extra) << _16)
        cache[at + 1] = first
        cache[at + 2] = second
        cache[at + 3] = third
        cache[at + 4] = fourth
        for word in range(3):
            packed = np.uint64(0)
            for place in range(3):
                if begin + word * 3 + place < end:
                    packed |= np.uint64(ids[begin + word * 3 + place]) << np.uint64(21 * place)
            cache[at + IDS + word] = packed


@kernel
def id_count(head):
    """Return the number of ids of a line from its word 0."""
    return np.int64((head >> _8) & _BYTE)


@kernel
def extra_byte(head):
    """Return the algorithm's byte of a line from its word 0."""
    return np.int64((head >> _16) & _BYTE)
