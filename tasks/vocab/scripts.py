"""Scripts by which a vocabulary can be extended: which characters belong to them, and which must have their own token.

A token of a new script that has no character of the base's languages never takes part in a merge of their text, so old
text keeps its ids by construction.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tasks.tokenizer.model_file import BLANK

# Blocks of the Unicode standard; the byte order mark at the end of Arabic's last one is left out.
_CJK = ((0x3000, 0x303F), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0xFF00, 0xFFEF), (0x20000, 0x2FA1F))
_KANA = ((0x3040, 0x30FF), (0x31F0, 0x31FF))
_HANGUL = ((0x1100, 0x11FF), (0x3130, 0x318F), (0xAC00, 0xD7AF))
_CYRILLIC = ((0x0400, 0x052F),)
_GREEK = ((0x0370, 0x03FF), (0x1F00, 0x1FFF))
_HEBREW = ((0x0590, 0x05FF), (0xFB1D, 0xFB4F))
_ARABIC = ((0x0600, 0x06FF), (0x0750, 0x077F), (0x08A0, 0x08FF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFC))
_DEVANAGARI = ((0x0900, 0x097F), (0xA8E0, 0xA8FF))
_THAI = ((0x0E00, 0x0E7F),)
_CELLS = range(0xA1, 0xFF)
"""Second bytes in the national standards of East Asia, whose first bytes are rows."""


@dataclass(frozen=True)
class Script:
    """One script: the `ranges` of its code points, both ends included; `characters` that must get a token of their
    own; `spaced` where spaces separate words."""

    ranges: tuple[tuple[int, int], ...]
    characters: tuple[str, ...]
    spaced: bool
    _run: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        character = "[" + "".join(f"{chr(low)}-{chr(high)}" for low, high in self.ranges) + "]"
        object.__setattr__(self, "_run", re.compile(f"(?: ?{character}+)+" if self.spaced else f"{character}+"))

    def holds(self, character: str) -> bool:
        """Return whether a character belongs to the script."""
        return any(low <= ord(character) <= high for low, high in self.ranges)

    def admits(self, piece: str) -> bool:
        """Return whether a token consists of this script alone, except for a space before its first word where the
        script has spaces."""
        body = piece.removeprefix(BLANK) if self.spaced else piece
        return bool(body) and all(self.holds(character) for character in body)

    def runs(self, text: str) -> Iterator[str]:
        """Yield the runs of a text that are of this script, with the single spaces before words where it has them."""
        return (match[0] for match in self._run.finditer(text))

    def occurs_in(self, text: str) -> bool:
        """Return whether a text has any character of this script."""
        return self._run.search(text) is not None


def _of_rows(codec: str, rows: Iterable[int]) -> tuple[str, ...]:
    """Return the characters of a standard, decoded by Python's codec; unassigned cells are skipped."""
    return tuple("".join(bytes([row, cell]).decode(codec, errors="ignore") for row in rows for cell in _CELLS))


def _letters(*ranges: tuple[int, int], extra: str = "") -> tuple[str, ...]:
    return (*(chr(point) for low, high in ranges for point in range(low, high + 1)), *extra)


SCRIPTS = {
    "ar": Script(_ARABIC, _letters((0x0621, 0x063A), (0x0641, 0x0652), extra="،؛؟"), spaced=True),
    "el": Script(_GREEK, _letters((0x03AC, 0x03CE), (0x0391, 0x03A1), (0x03A3, 0x03A9), extra="ΆΈΉΊΌΎΏΐ"), spaced=True),
    "fa": Script(_ARABIC, _letters((0x0621, 0x063A), (0x0641, 0x0648), extra="یپچژگک،؛؟"), spaced=True),
    "he": Script(_HEBREW, _letters((0x05D0, 0x05EA)), spaced=True),
    "hi": Script(
        _DEVANAGARI, _letters((0x0901, 0x0903), (0x0905, 0x0939), (0x093C, 0x094D), (0x0964, 0x096F)), spaced=True
    ),
    "ja": Script((*_KANA, *_CJK), _of_rows("euc_jp", (0xA4, 0xA5, *range(0xB0, 0xD0))), spaced=False),
    "ko": Script(_HANGUL, _of_rows("euc_kr", range(0xB0, 0xC9)), spaced=True),
    "ru": Script(_CYRILLIC, tuple("абвгдеёжзийклмнопрстуфхцчшщъыьэюяАБВГДЕЁЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯ"), spaced=True),
    "th": Script(_THAI, _letters((0x0E01, 0x0E3A), (0x0E40, 0x0E4E), (0x0E50, 0x0E59)), spaced=False),
    "uk": Script(_CYRILLIC, tuple("абвгґдеєжзиіїйклмнопрстуфхцчшщьюяАБВГҐДЕЄЖЗИІЇЙКЛМНОПРСТУФХЦЧШЩЬЮЯ"), spaced=True),
    "zh": Script(_CJK, _of_rows("gb2312", range(0xB0, 0xF8)), spaced=False),
}
"""By language. Japanese: Hiragana, Katakana and the 2,965 kanji of the first level of JIS X 0208, the most common ones.
Korean: the 2,350 syllables of KS X 1001, nearly all of modern Korean. Chinese: the 6,763 ideographs of GB 2312-80 in
its own order, frequent ones first."""
