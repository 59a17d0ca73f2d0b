"""What a character is to the kernels: a table of flags by code point, words of any script, signs of mojibake.

The table is built from the Unicode database of this Python and from the sets below; it covers the planes that hold
letters and emoji. Above it are ideographs, tags and variation selectors, which `flags_of` distinguishes by range.

In scripts with spaces, words are separated by whitespace. In Chinese, Japanese, Thai, Lao, Khmer, Burmese and Tibetan
each character with its marks is a unit, and a number of units counts as one word: 1.7 for Chinese and Japanese (mean
word length of segmented corpora), 3 for the others.
"""

import functools
import re
import unicodedata
from typing import Any

import numpy as np
import numpy.typing as npt
import regex

from model.kernels import kernel
from tasks.common.utf8 import decode

U32 = npt.NDArray[np.uint32]

(
    WHITESPACE,
    LETTER,  # or a number that is not a decimal digit: what makes a word alphabetic
    CHINESE_JAPANESE_UNIT,
    SOUTH_EAST_ASIAN_UNIT,
    MARK,
    UNSEGMENTED_BREAK,  # punctuation that ends a word in text written without spaces
    BULLET,
    SENTENCE_CLOSER,  # may come between the full stop and the end of the sentence
    FULL_STOP,  # ends a sentence by itself, without whitespace after it
    LINE_END,  # ends a line that is a finished sentence: C4's terminal punctuation, and that of other scripts
    MAY_BE_EMOJI,  # is shown as a picture, or makes a picture of the character before it
    INVISIBLE,  # control, zero-width, direction, line-breaking and tag characters
    MAY_COMPOSE,  # may change under normal form C, alone or with its neighbours
    UNDAMAGED,  # occurs in undamaged text next to any other character: never a sign of mojibake
    MOJIBAKE_ALONE,  # a sign of mojibake by itself, as its partner may have become whitespace
    PLAIN_LETTER,  # counts as a letter and as nothing else; not `p`, where `counting` looks for `lorem ipsum`
) = (1 << bit for bit in range(16))

UNSEGMENTED = CHINESE_JAPANESE_UNIT | SOUTH_EAST_ASIAN_UNIT
TABLE_SIZE = 0x20000
_BEYOND_IDEOGRAPHS = 0x40000
FIRST_TAG = 0xE0000
_FIRST_SELECTOR = 0xE0100
_BULLETS = "-*•‣▪●◦·"
_SENTENCE_CLOSERS = "\"'”’»)]"
_FULL_STOPS = "。！？।۔؟"
_LINE_ENDS = ".!?\"'”’»。！？…」』؟۔।"
_EMOJI_RANGES = ((0x20E3, 0x20E3), (0x2300, 0x2BFF), (0xFE0F, 0xFE0F), (0x1F000, 0x1FFFF))
_SHOWN_AS_EMOJI = regex.compile(r"[\p{Emoji_Presentation}\p{RI}\u20e3\ufe0f]")

_INVISIBLE_RANGES = (
    (0x00, 0x08), (0x0B, 0x1F), (0x7F, 0x9F), (0xAD, 0xAD), (0x61C, 0x61C), (0x180E, 0x180E), (0x200B, 0x200F),
    (0x2028, 0x202E), (0x2060, 0x206F), (0xFEFF, 0xFEFF), (0xFFF9, 0xFFFB), (0xFDD0, 0xFDEF), (0x1D173, 0x1D17A),
)  # fmt: skip

# Plain letters and punctuation of Cyrillic, Chinese, Japanese and Korean text, whitespace, dashes, quotes, emoji:
# ftfy's test for badness never matches two of them in a row, nor one next to a character outside ASCII.
_UNDAMAGED_RANGES = (
    (0x00, 0x7F), (0xA0, 0xA0), (0x401, 0x401), (0x410, 0x44F), (0x451, 0x451), (0x2002, 0x200A), (0x200D, 0x200D),
    (0x2013, 0x2014),
    (0x2018, 0x2019), (0x201C, 0x201D), (0x2026, 0x2026), (0x2060, 0x2060), (0x2600, 0x27BF), (0x3000, 0x9FFF),
    (0xAC00, 0xD7A3), (0xFE0F, 0xFE0F), (0xFF00, 0xFF65), (0x1F000, 0x1FFFF),
)  # fmt: skip

_MOJIBAKE_ALONE = "ŒœÃÂÐÎÁàâĂÅ°"
Ranges = tuple[tuple[int, int], ...]

CHINESE_JAPANESE: Ranges = (
    (0x3005, 0x3007), (0x3040, 0x30FF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F), (0x20000, 0x3FFFF),
)  # fmt: skip

SOUTH_EAST_ASIAN: Ranges = (
    (0x0E01, 0x0E5B), (0x0E81, 0x0EDF), (0x0F00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF),
)  # fmt: skip

UNSEGMENTED_PUNCTUATION: Ranges = (
    (0x00B7, 0x00B7), (0x2014, 0x2014), (0x2018, 0x2019), (0x201C, 0x201D), (0x2026, 0x2026), (0x3001, 0x3004),
    (0x3008, 0x303F), (0xFF01, 0xFF0F), (0xFF1A, 0xFF20), (0xFF3B, 0xFF40), (0xFF5B, 0xFF65),
)  # fmt: skip

