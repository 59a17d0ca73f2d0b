"""Where in a text the signs of mojibake stand, line by line."""

import numpy as np

from tasks.clean.characters import MOJIBAKE_ALONE, SOUND, character_flags, decode, flags_of
from tasks.kernels import kernel


def mojibake_in_lines(raw: np.ndarray) -> np.ndarray:
    """For each line of a text (UTF-8 bytes) that has the sign of mojibake a row: its number, where it begins and ends,
    and where its first and last signs end."""
    found = np.zeros((int((raw == ord("\n")).sum()) + 1, 5), np.int64)
    return found[: _mojibake_in_lines(raw, character_flags(), found)]


@kernel
def is_mojibake_sign(before, before_flags, flags):
    """Two neighbours outside ASCII of which one is not plain text of its script, or a sign by itself."""
    return flags & MOJIBAKE_ALONE != 0 or (before >= 0x80 and (flags & SOUND == 0 or before_flags & SOUND == 0))


@kernel
def _mojibake_in_lines(raw, table, found):
    line = count = begin = 0
    first = last = 0
    before = before_flags = np.int64(0)
    position = 0
    while position <= len(raw):
        if position == len(raw) or raw[position] < 0x80:
            if position == len(raw) or raw[position] == 10:
                if first:
                    found[count, 0], found[count, 1], found[count, 2] = line, begin, position
                    found[count, 3], found[count, 4] = first, last
                    count += 1
                line += 1
                begin = position + 1
                first = 0
            before = np.int64(0)
            position += 1
            continue
        codepoint, position = decode(raw, position)
        flags = flags_of(codepoint, table)
        if is_mojibake_sign(before, before_flags, flags):
            first = first or position
            last = position
        before, before_flags = codepoint, flags
    return count
