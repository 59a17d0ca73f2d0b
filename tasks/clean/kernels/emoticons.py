"""Tables of emoticons and stickers for the feature scan, and of characters that the scan may skip."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model.kernels import kernel
from tasks.clean.kernels.characters import (
    INVISIBLE,
    MAY_BE_EMOJI,
    MAY_COMPOSE,
    MOJIBAKE_ALONE,
    UNDAMAGED,
    UNSEGMENTED,
    WHITESPACE,
    character_flags,
)

ISOLATED, ANYWHERE, IN_BRACKETS = 1, 2, 4

_AFTER_TWO_BYTES = b"\x00 \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f.,!?\xc2\xe1\xe2\xe3"
"""Bytes that may follow an emoticon of two bytes; the first bytes of all whitespace are among them."""

INSIDE, AFTER_WHITESPACE, SKIPPABLE_WHITESPACE, SKIPPABLE_TEXT, SKIPPABLE_UNSEGMENTED = 1, 2, 4, 8, 16

_FEATURE_CHARACTERS = "\n&<[@:=：_0123456789vVkKmM"
"""Characters at which a feature may begin; the last six are rare letters of words that the scan looks for."""


@dataclass(frozen=True)
class EmoticonTables:
    """Emoticons and stickers, as the feature scan looks them up.

    `beginnings` maps the slot of three bytes to the place in `entries` of those that may begin with them, up to a -1 (0
    for none); number i is `letters[bounds[i]:bounds[i + 1]]`, of one of the `kinds`.
    """

    beginnings: npt.NDArray[np.int16]
    entries: npt.NDArray[np.int16]
    bounds: npt.NDArray[np.int64]
    letters: npt.NDArray[np.uint8]
    kinds: npt.NDArray[np.uint8]


def emoticon_tables(isolated: tuple[str, ...], anywhere: tuple[str, ...], stickers: tuple[str, ...]) -> EmoticonTables:
    """Build tables of emoticons that count between whitespace only, of those that count anywhere, and of stickers.

    An emoticon of two bytes has whitespace, a mark of the end of a sentence, or nothing as its third.
    """
    words = [word.encode() for word in (*isolated, *anywhere, *stickers)]
    of_slot: dict[int, list[int]] = {}
    for number, raw in enumerate(words):
        for third in raw[2:3] or _AFTER_TWO_BYTES:
            of_slot.setdefault(int(slot_of(raw[0], raw[1], third)), []).append(number)
    table = np.zeros(1 << 16, np.int16)
    entries = [-1]
    for slot, numbers in of_slot.items():
        table[slot] = len(entries)
        entries += [*numbers, -1]
    bounds = np.cumsum([0, *map(len, words)]).astype(np.int64)
    kinds = np.repeat((ISOLATED, ANYWHERE, IN_BRACKETS), (len(isolated), len(anywhere), len(stickers)))
    letters = np.frombuffer(b"".join(words), np.uint8).copy()
    return EmoticonTables(table, np.array(entries, np.int16), bounds, letters, kinds.astype(np.uint8))


@kernel
def slot_of(first, second, third):
    return ((first * 257 + second) * 263 + third * 7) & 0xFFFF


@kernel
def match_emoticons(data, position, end, is_after_whitespace, entry, entries, bounds, letters, kinds):
    """Return the kinds, combined, of the emoticons from an entry on that match at a position."""
    found = np.uint8(0)
    while entries[entry] >= 0:
        number = entries[entry]
        after = position + bounds[number + 1] - bounds[number]
        kind = kinds[number]
        if after <= end and (is_after_whitespace or kind != ISOLATED):
            offset = 0
            while position + offset < after and data[position + offset] == letters[bounds[number] + offset]:
                offset += 1
            if position + offset == after and (kind != ISOLATED or after == end or _may_end_emoticon(data[after])):
                found |= kind
        entry += 1
    return found


@kernel
def _may_end_emoticon(byte):
    """Return whether whitespace, or a mark of the end of a sentence, may begin with a byte."""
    is_blank = byte == ord(" ") or ord("\t") <= byte <= ord("\r") or 28 <= byte <= 31
    return is_blank or byte == ord(".") or byte == ord(",") or byte == ord("!") or byte == ord("?") or byte >= 0x80


def skippable_characters(isolated: tuple[str, ...], anywhere: tuple[str, ...]) -> npt.NDArray[np.uint8]:
    """Return for each code point below 0x10000 where the scan may skip it, and what it is; 0 for nowhere.

    The flags are INSIDE, AFTER_WHITESPACE and SKIPPABLE_*. An emoticon of `anywhere` may begin after any character, one
    of `isolated` after whitespace only.
    """
    flags = character_flags()[: 1 << 16]
    may_have_feature = INVISIBLE | MAY_BE_EMOJI | MAY_COMPOSE | MOJIBAKE_ALONE
    skippable = np.where(
        (flags & UNDAMAGED != 0) & (flags & may_have_feature == 0), INSIDE | AFTER_WHITESPACE, 0
    ).astype(np.uint8)
    skippable[[ord(character) for character in (*_FEATURE_CHARACTERS, *(word[0] for word in anywhere))]] = 0
    skippable[[ord(word[0]) for word in isolated]] &= INSIDE
    for found, kind in (
        (flags & WHITESPACE != 0, SKIPPABLE_WHITESPACE),
        (flags & WHITESPACE == 0, SKIPPABLE_TEXT),
        (flags & UNSEGMENTED != 0, SKIPPABLE_UNSEGMENTED),
    ):
        skippable[(skippable != 0) & found] |= kind
    return skippable
