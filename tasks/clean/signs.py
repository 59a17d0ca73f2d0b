"""One pass over the UTF-8 bytes of many documents that tells which edits a document may need at all.

An edit whose sign is absent would give the text back unchanged, so that sound text is never decoded: that is what makes
cleaning as fast as reading. A sign may be seen where the edit then changes nothing, never the other way round.
"""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.clean.characters import (
    BLANK,
    MAY_BE_EMOJI,
    MAY_COMPOSE,
    MOJIBAKE_ALONE,
    SOUND,
    SPACELESS,
    UNSEEN,
    character_flags,
    decode,
    flags_of,
)
from tasks.kernels import kernel

NON_ASCII = 1
MOJIBAKE = 1 << 1
AMPERSAND = 1 << 2
COMPOSITION = 1 << 3
UNSEEN_CHARACTER = 1 << 4
MARKUP = 1 << 5
EMOJI = 1 << 6
EMOTICON = 1 << 7
SHORTCODE = 1 << 8
BRACKET = 1 << 9
AT = 1 << 10
DOTTED_DIGITS = 1 << 11
COLON_GROUP = 1 << 12
DIGIT_RUN = 1 << 13
REPEATED_LINE = 1 << 14
JAVASCRIPT = 1 << 15
POLICY = 1 << 16
IMAGE = 1 << 17
BLANK_TEXT = 1 << 18
"""There is nothing but blanks."""
SPACELESS_SCRIPT = 1 << 19
ALWAYS = 1 << 30
"""Every document has it: the sign of edits that no search can spare."""

STANDS_ALONE, ANYWHERE = 1, 2
_AFTER_A_SHORT_FACE = b"\x00 \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f.,!?\xc2\xe1\xe2\xe3"
"""First bytes of all blanks among them."""
_SHORT_DIGITS = 3
_MANY_DIGITS = 8
_INSIDE, _AFTER_A_BLANK, _IDLE_BLANK, _IDLE_TEXT, _IDLE_SPACELESS = 1, 2, 4, 8, 16
_ASKING = "\n&<[@:0123456789vVkKmM"
"""ASCII characters at which a sign may be seen: the last six where a word is looked for by a rare letter in it."""
_JAVASCRIPT = np.frombuffer(b"javascript", np.uint8).copy()
_COOKIE = np.frombuffer(b"cookie", np.uint8).copy()
_TERMS = np.frombuffer(b"terms of use", np.uint8).copy()
_PRIVACY = np.frombuffer(b"privacy policy", np.uint8).copy()


@dataclass(frozen=True)
class Faces:
    """`beginnings`: slot of three bytes -> STANDS_ALONE where an emoticon of the first kind may begin with them,
    ANYWHERE for one of the second; `idle`: code point below 0x10000 -> where it can be passed over."""

    beginnings: npt.NDArray[np.uint8]
    idle: npt.NDArray[np.uint8]


@functools.cache
def faces(standing_alone: tuple[str, ...], anywhere: tuple[str, ...]) -> Faces:
    """Tables for emoticons that count between blanks only, and for those that count anywhere. One of two bytes has a
    blank, a mark of the end of a sentence, or nothing as its third."""
    table = np.zeros(1 << 16, np.uint8)
    for kind, words in ((STANDS_ALONE, standing_alone), (ANYWHERE, anywhere)):
        for word in words:
            raw = word.encode()
            for third in raw[2:3] or _AFTER_A_SHORT_FACE:
                table[_slot(raw[0], raw[1], third)] |= kind
    flags = character_flags()[: 1 << 16]
    asking = UNSEEN | MAY_BE_EMOJI | MAY_COMPOSE | MOJIBAKE_ALONE
    idle = np.where((flags & SOUND != 0) & (flags & asking == 0), _INSIDE | _AFTER_A_BLANK, 0).astype(np.uint8)
    idle[[ord(character) for character in (*_ASKING, *(word[0] for word in anywhere))]] = 0
    idle[[ord(word[0]) for word in standing_alone]] &= _INSIDE
    for found, kind in (
        (flags & BLANK != 0, _IDLE_BLANK),
        (flags & BLANK == 0, _IDLE_TEXT),
        (flags & SPACELESS != 0, _IDLE_SPACELESS),
    ):
        idle[(idle != 0) & found] |= kind
    return Faces(table, idle)


