"""One pass over the UTF-8 bytes of a document that counts what the rules measure, and searches over what it found.

`count_text` leaves, besides the counts, the hash and length of each unit (word, or character of a spaceless script), of
each line and of each paragraph; `repeated_share`, `top_gram` and `repeated_grams` look for repetitions among them.
Hashes have 64 bits, so two different runs of words are taken for one in less than one of 10^9 documents.
"""

import numpy as np

from tasks.clean.characters import (
    BLANK,
    BULLET,
    CHINESE_JAPANESE_UNIT,
    FULL_STOP,
    LETTER,
    LINE_END,
    MARK,
    PARTS_SPACELESS,
    SENTENCE_CLOSER,
    SPACELESS,
    decode,
    flags_of,
)
from tasks.clean.words import UNITS_PER_WORD
from tasks.kernels import kernel

UNITS = 0
CHINESE_JAPANESE_UNITS = 1
SOUTH_EAST_ASIAN_UNITS = 2
UNIT_CHARACTERS = 3
ALPHABETIC_UNITS = 4
HASHES = 5
ELLIPSES = 6
LINES = 7
BULLET_LINES = 8
ELLIPSIS_LINES = 9
LINE_CHARACTERS = 10
SHORT_LINES = 11
FINISHED_LINES = 12
LINE_FEEDS = 13
OPENING_BRACES = 14
SENTENCES = 15
PARAGRAPHS = 16
PARAGRAPH_CHARACTERS = 17
LOREM_IPSUM = 18
COUNTS = 19

SHORT_LINE = 30
"""Characters up to which a line is short (FineWeb)."""
_CHARACTERS_PER_SPACELESS = 3
_LOREM_IPSUM = np.frombuffer(b"lorem ipsum", np.uint8).copy()
_BASIS = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(32)
_HORIZONTAL_ELLIPSIS = 0x2026


@kernel
def finish(state):
    """Spreads the last characters of a running hash over all 64 bits."""
    state ^= state >> _SHIFT
    state *= _MIX
    return state ^ (state >> _SHIFT)


@kernel
def count_text(data, table, stop_keys, stop_words, counts, seen, hashes, lengths):
    """Fill `counts`, mark stop words in `seen`; rows 0, 1, 2 of `hashes` and `lengths` are units, lines, paragraphs.

    A line counts without the blanks around it, a blank one not at all; a paragraph is what stands between blank lines.
    """
    if not _count(data, table, stop_keys, stop_words, counts, seen, hashes, lengths, False):
        _count(data, table, stop_keys, stop_words, counts, seen, hashes, lengths, True)


