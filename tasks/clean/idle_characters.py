"""Characters at which no sign can be seen, so that the search for signs passes over them."""

import functools

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
)

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
