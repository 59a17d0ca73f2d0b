"""Words of a text, also where the script puts no blanks between them.

In spaced scripts a word is what stands between blanks. In Chinese, Japanese, Thai, Lao, Khmer, Burmese and Tibetan each
character with its marks is a unit, and a number of units counts as one word: 1.7 for Chinese and Japanese (mean word
length of segmented corpora), 3 for the others.
"""

import re
from typing import Any

import regex

Ranges = tuple[tuple[int, int], ...]

CHINESE_JAPANESE: Ranges = (
    (0x3005, 0x3007), (0x3040, 0x30FF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F), (0x20000, 0x3FFFF),
)  # fmt: skip
SOUTH_EAST_ASIAN: Ranges = (
    (0x0E01, 0x0E5B), (0x0E81, 0x0EDF), (0x0F00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF),
)  # fmt: skip
SPACELESS_PUNCTUATION: Ranges = (
    (0x00B7, 0x00B7), (0x2014, 0x2014), (0x2018, 0x2019), (0x201C, 0x201D), (0x2026, 0x2026), (0x3001, 0x3004),
    (0x3008, 0x303F), (0xFF01, 0xFF0F), (0xFF1A, 0xFF20), (0xFF3B, 0xFF40), (0xFF5B, 0xFF65),
)  # fmt: skip


def _class(ranges: Ranges) -> str:
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


_UNITS_CLASS = _class((*CHINESE_JAPANESE, *SOUTH_EAST_ASIAN))
_SPACELESS = re.compile(f"[{_UNITS_CLASS}]")
_UNITS = regex.compile(rf"[{_UNITS_CLASS}]\p{{M}}*|[^\s{_UNITS_CLASS}{_class(SPACELESS_PUNCTUATION)}]+")
_CHINESE_JAPANESE_UNIT = re.compile(f"[{_class(CHINESE_JAPANESE)}]")
UNITS_PER_WORD = (1.7, 3.0)
"""Of Chinese and Japanese, of the scripts of South-East Asia."""


def has_spaceless_script(text: str) -> bool:
    """Whether any character belongs to a script that writes no blanks between words."""
    return not text.isascii() and _SPACELESS.search(text) is not None


def split_units(text: str) -> list[str]:
    """Words between blanks; in spaceless scripts single characters with their marks, and no punctuation."""
    return _UNITS.findall(text) if has_spaceless_script(text) else text.split()


def words_in_units(units: list[str]) -> tuple[float, int]:
    """(number of words that the units amount to, number of units of spaceless scripts)."""
    chinese_japanese = south_east_asian = 0
    for unit in units:
        if _CHINESE_JAPANESE_UNIT.match(unit):
            chinese_japanese += 1
        elif _SPACELESS.match(unit):
            south_east_asian += 1
    return words_of_units(len(units), chinese_japanese, south_east_asian), chinese_japanese + south_east_asian


def words_of_units(units: Any, chinese_japanese: Any, south_east_asian: Any) -> Any:
    """Number of words that `units` amount to, of which so many are characters of spaceless scripts; of one text (int)
    or of many (arrays)."""
    spaceless = chinese_japanese + south_east_asian
    return units - spaceless + chinese_japanese / UNITS_PER_WORD[0] + south_east_asian / UNITS_PER_WORD[1]


def count_words(text: str) -> float:
    """Words of a text; spaceless scripts by units per word."""
    units = split_units(text)
    return words_in_units(units)[0] if has_spaceless_script(text) else float(len(units))
