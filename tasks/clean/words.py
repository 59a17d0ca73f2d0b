"""Words of a text, also where the script puts no blanks between them.

In spaced scripts a word is what stands between blanks. In Chinese, Japanese, Thai, Lao, Khmer, Burmese and Tibetan each
character with its marks is a unit, and a number of units counts as one word: 1.7 for Chinese and Japanese (mean word
length of segmented corpora), 3 for the others.
"""

import re

import regex

_CHINESE_JAPANESE = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_SOUTH_EAST_ASIAN = "\u0e01-\u0e5b\u0e81-\u0edf\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"
_PUNCTUATION = "\u3001-\u3004\u3008-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65“”‘’…—·"
_SPACELESS = re.compile(f"[{_CHINESE_JAPANESE}{_SOUTH_EAST_ASIAN}]")
_UNITS = regex.compile(
    rf"[{_CHINESE_JAPANESE}{_SOUTH_EAST_ASIAN}]\p{{M}}*"
    rf"|[^\s{_CHINESE_JAPANESE}{_SOUTH_EAST_ASIAN}{_PUNCTUATION}]+"
)
_CHINESE_JAPANESE_UNIT = re.compile(f"[{_CHINESE_JAPANESE}]")
_UNITS_PER_WORD_CHINESE_JAPANESE = 1.7
_UNITS_PER_WORD_SOUTH_EAST_ASIAN = 3.0


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
    spaceless = chinese_japanese + south_east_asian
    words = (
        len(units)
        - spaceless
        + chinese_japanese / _UNITS_PER_WORD_CHINESE_JAPANESE
        + south_east_asian / _UNITS_PER_WORD_SOUTH_EAST_ASIAN
    )
    return words, spaceless


def count_words(text: str) -> float:
    """Words of a text; spaceless scripts by units per word."""
    units = split_units(text)
    return words_in_units(units)[0] if has_spaceless_script(text) else float(len(units))
