"""One pass over the UTF-8 bytes of many documents that finds which edits a document may need at all.

An edit without its feature flag would leave the text unchanged, so clean text is never decoded: that makes cleaning as
fast as reading. A flag may be set where the edit then changes nothing, never the other way round.
"""

import numpy as np
import numpy.typing as npt

from model.kernels import kernel
from tasks.clean.kernels.candidates import (
    account_before,
    assigns_secret,
    ends_key,
    ends_password,
    is_in_hub_token,
    number_at,
    token_around,
)
from tasks.clean.kernels.characters import (
    INVISIBLE,
    MAY_BE_EMOJI,
    MAY_COMPOSE,
    UNDAMAGED,
    UNSEGMENTED,
    WHITESPACE,
    character_flags,
    flags_of,
    suggests_mojibake,
)
from tasks.clean.kernels.emoticons import (
    AFTER_WHITESPACE,
    IN_BRACKETS,
    INSIDE,
    SKIPPABLE_TEXT,
    SKIPPABLE_UNSEGMENTED,
    SKIPPABLE_WHITESPACE,
    EmoticonTables,
    match_emoticons,
    slot_of,
)
from tasks.common.utf8 import decode, has_bytes, has_word

(
    NON_ASCII, MOJIBAKE, AMPERSAND, COMPOSITION, INVISIBLE_CHARACTER, MARKUP, EMOJI, EMOTICON, SHORTCODE, STICKER, AT,
    DOTTED_DIGITS, COLON_GROUP, DIGIT_RUN, REPEATED_LINE, JAVASCRIPT, POLICY, IMAGE,
    BLANK_TEXT,  # nothing, or whitespace only
    UNSEGMENTED_SCRIPT, LONG_DIGIT_RUN, CITATION,
    WIKITEXT,  # two square brackets before a letter: a link of MediaWiki
    ACCOUNT,  # capitals before digits, as in an IBAN (`account_before`)
    SECRET,  # a place where `secrets_in` looks for a key or password
) = (1 << bit for bit in range(25))  # fmt: skip

ALWAYS = 1 << 30
"""Set for every document: the trigger of edits that no scan can rule out."""

LINE_FEATURES = ALWAYS | REPEATED_LINE | BLANK_TEXT
"""Flags that a scan of the lines alone finds."""

ALL_FEATURES = (1 << 31) - 1
_SHORT_DIGITS = 3
_DOTS_OF_IPV4 = 3
_DIGITS_OF_CARDS = 13
_HEXADECIMAL_GROUP = 4
_FULLWIDTH_COLON = 0xFF1A
_JAVASCRIPT = np.frombuffer(b"javascript", np.uint8).copy()
_IMAGE_TAG = np.frombuffer(b"<img", np.uint8).copy()
_COOKIE = np.frombuffer(b"cookie", np.uint8).copy()
_TERMS = np.frombuffer(b"terms of use", np.uint8).copy()
_PRIVACY = np.frombuffer(b"privacy policy", np.uint8).copy()


def scan_features(
    data: np.ndarray, begins: np.ndarray, ends: np.ndarray, known: EmoticonTables, skippable: npt.NDArray[np.uint8]
) -> np.ndarray:
    """Return the feature flags (uint32) of each text data[begins[i]:ends[i]] (uint8, int64).

    `known` and `skippable` are from `emoticon_tables` and `skippable_characters`.
    """
    found = np.zeros(len(begins), np.uint32)
    emoticons = known.beginnings, known.entries, known.bounds, known.letters, known.kinds
    _scan_texts(data, begins, ends, character_flags(), emoticons, skippable, found)
    return found


