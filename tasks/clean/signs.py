"""One pass over the UTF-8 bytes of many documents that tells which edits a document may need at all.

An edit whose sign is absent would give the text back unchanged, so that sound text is never decoded: that is what makes
cleaning as fast as reading. A sign may be seen where the edit then changes nothing, never the other way round.
"""

import functools

import numpy as np
import numpy.typing as npt

from tasks.clean.characters import (
    BLANK,
    MAY_BE_EMOJI,
    MAY_COMPOSE,
    MOJIBAKE_ALONE,
    SOUND,
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
ALWAYS = 1 << 30
"""Every document has it: the sign of edits that no search can spare."""

STANDS_ALONE, ANYWHERE = 1, 2
_AFTER_A_SHORT_FACE = b"\x00 \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f.,!?\xc2\xe1\xe2\xe3"
"""First bytes of all blanks among them."""
_SHORT_DIGITS = 3
_MANY_DIGITS = 8
_BASIS = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_JAVASCRIPT = np.frombuffer(b"javascript", np.uint8).copy()
_COOKIE = np.frombuffer(b"cookie", np.uint8).copy()
_TERMS = np.frombuffer(b"terms of use", np.uint8).copy()
_PRIVACY = np.frombuffer(b"privacy policy", np.uint8).copy()


@functools.cache
def beginnings(standing_alone: tuple[str, ...], anywhere: tuple[str, ...]) -> npt.NDArray[np.uint8]:
    """Slot of three bytes -> STANDS_ALONE where an emoticon of the first kind may begin with them, ANYWHERE for one of
    the second. One of two bytes has a blank, a mark of the end of a sentence, or nothing as its third."""
    table = np.zeros(1 << 16, np.uint8)
    for kind, faces in ((STANDS_ALONE, standing_alone), (ANYWHERE, anywhere)):
        for face in faces:
            raw = face.encode()
            for third in raw[2:3] or _AFTER_A_SHORT_FACE:
                table[_slot(raw[0], raw[1], third)] |= kind
    return table


def signs_of(data: np.ndarray, offsets: np.ndarray, faces: npt.NDArray[np.uint8]) -> np.ndarray:
    """The signs (uint32) of each document data[offsets[i]:offsets[i + 1]] (uint8, int64); `faces` from `beginnings`."""
    found = np.zeros(len(offsets) - 1, np.uint32)
    _signs(data, offsets, character_flags(), faces, found)
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
def _stands_at(data, position, end, word):
    if position + len(word) > end:
        return False
    for offset in range(1, len(word)):
        byte = data[position + offset]
        if byte != word[offset] and (word[offset] < 97 or byte | 32 != word[offset]):
            return False
    return True


@kernel
def _signs(data, offsets, table, faces, found):
    for document in range(len(found)):
        found[document] = _signs_of_one(data, offsets[document], offsets[document + 1], table, faces)


@kernel
def _signs_of_one(data, begin, end, table, faces):
    signs = np.uint32(ALWAYS)
    position = begin
    before = np.int64(10)
    before_flags = np.int64(BLANK)
    digits = digit_groups = digits_together = 0
    shortcode = address = -1
    line_state = line_before = _BASIS
    line_has_text = False
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
                if line_has_text and line_state == line_before:
                    signs |= np.uint32(REPEATED_LINE)
                line_before = line_state
                line_state = _BASIS
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
            elif byte == 106 or byte == 74:
                if _stands_at(data, position, end, _JAVASCRIPT):
                    signs |= np.uint32(JAVASCRIPT)
            elif byte == 99 or byte == 67:
                if _stands_at(data, position, end, _COOKIE):
                    signs |= np.uint32(POLICY)
            elif byte == 116 or byte == 84:
                if _stands_at(data, position, end, _TERMS):
                    signs |= np.uint32(POLICY)
            elif (byte == 112 or byte == 80) and _stands_at(data, position, end, _PRIVACY):
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
            kind = faces[_slot(np.int64(byte), np.int64(data[position + 1]), np.int64(third))]
            if kind & ANYWHERE or (kind and before_flags & BLANK):
                signs |= np.uint32(EMOTICON)
        if byte != 10:
            line_state = (line_state ^ np.uint64(codepoint)) * _PRIME
            line_has_text |= flags & BLANK == 0
        before, before_flags = codepoint, flags
        position = following
    if line_has_text and line_state == line_before:
        signs |= np.uint32(REPEATED_LINE)
    return signs