def signs_of(data: np.ndarray, begins: np.ndarray, ends: np.ndarray, known: Faces) -> np.ndarray:
    """The signs (uint32) of each text data[begins[i]:ends[i]] (uint8, int64)."""
    found = np.zeros(len(begins), np.uint32)
    _signs(data, begins, ends, character_flags(), known.beginnings, known.idle, found)
    return found


def lines_with_mojibake(raw: np.ndarray) -> np.ndarray:
    """Which lines (bool) of a text (UTF-8 bytes) have the sign of mojibake."""
    found = np.zeros(int((raw == ord("\n")).sum()) + 1, np.bool_)
    _lines_with_mojibake(raw, character_flags(), found)
    return found


@kernel
def _is_mojibake_sign(before, before_flags, flags):
    """Two neighbours outside ASCII of which one is not plain text of its script, or a sign by itself."""
    return flags & MOJIBAKE_ALONE != 0 or (before >= 0x80 and (flags & SOUND == 0 or before_flags & SOUND == 0))


@kernel
def _lines_with_mojibake(raw, table, found):
    line = 0
    before = before_flags = np.int64(0)
    position = 0
    while position < len(raw):
        if raw[position] < 0x80:
            line += raw[position] == 10
            before = np.int64(0)
            position += 1
            continue
        codepoint, position = decode(raw, position)
        flags = flags_of(codepoint, table)
        found[line] |= _is_mojibake_sign(before, before_flags, flags)
        before, before_flags = codepoint, flags


@kernel
def _slot(first, second, third):
    return ((first * 257 + second) * 263 + third * 7) & 0xFFFF


@kernel
def _stands_at(data, begin, position, end, word):
    """Whether a word, in small letters, stands at a position in any case."""
    if position < begin or position + len(word) > end:
        return False
    for offset in range(len(word)):
        byte = data[position + offset]
        if byte != word[offset] and (word[offset] < 97 or byte | 32 != word[offset]):
            return False
    return True


@kernel
def _are_equal(data, first, second, size):
    offset = 0
    while offset < size and data[first + offset] == data[second + offset]:
        offset += 1
    return offset == size


@kernel
def _signs(data, begins, ends, table, beginnings, idle, found):
    for text in range(len(found)):
        found[text] = _signs_of_one(data, begins[text], ends[text], table, beginnings, idle)


