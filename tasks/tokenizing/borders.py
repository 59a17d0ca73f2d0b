"""Where a text may be cut: between two neighbouring characters that stand side by side in no piece.

The pairs that do stand in a piece are bits of a table, found by a hash. Two pairs may share a bit; then a text is cut
less often than it might be, and no id changes.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tasks.kernels import kernel

U64 = npt.NDArray[np.uint64]

MARK = 0x2581
"""The character by which SentencePiece writes blanks, where a text holds it: it stands alone."""
_BITS_A_PAIR = 32
_ASCII_WORDS = 128 * 128 // 64
_FIRST = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xD6E8FEB86659FD93)
_DOWN = np.uint64(24)
_WORD = np.uint64(63)
_SIX = np.uint64(6)
_SEVEN = np.uint64(7)
_ONE = np.uint64(1)
_ASCII = np.uint64(128)
_ASCII_BITS = np.uint64(128 * 128)


def border_bits(neighbours: Iterable[tuple[str, str]]) -> U64:
    """The table: 128 x 128 bits for pairs within ASCII, then a power of two of bits for all others."""
    pairs = np.array([(ord(left), ord(right)) for left, right in neighbours] or [(0, 0)], np.uint64)
    words = 1 << max(4, (len(pairs) * _BITS_A_PAIR // 64 - 1).bit_length())
    bits = np.zeros(_ASCII_WORDS + words, np.uint64)
    _set_bits(bits, pairs[:, 0].copy(), pairs[:, 1].copy())
    return bits


@kernel
def _place(left, right, hashed_bits):
    if (left | right) < _ASCII:
        return (left << _SEVEN) | right
    mixed = (left * _FIRST + right) * _SECOND
    return _ASCII_BITS + ((mixed >> _DOWN) & (hashed_bits - _ONE))


@kernel
def _set_bits(bits, left, right):
    hashed_bits = np.uint64((bits.size - _ASCII_WORDS) * 64)
    for index in range(left.size):
        place = _place(left[index], right[index], hashed_bits)
        bits[place >> _SIX] |= _ONE << (place & _WORD)


@kernel
def joined(bits, left, right):
    """Whether two characters may stand side by side in a piece."""
    place = _place(np.uint64(left), np.uint64(right), np.uint64((bits.size - _ASCII_WORDS) * 64))
    return (bits[place >> _SIX] >> (place & _WORD)) & _ONE != 0


@kernel
def character(data, position):
    """(code point, bytes) of the character at `position` of valid UTF-8."""
    byte = np.int64(data[position])
    if byte < 0x80:
        return byte, 1
    second = np.int64(data[position + 1]) & 0x3F
    if byte < 0xE0:
        return ((byte & 0x1F) << 6) | second, 2
    third = np.int64(data[position + 2]) & 0x3F
    if byte < 0xF0:
        return ((byte & 0x0F) << 12) | (second << 6) | third, 3
    return ((byte & 0x07) << 18) | (second << 12) | (third << 6) | (np.int64(data[position + 3]) & 0x3F), 4


@kernel
def cut(data, start, end, bits, borders, alone):
    """Cut data[start:end] into stretches; returns (how many, where the last one ends).

    Stretch i is data[borders[i] : borders[i + 1]], and alone[i] its only character, or -1 where it has several.
    `borders` has a value more than there may be stretches; what does not fit is left for another call.
    """
    hashed_bits = np.uint64((bits.size - _ASCII_WORDS) * 64)
    most = borders.size - 1
    count = 0
    left = np.int64(MARK)
    position = start
    # Everything stands in this one loop: a call that takes arrays costs numba more than a character does.
    while position < end:
        right = np.int64(data[position])
        size = 1
        if right >= 0x80:
            second = np.int64(data[position + 1]) & 0x3F
            if right < 0xE0:
                right = ((right & 0x1F) << 6) | second
                size = 2
            else:
                third = np.int64(data[position + 2]) & 0x3F
                if right < 0xF0:
                    right = ((right & 0x0F) << 12) | (second << 6) | third
                    size = 3
                else:
                    fourth = np.int64(data[position + 3]) & 0x3F
                    right = ((right & 0x07) << 18) | (second << 12) | (third << 6) | fourth
                    size = 4
        place = _place(np.uint64(left), np.uint64(right), hashed_bits)
        if (bits[place >> _SIX] >> (place & _WORD)) & _ONE == 0 or left == MARK or right == MARK:
            if count == most:
                break
            borders[count] = position
            alone[count] = right
            count += 1
        else:
            alone[count - 1] = -1
        left = right
        position += size
    borders[count] = position
    return count, position