@kernel
def _count(data, table, stop_keys, stop_words, counts, seen, hashes, lengths, spaceless):
    """Returns False at the first character of a spaceless script unless `spaceless`."""
    counts[:] = 0
    seen[:] = 0
    stop_mask = np.uint64(len(stop_keys) - 1)
    size = len(data)
    units = lines = paragraphs = 0
    chinese_japanese = south_east_asian = alphabetic = unit_characters = 0
    hash_signs = ellipses = braces = lorem = line_feeds = sentences = 0
    bullet_lines = ellipsis_lines = short_lines = finished_lines = line_characters = paragraph_characters = 0
    unit_state = line_state = paragraph_state = line_saved = paragraph_saved = _BASIS
    unit_length = line_length = line_width = line_length_saved = line_width_saved = 0
    paragraph_length = paragraph_length_saved = 0
    in_unit = is_single = has_letter = False
    first_flags = last_flags = 0
    dots = last_dots = 0
    last_codepoint = 0
    may_end_sentence = False
    position = 0
    while position <= size:
        if position < size:
            codepoint, following = decode(data, position)
            flags = flags_of(codepoint, table)
        else:
            codepoint, following, flags = np.int64(10), position + 1, np.int64(BLANK)
        is_spaceless = flags & SPACELESS != 0
        if is_spaceless and not spaceless:
            return False
        # Units
        is_blank = flags & BLANK != 0
        if in_unit:
            if is_single:
                ends = flags & MARK == 0
            else:
                ends = is_blank or is_spaceless or (spaceless and flags & PARTS_SPACELESS != 0)
            if ends:
                key = finish(unit_state)
                hashes[0, units] = key
                lengths[0, units] = unit_length
                unit_characters += unit_length
                units += 1
                alphabetic += has_letter
                in_unit = False
                slot = key & stop_mask
                while stop_words[slot] >= 0:
                    if stop_keys[slot] == key:
                        seen[stop_words[slot]] = 1
                        break
                    slot = (slot + np.uint64(1)) & stop_mask
        if not in_unit and not is_blank and not (spaceless and flags & PARTS_SPACELESS != 0 and not is_spaceless):
            in_unit = True
            is_single = is_spaceless
            has_letter = False
            unit_state = _BASIS
            unit_length = 0
            if is_spaceless:
                if flags & CHINESE_JAPANESE_UNIT:
                    chinese_japanese += 1
                else:
                    south_east_asian += 1
        if in_unit:
            unit_state = (unit_state ^ np.uint64(codepoint)) * _PRIME
            unit_length += 1
            has_letter |= flags & LETTER != 0
        # Sentences
        if flags & FULL_STOP:
            sentences += 1
        if codepoint == 46 or codepoint == 33 or codepoint == 63:
            may_end_sentence = True
        elif may_end_sentence and flags & SENTENCE_CLOSER == 0:
            sentences += is_blank
            may_end_sentence = False
        # Signs
        if codepoint == 46:
            dots += 1
        else:
            ellipses += dots // 3
            dots = 0
        if codepoint == 35:
            hash_signs += 1
        elif codepoint == 123:
            braces += 1
        elif codepoint == _HORIZONTAL_ELLIPSIS:
            ellipses += 1
        elif (codepoint == 108 or codepoint == 76) and position + len(_LOREM_IPSUM) <= size:
            offset = 1
            while offset < len(_LOREM_IPSUM) and (data[position + offset] | 32) == _LOREM_IPSUM[offset]:
                offset += 1
            lorem += offset == len(_LOREM_IPSUM)
        # Lines
        if codepoint == 10:
            line_feeds += position < size
            if line_length_saved:
                hashes[1, lines] = finish(line_saved)
                lengths[1, lines] = line_length_saved
                lines += 1
                line_characters += line_length_saved
                short_lines += line_width_saved <= SHORT_LINE
                bullet_lines += first_flags & BULLET != 0
                finished_lines += last_flags & LINE_END != 0
                ellipsis_lines += last_dots >= 3 or last_codepoint == _HORIZONTAL_ELLIPSIS
            if paragraph_length_saved and (not line_length_saved or position == size):
                hashes[2, paragraphs] = finish(paragraph_saved)
                lengths[2, paragraphs] = paragraph_length_saved
                paragraphs += 1
                paragraph_characters += paragraph_length_saved
                paragraph_state = _BASIS
                paragraph_length = paragraph_length_saved = 0
            line_state = _BASIS
            line_length = line_width = line_length_saved = line_width_saved = 0
        elif not is_blank and line_length == 0:
            first_flags = flags
        if codepoint != 10 and (line_length or not is_blank):
            line_state = (line_state ^ np.uint64(codepoint)) * _PRIME
            line_length += 1
            line_width += _CHARACTERS_PER_SPACELESS if is_spaceless else 1
        if paragraph_length or not is_blank:
            paragraph_state = (paragraph_state ^ np.uint64(codepoint)) * _PRIME
            paragraph_length += 1
        if not is_blank:
            line_saved, line_length_saved, line_width_saved = line_state, line_length, line_width
            paragraph_saved, paragraph_length_saved = paragraph_state, paragraph_length
            last_flags, last_dots, last_codepoint = flags, dots, codepoint
        position = following
    counts[UNITS] = units
    counts[CHINESE_JAPANESE_UNITS] = chinese_japanese
    counts[SOUTH_EAST_ASIAN_UNITS] = south_east_asian
    counts[UNIT_CHARACTERS] = unit_characters
    counts[ALPHABETIC_UNITS] = alphabetic
    counts[HASHES] = hash_signs
    counts[ELLIPSES] = ellipses
    counts[LINES] = lines
    counts[BULLET_LINES] = bullet_lines
    counts[ELLIPSIS_LINES] = ellipsis_lines
    counts[LINE_CHARACTERS] = line_characters
    counts[SHORT_LINES] = short_lines
    counts[FINISHED_LINES] = finished_lines
    counts[LINE_FEEDS] = line_feeds
    counts[OPENING_BRACES] = braces
    counts[SENTENCES] = sentences
    counts[PARAGRAPHS] = paragraphs
    counts[PARAGRAPH_CHARACTERS] = paragraph_characters
    counts[LOREM_IPSUM] = lorem
    return True


