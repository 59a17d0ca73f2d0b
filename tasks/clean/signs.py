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
STICKER = 1 << 9
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
LONG_DIGIT_RUN = 1 << 20
CITATION = 1 << 21
ALWAYS = 1 << 30
"""Every document has it: the sign of edits that no search can spare."""
LINE_SIGNS = ALWAYS | REPEATED_LINE | BLANK_TEXT
"""Those that a look at the lines alone finds."""
ALL_SIGNS = (1 << 31) - 1

STANDS_ALONE, ANYWHERE, IN_BRACKETS = 1, 2, 3
_AFTER_A_SHORT_FACE = b"\x00 \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f.,!?\xc2\xe1\xe2\xe3"
"""First bytes of all blanks among them."""
_SHORT_DIGITS = 3
_DOTS_OF_IPV4 = 3
_DIGITS_OF_PHONES, _DIGITS_OF_CARDS = 8, 13
_HEXADECIMAL_GROUP = 4
_INSIDE, _AFTER_A_BLANK, _IDLE_BLANK, _IDLE_TEXT, _IDLE_SPACELESS = 1, 2, 4, 8, 16
_ASKING = "\n&<[@:0123456789vVkKmM"
"""ASCII characters at which a sign may be seen: the last six where a word is looked for by a rare letter in it."""
_JAVASCRIPT = np.frombuffer(b"javascript", np.uint8).copy()
_IMAGE_TAG = np.frombuffer(b"<img", np.uint8).copy()
_COOKIE = np.frombuffer(b"cookie", np.uint8).copy()
_TERMS = np.frombuffer(b"terms of use", np.uint8).copy()
_PRIVACY = np.frombuffer(b"privacy policy", np.uint8).copy()


@dataclass(frozen=True)
class Faces:
    """Emoticons and stickers. `beginnings`: slot of three bytes -> place in `entries` of those that may begin with
    them, up to a -1 (0 for none); number i is `letters[bounds[i]:bounds[i + 1]]`, of one of the `kinds`. `idle`: code
    point below 0x10000 -> where it can be passed over."""

    beginnings: npt.NDArray[np.int16]
    entries: npt.NDArray[np.int16]
    bounds: npt.NDArray[np.int64]
    letters: npt.NDArray[np.uint8]
    kinds: npt.NDArray[np.uint8]
    idle: npt.NDArray[np.uint8]


@functools.cache
def faces(standing_alone: tuple[str, ...], anywhere: tuple[str, ...], stickers: tuple[str, ...]) -> Faces:
    """Tables for emoticons that count between blanks only, for those that count anywhere, and for stickers. One of two
    bytes has a blank, a mark of the end of a sentence, or nothing as its third."""
    words = [word.encode() for word in (*standing_alone, *anywhere, *stickers)]
    of_slot: dict[int, list[int]] = {}
    for number, raw in enumerate(words):
        for third in raw[2:3] or _AFTER_A_SHORT_FACE:
            of_slot.setdefault(int(_slot(raw[0], raw[1], third)), []).append(number)
    table = np.zeros(1 << 16, np.int16)
    entries = [-1]
    for slot, numbers in of_slot.items():
        table[slot] = len(entries)
        entries += [*numbers, -1]
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
    bounds = np.cumsum([0, *map(len, words)]).astype(np.int64)
    kinds = np.repeat((STANDS_ALONE, ANYWHERE, IN_BRACKETS), (len(standing_alone), len(anywhere), len(stickers)))
    letters = np.frombuffer(b"".join(words), np.uint8).copy()
    return Faces(table, np.array(entries, np.int16), bounds, letters, kinds.astype(np.uint8), idle)


def signs_of(data: np.ndarray, begins: np.ndarray, ends: np.ndarray, known: Faces) -> np.ndarray:
    """The signs (uint32) of each text data[begins[i]:ends[i]] (uint8, int64)."""
    found = np.zeros(len(begins), np.uint32)
    emoticons = known.beginnings, known.entries, known.bounds, known.letters, known.kinds
    _signs(data, begins, ends, character_flags(), emoticons, known.idle, found)
    return found