@kernel
def _signs_of_one(data, begin, end, table, beginnings, idle):
    signs = np.uint32(ALWAYS)
    position = begin
    before = np.int64(10)
    before_flags = np.int64(BLANK)
    digits = digit_groups = digits_together = 0
    shortcode = address = -1
    line = line_before = begin
    size_before = -1
    line_has_text = has_text = False
    while position < end:
        byte = data[position]
        if byte < 0x80:
            codepoint, following = np.int64(byte), position + 1
            flags = np.int64(table[byte])
        else:
            codepoint, following = decode(data, position)
            flags = flags_of(codepoint, table)
            signs |= np.uint32(NON_ASCII)
            if _is_mojibake_sign(before, before_flags, flags):
                signs |= np.uint32(MOJIBAKE)
            if flags & MAY_BE_EMOJI:
                signs |= np.uint32(EMOJI)
            if flags & MAY_COMPOSE:
                signs |= np.uint32(COMPOSITION)
            if flags & SPACELESS:
                signs |= np.uint32(SPACELESS_SCRIPT)
        if flags & UNSEEN:
            signs |= np.uint32(UNSEEN_CHARACTER)
        # Digits, and how many of them stand together with separators of one character between
        if 48 <= byte <= 57:
            digits += 1
            digits_together += 1
            if digits_together >= _MANY_DIGITS:
                signs |= np.uint32(DIGIT_RUN)
        else:
            if byte == 46 and 0 < digits <= _SHORT_DIGITS:
                digit_groups += 1
                if digit_groups >= 2:
                    signs |= np.uint32(DOTTED_DIGITS)
            else:
                digit_groups = 0
            is_bracket = byte == 40 or byte == 41
            is_separator = byte == 32 or byte == 45 or byte == 46 or is_bracket
            if not is_separator or (digits == 0 and not is_bracket and before != 41):
                digits_together = 0
            digits = 0
        if byte < 0x80:
            if byte == 10:
                if (
                    line_has_text
                    and position - line == size_before
                    and _are_equal(data, line, line_before, size_before)
                ):
                    signs |= np.uint32(REPEATED_LINE)
                line_before, size_before = line, position - line
                line = following
                line_has_text = False
            elif byte == 38:
                signs |= np.uint32(AMPERSAND | MARKUP)
            elif byte == 60:
                signs |= np.uint32(MARKUP)
                if position + 1 < end and (data[position + 1] == 105 or data[position + 1] == 73):
                    signs |= np.uint32(IMAGE)
            elif byte == 91:
                signs |= np.uint32(BRACKET)
                if before == 33:
                    signs |= np.uint32(MARKUP | IMAGE)
            elif byte == 64:
                signs |= np.uint32(AT)
            elif byte == 58:
                if shortcode >= 1:
                    signs |= np.uint32(SHORTCODE)
                if 0 <= address <= 4:
                    signs |= np.uint32(COLON_GROUP)
                shortcode = address = 0
            elif byte == 118 or byte == 86:
                if _stands_at(data, begin, position - 2, end, _JAVASCRIPT):
                    signs |= np.uint32(JAVASCRIPT)
                if _stands_at(data, begin, position - 3, end, _PRIVACY):
                    signs |= np.uint32(POLICY)
            elif byte == 107 or byte == 75:
                if _stands_at(data, begin, position - 3, end, _COOKIE):
                    signs |= np.uint32(POLICY)
            elif (byte == 109 or byte == 77) and _stands_at(data, begin, position - 3, end, _TERMS):
                signs |= np.uint32(POLICY)
            if shortcode >= 0 and byte != 58:
                is_name = 97 <= byte <= 122 or 65 <= byte <= 90 or 48 <= byte <= 57 or byte == 95 or byte == 43
                shortcode = shortcode + 1 if is_name or byte == 45 else -1
                is_hexadecimal = 48 <= byte <= 57 or 97 <= byte <= 102 or 65 <= byte <= 70
                address = address + 1 if address >= 0 and is_hexadecimal else -1
        else:
            shortcode = address = -1
        if position + 1 < end:
            third = data[position + 2] if position + 2 < end else np.uint8(0)
            kind = beginnings[_slot(np.int64(byte), np.int64(data[position + 1]), np.int64(third))]
            if kind & ANYWHERE or (kind and before_flags & BLANK):
                signs |= np.uint32(EMOTICON)
        if byte != 10:
            line_has_text |= flags & BLANK == 0
        has_text |= flags & BLANK == 0
        before, before_flags = codepoint, flags
        position = following
        if digits_together == 0 and shortcode < 0 and before_flags & SOUND:
            # Most of a text is passed over here: characters at which no sign can be seen.
            passable = _AFTER_A_BLANK if before_flags & BLANK else _INSIDE
            met = 0
            highest = np.int64(0)
            while position < end:
                if data[position] < 0x80:
                    codepoint, following = np.int64(data[position]), position + 1
                elif data[position] < 0xF0:
                    codepoint, following = decode(data, position)
                else:
                    break
                here = idle[codepoint]
                if here & passable == 0:
                    break
                passable = _AFTER_A_BLANK if here & _IDLE_BLANK else _INSIDE
                met |= here
                highest |= codepoint
                before = codepoint
                position = following
            if met:
                before_flags = np.int64(table[before])
                digit_groups = 0
                if highest >= 0x80:
                    signs |= np.uint32(NON_ASCII)
                if met & _IDLE_SPACELESS:
                    signs |= np.uint32(SPACELESS_SCRIPT)
                if met & _IDLE_TEXT:
                    line_has_text = has_text = True
    if line_has_text and end - line == size_before and _are_equal(data, line, line_before, size_before):
        signs |= np.uint32(REPEATED_LINE)
    if not has_text:
        signs |= np.uint32(BLANK_TEXT)
    return signs