UNITS_PER_WORD = (1.7, 3.0)
"""Of Chinese and Japanese, and of the scripts of South-East Asia."""


@functools.cache
def character_flags() -> U32:
    """Return the flags of each code point below 0x20000."""
    table = np.zeros(TABLE_SIZE, np.uint32)
    for codepoint in range(TABLE_SIZE):
        character = chr(codepoint)
        if character.isspace():
            table[codepoint] |= WHITESPACE
        elif character.isalnum():
            if not character.isdecimal():
                table[codepoint] |= LETTER
        elif unicodedata.category(character)[0] == "M":
            table[codepoint] |= MARK
        if codepoint >= 0x300 and _may_compose(codepoint, character):
            table[codepoint] |= MAY_COMPOSE
    for flag, characters in (
        (BULLET, _BULLETS),
        (SENTENCE_CLOSER, _SENTENCE_CLOSERS),
        (FULL_STOP, _FULL_STOPS),
        (LINE_END, _LINE_ENDS),
        (MOJIBAKE_ALONE, _MOJIBAKE_ALONE),
    ):
        table[[ord(character) for character in characters]] |= flag
    table[0x80:0xA0] |= MOJIBAKE_ALONE
    for flag, ranges in (
        (CHINESE_JAPANESE_UNIT, CHINESE_JAPANESE),
        (SOUTH_EAST_ASIAN_UNIT, SOUTH_EAST_ASIAN),
        (UNSEGMENTED_BREAK, UNSEGMENTED_PUNCTUATION),
        (INVISIBLE, _INVISIBLE_RANGES),
        (UNDAMAGED, _UNDAMAGED_RANGES),
    ):
        for first, last in ranges:
            table[first : min(last, TABLE_SIZE - 1) + 1] |= flag
    for first, last in _EMOJI_RANGES:
        for codepoint in range(first, last + 1):
            if _SHOWN_AS_EMOJI.match(chr(codepoint)):
                table[codepoint] |= MAY_BE_EMOJI
    counted = (
        UNSEGMENTED | MARK | UNSEGMENTED_BREAK | BULLET | SENTENCE_CLOSER | FULL_STOP | LINE_END | LETTER | WHITESPACE
    )
    table[(table & counted) == LETTER] |= PLAIN_LETTER
    table[[ord("p"), ord("P")]] ^= PLAIN_LETTER
    table.setflags(write=False)
    return table


def _may_compose(codepoint: int, character: str) -> bool:
    """Return whether normal form C may change the character or join it with the one before."""
    if 0x1100 <= codepoint <= 0x11FF or unicodedata.combining(character):
        return True
    if 0xAC00 <= codepoint <= 0xD7A3:
        return False
    # Second parts of compositions are marks, save a few vowel signs of India and South-East Asia.
    return unicodedata.category(character)[0] == "M" or unicodedata.normalize("NFC", character) != character


@kernel
def flags_of(codepoint, table):
    """Return the flags of any code point."""
    if codepoint < TABLE_SIZE:
        return np.int64(table[codepoint])
    if codepoint < _BEYOND_IDEOGRAPHS:
        return np.int64(CHINESE_JAPANESE_UNIT | LETTER | MAY_COMPOSE)
    if codepoint < FIRST_TAG:
        return np.int64(0)
    return np.int64(INVISIBLE) if codepoint < _FIRST_SELECTOR else np.int64(MARK)


def has_unsegmented_script(text: str) -> bool:
    """Return whether any character belongs to a script written without spaces."""
    return not text.isascii() and _UNSEGMENTED.search(text) is not None


def words_of_units(units: Any, chinese_japanese: Any, south_east_asian: Any) -> Any:
    """Return the number of words that `units` amount to, of which so many are characters of unsegmented scripts.

    Arguments are of one text (int) or of many (arrays).
    """
    unsegmented = chinese_japanese + south_east_asian
    return units - unsegmented + chinese_japanese / UNITS_PER_WORD[0] + south_east_asian / UNITS_PER_WORD[1]


def _character_class(ranges: Ranges) -> str:
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


_UNSEGMENTED = re.compile(f"[{_character_class((*CHINESE_JAPANESE, *SOUTH_EAST_ASIAN))}]")


def mojibake_in_lines(raw: np.ndarray) -> np.ndarray:
    """Find the signs of mojibake in a text (UTF-8 bytes).

    Returns a row for each line that has any: its number, where it begins and ends, and where its first and last signs
    end.
    """
    found = np.zeros((int((raw == ord("\n")).sum()) + 1, 5), np.int64)
    return found[: _mark_mojibake(raw, character_flags(), found)]


@kernel
def suggests_mojibake(before, before_flags, flags):
    """Return whether a character, alone or with the one before it, suggests mojibake."""
    return flags & MOJIBAKE_ALONE != 0 or (before >= 0x80 and (flags & UNDAMAGED == 0 or before_flags & UNDAMAGED == 0))


@kernel
def _mark_mojibake(raw, table, found):
    line = count = begin = 0
    first = last = 0
    before = before_flags = np.int64(0)
    position = 0
    while position <= len(raw):
        if position == len(raw) or raw[position] < 0x80:
            if position == len(raw) or raw[position] == ord("\n"):
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
        if suggests_mojibake(before, before_flags, flags):
            first = first or position
            last = position
        before, before_flags = codepoint, flags
    return count
