"""Scripts that a vocabulary can be grown by: which characters belong to them, and which must have a piece of their own.

A piece of a new script that holds no character of the base's languages can never take part in a merge of their text,
so old text keeps its ids by construction.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tasks.tokenizer import BLANK

_CJK = ((0x3000, 0x303F), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0xFF00, 0xFFEF), (0x20000, 0x2FA1F))
_CYRILLIC = ((0x0400, 0x052F),)
_GB2312_ROWS, _GB2312_CELLS = range(0xB0, 0xF8), range(0xA1, 0xFF)


@dataclass(frozen=True)
class Script:
    """One script: the `ranges` of its code points, both ends included; `characters` that must get a piece of their own;
    `spaced` where blanks part words."""

    name: str
    ranges: tuple[tuple[int, int], ...]
    characters: tuple[str, ...]
    spaced: bool
    _run: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        character = "[" + "".join(f"{chr(low)}-{chr(high)}" for low, high in self.ranges) + "]"
        object.__setattr__(self, "_run", re.compile(f"(?: ?{character}+)+" if self.spaced else f"{character}+"))

    def holds(self, character: str) -> bool:
        """Whether a character belongs to the script."""
        return any(low <= ord(character) <= high for low, high in self.ranges)

    def admits(self, piece: str) -> bool:
        """Whether a piece consists of this script alone, but for a blank before its first word where words have one."""
        body = piece.removeprefix(BLANK) if self.spaced else piece
        return bool(body) and all(self.holds(character) for character in body)

    def runs(self, text: str) -> Iterator[str]:
        """The stretches of a text that are of this script, with the single blanks before words where it has them."""
        return (match[0] for match in self._run.finditer(text))

    def occurs_in(self, text: str) -> bool:
        """Whether a text holds any character of this script."""
        return self._run.search(text) is not None


def gb2312_ideographs() -> tuple[str, ...]:
    """The 6,763 ideographs of GB 2312-80 in its own order, frequent ones first; read from Python's codec."""
    found: list[str] = []
    for row in _GB2312_ROWS:
        for cell in _GB2312_CELLS:
            # The last five cells of row 0xD7 are empty, and so stay what the codec refuses.
            found += bytes([row, cell]).decode("gb2312", errors="ignore")
    return tuple(found)


CHINESE = Script("zh", _CJK, gb2312_ideographs(), spaced=False)
RUSSIAN = Script(
    "ru",
    _CYRILLIC,
    tuple("абвгдеёжзийклмнопрстуфхцчшщъыьэюяАБВГДЕЁЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯ"),
    spaced=True,
)
SCRIPTS = {script.name: script for script in (CHINESE, RUSSIAN)}