@kernel
def lines_with_words(data, table, least, kept):
    """Mark in `kept` the blank lines and those of at least so many words, told as in `count_text`; returns how many
    lines there are."""
    spaceless = False
    position = 0
    while position < len(data) and not spaceless:
        codepoint, position = decode(data, position)
        spaceless = flags_of(codepoint, table) & SPACELESS != 0
    line = spaced = chinese_japanese = south_east_asian = 0
    has_text = in_word = after_spaceless = False
    position = 0
    while position <= len(data):
        if position < len(data):
            codepoint, position = decode(data, position)
            flags = flags_of(codepoint, table)
        else:
            codepoint, position, flags = np.int64(10), position + 1, np.int64(BLANK)
        has_text |= flags & BLANK == 0
        if codepoint == 10:
            words = spaced + chinese_japanese / UNITS_PER_WORD[0] + south_east_asian / UNITS_PER_WORD[1]
            kept[line] = not has_text or words >= least
            line += 1
            spaced = chinese_japanese = south_east_asian = 0
            has_text = in_word = after_spaceless = False
        elif flags & SPACELESS and not (after_spaceless and flags & MARK):
            if flags & CHINESE_JAPANESE_UNIT:
                chinese_japanese += 1
            else:
                south_east_asian += 1
            in_word, after_spaceless = False, True
        elif flags & BLANK or (spaceless and flags & PARTS_SPACELESS):
            in_word = after_spaceless = False
        elif not in_word and not (after_spaceless and flags & MARK):
            spaced += 1
            in_word, after_spaceless = True, False
    return line


@kernel
def _table_size(count, most):
    size = 64
    while size < 2 * count and size < most:
        size *= 2
    return size


@kernel
def repeated_share(hashes, lengths, count, keys, stamps, stamp):
    """(blocks, characters) of the first `count` blocks that stood earlier; `stamp` is one that `stamps` never held."""
    mask = np.uint64(_table_size(count, len(keys)) - 1)
    blocks = characters = 0
    for index in range(count):
        key = hashes[index]
        slot = key & mask
        while stamps[slot] == stamp and keys[slot] != key:
            slot = (slot + np.uint64(1)) & mask
        if stamps[slot] == stamp:
            blocks += 1
            characters += lengths[index]
        else:
            stamps[slot] = stamp
            keys[slot] = key
    return blocks, characters


@kernel
def top_gram(hashes, lengths, count, size, keys, stamps, uses, stamp):
    """(how often the most frequent run of `size` units stands, characters of the longest such run)."""
    mask = np.uint64(_table_size(count, len(keys)) - 1)
    most = longest = 0
    for index in range(count - size + 1):
        key = np.uint64(0)
        characters = 0
        for offset in range(size):
            key = key * _PRIME + hashes[index + offset]
            characters += lengths[index + offset]
        slot = finish(key) & mask
        while stamps[slot] == stamp and keys[slot] != key:
            slot = (slot + np.uint64(1)) & mask
        if stamps[slot] == stamp:
            uses[slot] += 1
        else:
            stamps[slot] = stamp
            keys[slot] = key
            uses[slot] = 1
        if uses[slot] > most:
            most, longest = uses[slot], characters
        elif uses[slot] == most:
            longest = max(longest, characters)
    return most, longest


@kernel
def repeated_grams(hashes, lengths, count, size, keys, stamps, stamp):
    """Characters in runs of `size` units that stood earlier, each character counted once."""
    mask = np.uint64(_table_size(count, len(keys)) - 1)
    characters = covered = 0
    for index in range(count - size + 1):
        key = np.uint64(0)
        for offset in range(size):
            key = key * _PRIME + hashes[index + offset]
        slot = finish(key) & mask
        while stamps[slot] == stamp and keys[slot] != key:
            slot = (slot + np.uint64(1)) & mask
        if stamps[slot] == stamp:
            for unit in range(max(index, covered), index + size):
                characters += lengths[unit]
            covered = index + size
        else:
            stamps[slot] = stamp
            keys[slot] = key
    return characters