def scan_line_features(data: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the flags of LINE_FEATURES alone."""
    found = np.zeros(len(begins), np.uint32)
    _scan_lines(data, begins, ends, character_flags(), found)
    return found


@kernel
def _scan_texts(data, begins, ends, table, emoticons, skippable, found):
    for text in range(len(found)):
        found[text] = _scan_text(data, begins[text], ends[text], table, emoticons, skippable)


@kernel
def _scan_text(data, begin, end, table, emoticons, skippable):
    beginnings, entries, bounds, letters, kinds = emoticons
    features = np.uint32(ALWAYS)
    position = begin
    before = np.int64(10)
    before_flags = np.int64(WHITESPACE)
    digits = digit_groups = 0
    number_end = token_end = begin
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
            features |= np.uint32(NON_ASCII)
            if suggests_mojibake(before, before_flags, flags):
                features |= np.uint32(MOJIBAKE)
            if flags & MAY_BE_EMOJI:
                features |= np.uint32(EMOJI)
            if flags & MAY_COMPOSE:
                features |= np.uint32(COMPOSITION)
            if flags & UNSEGMENTED:
                features |= np.uint32(UNSEGMENTED_SCRIPT)
        if flags & INVISIBLE:
            features |= np.uint32(INVISIBLE_CHARACTER)
        # Numbers, accounts and tokens are scanned to their ends where they begin
        if ord("0") <= byte <= ord("9"):
            digits += 1
            if position >= number_end:
                number, number_end = number_at(data, begin, position, end)
                if number:
                    features |= np.uint32(DIGIT_RUN)
                    if number >= _DIGITS_OF_CARDS:
                        features |= np.uint32(LONG_DIGIT_RUN)
            if digits == 1 and position >= token_end:
                token, token_end = token_around(data, begin, position, end)
                if token >= 0:
                    features |= np.uint32(SECRET)
            if (digits == 2 or digits == 7) and account_before(data, begin, position, end, digits) >= 0:
                features |= np.uint32(ACCOUNT)
            if digit_groups >= _DOTS_OF_IPV4:
                features |= np.uint32(DOTTED_DIGITS)
        else:
            if byte == ord(".") and 0 < digits <= _SHORT_DIGITS:
                digit_groups += 1
            else:
                digit_groups = 0
            digits = 0
        if byte < 0x80:
            if byte == ord("\n"):
                is_as_long = line_has_text and position - line == size_before
                if is_as_long and has_bytes(data, line, position, data, line_before, size_before):
                    features |= np.uint32(REPEATED_LINE)
                line_before, size_before = line, position - line
                line = following
                line_has_text = False
            elif byte == ord("&"):
                features |= np.uint32(AMPERSAND | MARKUP)
            elif byte == ord("<"):
                features |= np.uint32(MARKUP)
                if has_word(data, begin, position, end, _IMAGE_TAG):
                    features |= np.uint32(IMAGE)
            elif byte == ord("["):
                following_byte = data[position + 1] if position + 1 < end else np.uint8(0)
                if ord("0") <= following_byte <= ord("9") or following_byte == ord("e") or following_byte == ord("c"):
                    features |= np.uint32(CITATION)
                if before == ord("!"):
                    features |= np.uint32(MARKUP | IMAGE)
                is_letter = (
                    ord("a") <= following_byte | 32 <= ord("z") or following_byte >= 0x80 or following_byte == ord(":")
                )
                if before == ord("[") and is_letter:
                    features |= np.uint32(WIKITEXT)
            elif byte == ord("@"):
                features |= np.uint32(AT)
                if ends_password(data, begin, position):
                    features |= np.uint32(SECRET)
            elif byte == ord("="):
                if assigns_secret(data, begin, position, following, end):
                    features |= np.uint32(SECRET)
            elif byte == ord(":"):
                if assigns_secret(data, begin, position, following, end):
                    features |= np.uint32(SECRET)
                if shortcode >= 1:
                    features |= np.uint32(SHORTCODE)
                is_joined = _is_hexadecimal(before) or ord("g") <= before <= ord("z") or ord("G") <= before <= ord("Z")
                shortcode = -1 if is_joined or before == ord("_") or before == ord(":") or before == ord("/") else 0
            elif byte == ord("v") or byte == ord("V"):
                if has_word(data, begin, position - 2, end, _JAVASCRIPT):
                    features |= np.uint32(JAVASCRIPT)
                if has_word(data, begin, position - 3, end, _PRIVACY):
                    features |= np.uint32(POLICY)
            elif byte == ord("k") or byte == ord("K"):
                if has_word(data, begin, position - 3, end, _COOKIE):
                    features |= np.uint32(POLICY)
                if byte == ord("K") and ends_key(data, begin, position, end):
                    features |= np.uint32(SECRET)
            elif before == ord("f") and byte == ord("_"):
                if is_in_hub_token(data, begin, position, end):
                    features |= np.uint32(SECRET)
            elif (byte == ord("m") or byte == ord("M")) and has_word(data, begin, position - 3, end, _TERMS):
                features |= np.uint32(POLICY)
            if shortcode >= 0 and byte != ord(":"):
                is_name = (
                    ord("a") <= byte <= ord("z")
                    or ord("A") <= byte <= ord("Z")
                    or ord("0") <= byte <= ord("9")
                    or byte == ord("_")
                    or byte == ord("+")
                )
                shortcode = shortcode + 1 if is_name or byte == ord("-") else -1
            # Two groups of hexadecimal digits with one or two colons behind each, and the beginning of a third
            if byte == ord(":"):
                if colons and group == 0:
                    colons = colons if before == ord(":") and not is_double else 0
                    is_double = True
                elif _is_hexadecimal(before):
                    colons = colons + 1 if colons and group <= _HEXADECIMAL_GROUP else 1
                    is_double = False
                group = 0
            elif colons:
                if _is_hexadecimal(codepoint):
                    group += 1
                    if colons >= 2:
                        features |= np.uint32(COLON_GROUP)
                else:
                    colons = group = 0
        else:
            shortcode = -1
            colons = group = 0
            if codepoint == _FULLWIDTH_COLON and assigns_secret(data, begin, position, following, end):
                features |= np.uint32(SECRET)
        if position + 1 < end:
            third = data[position + 2] if position + 2 < end else np.uint8(0)
            entry = beginnings[slot_of(np.int64(byte), np.int64(data[position + 1]), np.int64(third))]
            if entry:
                is_after_whitespace = before_flags & WHITESPACE != 0
                emoticon_kinds = match_emoticons(
                    data, position, end, is_after_whitespace, entry, entries, bounds, letters, kinds
                )
                if emoticon_kinds & IN_BRACKETS:
                    features |= np.uint32(STICKER)
                if emoticon_kinds & ~IN_BRACKETS:
                    features |= np.uint32(EMOTICON)
        if byte != ord("\n"):
            line_has_text |= flags & WHITESPACE == 0
        has_text |= flags & WHITESPACE == 0
        before, before_flags = codepoint, flags
        position = following
        if digits == 0 and digit_groups == 0 and shortcode < 0 and colons == 0 and before_flags & UNDAMAGED:
            # Most of a text is skipped here: characters at which no feature can begin.
            skip_state = AFTER_WHITESPACE if before_flags & WHITESPACE else INSIDE
            skipped = 0
            highest = np.int64(0)
            while position < end:
                if data[position] < 0x80:
                    codepoint, following = np.int64(data[position]), position + 1
                elif data[position] < 0xF0:
                    codepoint, following = decode(data, position)
                else:
                    break
                here = skippable[codepoint]
                if here & skip_state == 0:
                    break
                skip_state = AFTER_WHITESPACE if here & SKIPPABLE_WHITESPACE else INSIDE
                skipped |= here
                highest |= codepoint
                before = codepoint
                position = following
            if skipped:
                before_flags = np.int64(table[before])
                digit_groups = 0
                if highest >= 0x80:
                    features |= np.uint32(NON_ASCII)
                if skipped & SKIPPABLE_UNSEGMENTED:
                    features |= np.uint32(UNSEGMENTED_SCRIPT)
                if skipped & SKIPPABLE_TEXT:
                    line_has_text = has_text = True
    is_as_long = line_has_text and end - line == size_before
    if is_as_long and has_bytes(data, line, end, data, line_before, size_before):
        features |= np.uint32(REPEATED_LINE)
    if not has_text:
        features |= np.uint32(BLANK_TEXT)
    return features


@kernel
def _scan_lines(data, begins, ends, table, found):
    for text in range(len(found)):
        end = ends[text]
        line = line_before = begins[text]
        size_before = -1
        features = np.uint32(ALWAYS | BLANK_TEXT)
        while line <= end:
            line_has_text = False
            position = line
            while position < end and data[position] != ord("\n") and not line_has_text:
                codepoint, position = decode(data, position)
                line_has_text = flags_of(codepoint, table) & WHITESPACE == 0
            while position < end and data[position] != ord("\n"):
                position += 1
            if line_has_text:
                features &= ~np.uint32(BLANK_TEXT)
                is_as_long = position - line == size_before
                if is_as_long and has_bytes(data, line, position, data, line_before, size_before):
                    features |= np.uint32(REPEATED_LINE)
            line_before, size_before = line, position - line
            line = position + 1
        found[text] = features


@kernel
def _is_hexadecimal(codepoint):
    return ord("0") <= codepoint <= ord("9") or ord("a") <= codepoint <= ord("f") or ord("A") <= codepoint <= ord("F")
