"""What a character is to the kernels: one table of flags by code point, and the search for the next code point.

The table is made from the Unicode database of this Python and from the named sets below; it covers the planes that
hold letters and emoji. Above it stand ideographs, tags and variation selectors, which `flags_of` tells apart by range.
"""

import functools
import unicodedata

import numpy as np
import numpy.typing as npt
import regex

from tasks.clean.words import CHINESE_JAPANESE, SOUTH_EAST_ASIAN, SPACELESS_PUNCTUATION
from tasks.kernels import kernel

U32 = npt.NDArray[np.uint32]

BLANK = 1
LETTER = 1 << 1
"""A letter or a number that is no decimal digit: what makes a word alphabetic."""
CHINESE_JAPANESE_UNIT = 1 << 2
SOUTH_EAST_ASIAN_UNIT = 1 << 3
MARK = 1 << 4
PARTS_SPACELESS = 1 << 5
"""Punctuation that ends a word in a text that writes no blanks."""
BULLET = 1 << 6
SENTENCE_CLOSER = 1 << 7
"""May stand between the full stop and the end of the sentence."""
FULL_STOP = 1 << 8
"""Ends a sentence by itself, without a blank after it."""
LINE_END = 1 << 9
"""Ends a line that is a finished sentence (C4's terminal punctuation, and its like in other scripts)."""
MAY_BE_EMOJI = 1 << 10
"""Shown as a picture, or makes one of the character before it."""
UNSEEN = 1 << 11
"""Control, zero-width, direction, line-breaking and tag characters."""
MAY_COMPOSE = 1 << 12
"""May change under normal form C, alone or with its neighbours."""
SOUND = 1 << 13
"""Stands in undamaged text beside any other: never a sign of mojibake."""
MOJIBAKE_ALONE = 1 << 14
"""A sign of mojibake by itself, as its partner may have become a blank."""
PLAIN_LETTER = 1 << 15
"""A letter that is counted as a letter and as nothing else; without `p`, at which `counting` looks for placeholders."""
SPACELESS = CHINESE_JAPANESE_UNIT | SOUTH_EAST_ASIAN_UNIT

TABLE_SIZE = 0x20000
_BEYOND_IDEOGRAPHS = 0x40000
_TAGS = 0xE0000
_SELECTORS = 0xE0100

_BULLETS = "-*•‣▪●◦·–"
_SENTENCE_CLOSERS = "\"'”’»)]"
_FULL_STOPS = "。！？।۔؟"
_LINE_ENDS = ".!?\"'”’»。！？…」』؟۔।"
_EMOJI_RANGES = ((0x20E3, 0x20E3), (0x2300, 0x2BFF), (0xFE0F, 0xFE0F), (0x1F000, 0x1FFFF))
_SHOWN_AS_EMOJI = regex.compile(r"[\p{Emoji_Presentation}\p{RI}\u20e3\ufe0f]")
_UNSEEN_RANGES = (
    (0x00, 0x08), (0x0B, 0x1F), (0x7F, 0x9F), (0xAD, 0xAD), (0x61C, 0x61C), (0x180E, 0x180E), (0x200B, 0x200F),
    (0x2028, 0x202E), (0x2060, 0x206F), (0xFEFF, 0xFEFF), (0xFFF9, 0xFFFB), (0xFDD0, 0xFDEF), (0x1D173, 0x1D17A),
)  # fmt: skip
# Plain letters and punctuation of Cyrillic, Chinese, Japanese and Korean text, blanks, dashes, quotes, emoji: ftfy's
# test for badness never names two of them side by side, nor one beside a character outside ASCII.
_SOUND_RANGES = (
    (0x00, 0x7F), (0xA0, 0xA0), (0x401, 0x401), (0x410, 0x44F), (0x451, 0x451), (0x2002, 0x200A), (0x200D, 0x200D),
    (0x2013, 0x2014),
    (0x2018, 0x2019), (0x201C, 0x201D), (0x2026, 0x2026), (0x2060, 0x2060), (0x2600, 0x27BF), (0x3000, 0x9FFF),
    (0xAC00, 0xD7A3), (0xFE0F, 0xFE0F), (0xFF00, 0xFF65), (0x1F000, 0x1FFFF),
)  # fmt: skip
_MOJIBAKE_ALONE = "ŒœÃÂÐÎÁàâĂÅ°"


@functools.cache
def character_flags() -> U32:
    """Code point below 0x20000 -> its flags."""
    table = np.zeros(TABLE_SIZE, np.uint32)
    for codepoint in range(TABLE_SIZE):
        character = chr(codepoint)
        if character.isspace():
            table[codepoint] |= BLANK
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
        (PARTS_SPACELESS, SPACELESS_PUNCTUATION),
        (UNSEEN, _UNSEEN_RANGES),
        (SOUND, _SOUND_RANGES),
    ):
        for first, last in ranges:
            table[first : min(last, TABLE_SIZE - 1) + 1] |= flag
    for first, last in _EMOJI_RANGES:
        for codepoint in range(first, last + 1):
            if _SHOWN_AS_EMOJI.match(chr(codepoint)):
                table[codepoint] |= MAY_BE_EMOJI
    counted = SPACELESS | MARK | PARTS_SPACELESS | BULLET | SENTENCE_CLOSER | FULL_STOP | LINE_END | LETTER | BLANK
    table[(table & counted) == LETTER] |= PLAIN_LETTER
    table[[ord("p"), ord("P")]] ^= PLAIN_LETTER
    table.setflags(write=False)
    return table


def _may_compose(codepoint: int, character: str) -> bool:
    """Whether normal form C may change the character or join it with the one before."""
    if 0x1100 <= codepoint <= 0x11FF or unicodedata.combining(character):
        return True
    if 0xAC00 <= codepoint <= 0xD7A3:
        return False
    # Second parts of compositions are marks, save a few vowel signs of India and South-East Asia.
    return unicodedata.category(character)[0] == "M" or unicodedata.normalize("NFC", character) != character


@kernel
def decode(data, position):
    """(code point, position of the next one) of valid UTF-8."""
    byte = data[position]
    if byte < 0x80:
        return np.int64(byte), position + 1
    if byte < 0xE0:
        return (np.int64(byte & 0x1F) << 6) | np.int64(data[position + 1] & 0x3F), position + 2
    if byte < 0xF0:
        return (
            (np.int64(byte & 0x0F) << 12)
            | (np.int64(data[position + 1] & 0x3F) << 6)
            | np.int64(data[position + 2] & 0x3F)
        ), position + 3
    return (
        (np.int64(byte & 0x07) << 18)
        | (np.int64(data[position + 1] & 0x3F) << 12)
        | (np.int64(data[position + 2] & 0x3F) << 6)
        | np.int64(data[position + 3] & 0x3F)
    ), position + 4


@kernel
def flags_of(codepoint, table):
    """The flags of any code point."""
    if codepoint < TABLE_SIZE:
        return np.int64(table[codepoint])
    if codepoint < _BEYOND_IDEOGRAPHS:
        return np.int64(CHINESE_JAPANESE_UNIT | LETTER | MAY_COMPOSE)
    if codepoint < _TAGS:
        return np.int64(0)
    return np.int64(UNSEEN) if codepoint < _SELECTORS else np.int64(MARK)