def line_signs_of(data: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The same, without any but LINE_SIGNS."""
    found = np.zeros(len(begins), np.uint32)
    _line_signs(data, begins, ends, character_flags(), found)
    return found


def mojibake_in_lines(raw: np.ndarray) -> np.ndarray:
    """For each line of a text (UTF-8 bytes) that has the sign of mojibake a row: its number, where it begins and ends,
    and where its first and last signs end."""
    found = np.zeros((int((raw == ord("\n")).sum()) + 1, 5), np.int64)
    return found[: _mojibake_in_lines(raw, character_flags(), found)]


@kernel
def _is_mojibake_sign(before, before_flags, flags):
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
        if _is_mojibake_sign(before, before_flags, flags):
            first = first or position
            last = position
        before, before_flags = codepoint, flags
    return count


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
def _is_hexadecimal(codepoint):
    return 48 <= codepoint <= 57 or 97 <= codepoint <= 102 or 65 <= codepoint <= 70


@kernel
def _are_equal(data, first, second, size):
    offset = 0
    while offset < size and data[first + offset] == data[second + offset]:
        offset += 1
    return offset == size


@kernel
def _faces_at(data, position, end, is_after_blank, entry, entries, bounds, letters, kinds):
    """The signs of the faces, from an entry on, that stand at a position; alone if they must."""
    found = np.uint32(0)
    while entries[entry] >= 0:
        number = entries[entry]
        after = position + bounds[number + 1] - bounds[number]
        kind = kinds[number]
        if after <= end and (is_after_blank or kind != STANDS_ALONE):
            offset = 0
            while position + offset < after and data[position + offset] == letters[bounds[number] + offset]:
                offset += 1
            if position + offset == after and (kind != STANDS_ALONE or after == end or _may_follow(data[after])):
                found |= np.uint32(STICKER if kind == IN_BRACKETS else EMOTICON)
        entry += 1
    return found


@kernel
def _may_follow(byte):
    """Whether a blank, or a mark of the end of a sentence, may begin with a byte."""
    is_blank = byte == 32 or 9 <= byte <= 13 or 28 <= byte <= 31
    return is_blank or byte == 46 or byte == 44 or byte == 33 or byte == 63 or byte >= 0x80


@kernel
def _line_signs(data, begins, ends, table, found):
    for text in range(len(found)):
        end = ends[text]
        line = line_before = begins[text]
        size_before = -1
        signs = np.uint32(ALWAYS | BLANK_TEXT)
        while line <= end:
            line_has_text = False
            position = line
            while position < end and data[position] != 10 and not line_has_text:
                codepoint, position = decode(data, position)
                line_has_text = flags_of(codepoint, table) & BLANK == 0
            while position < end and data[position] != 10:
                position += 1
            if line_has_text:
                signs &= ~np.uint32(BLANK_TEXT)
                if position - line == size_before and _are_equal(data, line, line_before, size_before):
                    signs |= np.uint32(REPEATED_LINE)
            line_before, size_before = line, position - line
            line = position + 1
        found[text] = signs


@kernel
def _signs(data, begins, ends, table, emoticons, idle, found):
    for text in range(len(found)):
        found[text] = _signs_of_one(data, begins[text], ends[text], table, emoticons, idle)


@kernel
def _signs_of_one(data, begin, end, table, emoticons, idle):
    beginnings, entries, bounds, letters, kinds = emoticons
    signs = np.uint32(ALWAYS)
    position = begin
    before = np.int64(10)
    before_flags = np.int64(BLANK)
    digits = digit_groups = digits_together = 0
    shortcode = -1
    colons = group = 0
    line = line_before = begin
    size_before = -1
    line_has_text = has_text = is_double = False
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
            if digit_groups >= _DOTS_OF_IPV4:
                signs |= np.uint32(DOTTED_DIGITS)
            if digits_together >= _DIGITS_OF_PHONES:
                signs |= np.uint32(DIGIT_RUN)
                if digits_together >= _DIGITS_OF_CARDS:
                    signs |= np.uint32(LONG_DIGIT_RUN)
        else:
            if byte == 46 and 0 < digits <= _SHORT_DIGITS:
                digit_groups += 1
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
                if _stands_at(data, begin, position, end, _IMAGE_TAG):
                    signs |= np.uint32(IMAGE)
            elif byte == 91:
                following_byte = data[position + 1] if position + 1 < end else np.uint8(0)
                if 48 <= following_byte <= 57 or following_byte == 101 or following_byte == 99:
                    signs |= np.uint32(CITATION)
                if before == 33:
                    signs |= np.uint32(MARKUP | IMAGE)
            elif byte == 64:
                signs |= np.uint32(AT)
            elif byte == 58:
                if shortcode >= 1:
                    signs |= np.uint32(SHORTCODE)
                is_joined = _is_hexadecimal(before) or 103 <= before <= 122 or 71 <= before <= 90
                shortcode = -1 if is_joined or before == 95 or before == 58 or before == 47 else 0
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
            # Two groups of hexadecimal digits with one or two colons behind each, and the beginning of a third
            if byte == 58:
                if colons and group == 0:
                    colons = colons if before == 58 and not is_double else 0
                    is_double = True
                elif _is_hexadecimal(before):
                    colons = colons + 1 if colons and group <= _HEXADECIMAL_GROUP else 1
                    is_double = False
                group = 0
            elif colons:
                if _is_hexadecimal(codepoint):
                    group += 1
                    if colons >= 2:
                        signs |= np.uint32(COLON_GROUP)
                else:
                    colons = group = 0
        else:
            shortcode = -1
            colons = group = 0
        if position + 1 < end:
            third = data[position + 2] if position + 2 < end else np.uint8(0)
            entry = beginnings[_slot(np.int64(byte), np.int64(data[position + 1]), np.int64(third))]
            if entry:
                is_after_blank = before_flags & BLANK != 0
                signs |= _faces_at(data, position, end, is_after_blank, entry, entries, bounds, letters, kinds)
        if byte != 10:
            line_has_text |= flags & BLANK == 0
        has_text |= flags & BLANK == 0
        before, before_flags = codepoint, flags
        position = following
        if digits_together == 0 and shortcode < 0 and colons == 0 and before_flags & SOUND:
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
