"""The kernel behind C4's edit on short lines."""

from tasks.clean.characters import (
    BLANK,
    CHINESE_JAPANESE_UNIT,
    MARK,
    PARTS_SPACELESS,
    SPACELESS,
    decode,
    flags_of,
)
from tasks.clean.texts import REWRITTEN
from tasks.clean.words import UNITS_PER_WORD
from tasks.kernels import kernel


@kernel
def write_long_lines(data, begins, ends, outcomes, place, spaceless, table, least):
    """Leave out lines of fewer than `least` words, told as in `counting.count_texts`; blank ones stay.

    `spaceless` says which texts hold any character of a spaceless script. As `Texts.rewrite` wants it.
    """
    for text in range(len(begins)):
        begin, end = begins[text], ends[text]
        first = place
        line = copied = begin
        is_changed = False
        is_kept = True
        while line <= end:
            is_kept, line_end = _is_long(data, line, end, spaceless[text], table, least)
            if not is_kept:
                place = _copy(data, copied, line, place)
                copied = min(line_end + 1, end)
                is_changed = True
            line = line_end + 1
        if is_changed:
            place = _copy(data, copied, end, place)
            if not is_kept and place > first:
                place -= 1  # The line feed before the last line.
            begins[text], ends[text] = first, place
            outcomes[text] = REWRITTEN


@kernel
def _copy(data, begin, end, place):
    for position in range(begin, end):
        data[place + position - begin] = data[position]
    return place + end - begin


@kernel
def _is_long(data, position, end, spaceless, table, least):
    """(whether the line that begins at a position is blank or long enough, where it ends)."""
    spaced = chinese_japanese = south_east_asian = 0
    has_text = in_word = after_spaceless = False
    while position < end and data[position] != 10:
        codepoint, position = decode(data, position)
        flags = flags_of(codepoint, table)
        has_text |= flags & BLANK == 0
        if flags & SPACELESS and not (after_spaceless and flags & MARK):
            if flags & CHINESE_JAPANESE_UNIT:
                chinese_japanese += 1
            else:
                south_east_asian += 1
            in_word, after_spaceless = False, True
        elif flags & BLANK or (spaceless and flags & PARTS_SPACELESS):
            in_word = after_spaceless = False
            continue
        elif not in_word and not (after_spaceless and flags & MARK):
            spaced += 1
            in_word, after_spaceless = True, False
        else:
            continue
        if _words(spaced, chinese_japanese, south_east_asian) >= least:
            while position < end and data[position] != 10:
                position += 1
            return True, position
    return not has_text or _words(spaced, chinese_japanese, south_east_asian) >= least, position


@kernel
def _words(spaced, chinese_japanese, south_east_asian):
    return spaced + chinese_japanese / UNITS_PER_WORD[0] + south_east_asian / UNITS_PER_WORD[1]
