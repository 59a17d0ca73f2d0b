"""Emoticons and stickers as tables, in which a kernel looks up whether one of them stands at a place.

Characters at which no sign can be seen, so that the search for signs passes over them.
"""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.clean.kernels.characters import (
    BLANK,
    MAY_BE_EMOJI,
    MAY_COMPOSE,
    MOJIBAKE_ALONE,
    SOUND,
    SPACELESS,
    UNSEEN,
    character_flags,
)
from tasks.common.kernels import kernel

STANDS_ALONE, ANYWHERE, IN_BRACKETS = 1, 2, 4

_AFTER_A_SHORT_FACE = b"\x00 \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f.,!?\xc2\xe1\xe2\xe3"
"""First bytes of all blanks among them."""


@dataclass(frozen=True)
class Faces:
    """Emoticons and stickers. `beginnings`: slot of three bytes -> place in `entries` of those that may begin with
    them, up to a -1 (0 for none); number i is `letters[bounds[i]:bounds[i + 1]]`, of one of the `kinds`."""

    beginnings: npt.NDArray[np.int16]
    entries: npt.NDArray[np.int16]
    bounds: npt.NDArray[np.int64]
    letters: npt.NDArray[np.uint8]
    kinds: npt.NDArray[np.uint8]


@functools.cache
def faces(standing_alone: tuple[str, ...], anywhere: tuple[str, ...], stickers: tuple[str, ...]) -> Faces:
    """Tables for emoticons that count between blanks only, for those that count anywhere, and for stickers. One of two
    bytes has a blank, a mark of the end of a sentence, or nothing as its third."""
    words = [word.encode() for word in (*standing_alone, *anywhere, *stickers)]
    of_slot: dict[int, list[int]] = {}
    for number, raw in enumerate(words):
        for third in raw[2:3] or _AFTER_A_SHORT_FACE:
            of_slot.setdefault(int(slot_of(raw[0], raw[1], third)), []).append(number)
    table = np.zeros(1 << 16, np.int16)
    entries = [-1]
    for slot, numbers in of_slot.items():
        table[slot] = len(entries)
        entries += [*numbers, -1]
    bounds = np.cumsum([0, *map(len, words)]).astype(np.int64)
    kinds = np.repeat((STANDS_ALONE, ANYWHERE, IN_BRACKETS), (len(standing_alone), len(anywhere), len(stickers)))
    letters = np.frombuffer(b"".join(words), np.uint8).copy()
    return Faces(table, np.array(entries, np.int16), bounds, letters, kinds.astype(np.uint8))


@kernel
def slot_of(first, second, third):
    return ((first * 257 + second) * 263 + third * 7) & 0xFFFF


@kernel
def faces_at(data, position, end, is_after_blank, entry, entries, bounds, letters, kinds):
    """The kinds, together, of the faces from an entry on that stand at a position; alone if they must."""
    found = np.uint8(0)
    while entries[entry] >= 0:
        number = entries[entry]
        after = position + bounds[number + 1] - bounds[number]
        kind = kinds[number]
        if after <= end and (is_after_blank or kind != STANDS_ALONE):
            offset = 0
            while position + offset < after and data[position + offset] == letters[bounds[number] + offset]:
                offset += 1
            if position + offset == after and (kind != STANDS_ALONE or after == end or _may_follow(data[after])):
                found |= kind
        entry += 1
    return found


@kernel
def _may_follow(byte):
    """Whether a blank, or a mark of the end of a sentence, may begin with a byte."""
    is_blank = byte == 32 or 9 <= byte <= 13 or 28 <= byte <= 31
    return is_blank or byte == 46 or byte == 44 or byte == 33 or byte == 63 or byte >= 0x80


INSIDE, AFTER_A_BLANK, IDLE_BLANK, IDLE_TEXT, IDLE_SPACELESS = 1, 2, 4, 8, 16

_ASKING = "\n&<[@:0123456789vVkKmM"
"""ASCII characters at which a sign may be seen: the last six where a word is looked for by a rare letter in it."""


@functools.cache
def idle_characters(standing_alone: tuple[str, ...], anywhere: tuple[str, ...]) -> npt.NDArray[np.uint8]:
    """Code point below 0x10000 -> where it is passed over (INSIDE, AFTER_A_BLANK) and what it is; 0 for nowhere.

    An emoticon of `anywhere` may begin behind any character, one of `standing_alone` behind a blank only.
    """
    flags = character_flags()[: 1 << 16]
    asking = UNSEEN | MAY_BE_EMOJI | MAY_COMPOSE | MOJIBAKE_ALONE
    idle = np.where((flags & SOUND != 0) & (flags & asking == 0), INSIDE | AFTER_A_BLANK, 0).astype(np.uint8)
    idle[[ord(character) for character in (*_ASKING, *(word[0] for word in anywhere))]] = 0
    idle[[ord(word[0]) for word in standing_alone]] &= INSIDE
    for found, kind in (
        (flags & BLANK != 0, IDLE_BLANK),
        (flags & BLANK == 0, IDLE_TEXT),
        (flags & SPACELESS != 0, IDLE_SPACELESS),
    ):
        idle[(idle != 0) & found] |= kind
    return idle
