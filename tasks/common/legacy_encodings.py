"""Legacy encodings, and how probable text is in each: what the bytes cost in nats under simple models of languages.

Bytes are read as letters by their frequency in each language, the commonest characters of Chinese, Japanese and Korean,
with upper case at the beginning of a word or in all of it, and no word of two scripts. The encoding in which bytes cost
least is the most probable one; costs of different encodings can be compared, since they are of the same bytes.
"""

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model.kernels import kernel
from tasks.common.letter_frequencies import (
    CENTRAL_EUROPEAN,
    CYRILLIC,
    GREEK,
    HANGUL,
    HIRAGANA,
    KANJI,
    SIMPLIFIED_CHINESE,
    TRADITIONAL_CHINESE,
    TURKISH,
    WESTERN,
)

U8 = npt.NDArray[np.uint8]
F64 = npt.NDArray[np.float64]

_IMPOSSIBLE = 12.0
_UNDEFINED = 1e6
_INSIDE_WORD_COST = 15.0
_INSIDE_WORD = re.compile(r"(?<=[A-Za-z])[^\x00-\x7f]{1,2}(?=[A-Za-z])")
_PRIVATE = re.compile("[\ue000-\uf8ff]")
ASCII_COST = 3.0
"""Nats of a character in ASCII, in every language: it is the same in all encodings."""
COMMON_MARKS = "«»—–„“”‘’…№·°§\u00a0"
_QUOTES_AND_DASHES = "’‘“”–—…"


@dataclass(frozen=True)
class Reading:
    """An encoding with the language in which text is probable; `cost(bytes)` is what it costs in nats, infinite where
    the bytes do not decode."""

    codec: str
    language: str
    cost: Callable[[U8], float]
    costs: F64 | None = None
    """The costs of bytes alone, where the new reading is in Latin letters too."""
    rarity: float = 0.0
    """Nats by which the encoding is rarer than the others."""
    fewest_letters: int = 3
    """Different letters without which the new reading shows nothing."""

    @property
    def is_latin(self) -> bool:
        """Return whether the new reading is in Latin letters."""
        return self.costs is not None


@functools.cache
def readings() -> tuple[Reading, ...]:
    readings = [
        Reading(codec, language, functools.partial(_cost_of_bytes, *_scripted(codec, letters)), rarity=rarity)
        for codec, rarity, languages in (
            ("cp1251", 0.0, CYRILLIC),
            ("koi8-u", 2.0, CYRILLIC),
            ("cp866", 2.0, CYRILLIC),
            ("iso8859-5", 4.0, CYRILLIC),
            ("mac-cyrillic", 6.0, CYRILLIC),
            ("cp1253", 0.0, {"el": GREEK}),
        )
        for language, letters in languages.items()
    ]
    readings += [
        Reading(codec, language, functools.partial(_cost_of_bytes, costs, pairs), costs)
        for codec, languages in _LATIN_READINGS
        for language, letters in languages.items()
        for costs, pairs in [_latin(codec, *letters)]
    ]
    readings += [
        Reading(codec, language, functools.partial(_cost_of_multibyte, codec, language), fewest_letters=2)
        for codec, language in (
            ("gbk", "zh"),
            ("gbk", "zh-Hant"),
            ("cp950", "zh-Hant"),
            ("cp932", "ja"),
            ("euc_jp", "ja"),
            ("cp949", "ko"),
        )
    ]
    return tuple(readings)


_MACINTOSH = {language: WESTERN[language] for language in ("fr", "de", "es", "pt", "it", "sv", "da")}

_LATIN_READINGS = (
    ("cp1250", CENTRAL_EUROPEAN),
    ("iso8859-2", CENTRAL_EUROPEAN),
    ("cp1254", {"tr": TURKISH}),
    ("mac-roman", _MACINTOSH),
)


def western_cost(data: U8) -> float:
    """Return what a text costs as it is, in the Western language in which it costs least."""
    return min(_cost_of_bytes(costs, pairs, data) for costs, pairs in western_models())


@functools.cache
def western_models() -> tuple[tuple[F64, F64], ...]:
    return tuple(_latin("cp1252", share, letters) for share, letters in WESTERN.values())


@functools.cache
def letter_costs() -> tuple[F64, F64]:
    """Return the costs of bytes alone: (Western languages, 256), (other readings in Latin letters, 256)."""
    others = [_latin(codec, *letters)[0] for codec, languages in _LATIN_READINGS for letters in languages.values()]
    return np.stack([costs for costs, _ in western_models()]), np.stack(others)


@kernel
def _cost_of_bytes(costs, pairs, data):
    total = 0.0
    before = 0
    for index in range(len(data)):
        total += costs[data[index]]
        if index:
            total += pairs[before, data[index]]
        before = data[index]
    return total


def _frequencies(letters: str) -> dict[str, float]:
    """Return the frequency of each letter by its rank, after Gusein-Zade."""
    count = len(letters)
    return {letter: math.log((count + 1) / rank) / count for rank, letter in enumerate(letters, start=1)}


_LOWER, _UPPER, _ASCII_LOWER, _ASCII_UPPER, _MARK, _DIGIT, _SPACE = range(7)


def _characters_of(codec: str) -> list[str]:
    """Return the character of each byte, the byte itself where the encoding has none."""
    return [
        bytes([byte]).decode(codec, errors="ignore") or (chr(byte) if codec == "cp1252" else "") for byte in range(256)
    ]


def _classes(characters: list[str]) -> npt.NDArray[np.int64]:
    def of(character: str) -> int:
        if character.isascii():
            if character.isalpha():
                return _ASCII_UPPER if character.isupper() else _ASCII_LOWER
            return _DIGIT if character.isdigit() else _SPACE
        if character in "’\u00a0":
            return _SPACE
        if character.isalpha() and character not in "ªºµ":
            return _UPPER if character.isupper() else _LOWER
        return _MARK

    return np.array([of(character) for character in characters])


def _scripted(codec: str, letters: str) -> tuple[F64, F64]:
    """Return the costs of bytes (256) and of pairs of bytes (256, 256) of a script other than Latin."""
    frequencies = _frequencies(letters)
    characters = _characters_of(codec)
    costs = np.full(256, _IMPOSSIBLE)
    costs[:0x80] = ASCII_COST
    for byte in range(0x80, 0x100):
        character = characters[byte]
        if character.lower() in frequencies:
            costs[byte] = -math.log(frequencies[character.lower()])
        elif not character:
            costs[byte] = _UNDEFINED
        elif character in COMMON_MARKS:
            costs[byte] = 6.0
    classes = _classes(characters)
    pairs = np.zeros((7, 7))
    pairs[_LOWER, _UPPER] = 10.0
    pairs[[_LOWER, _UPPER], _ASCII_LOWER] = pairs[[_LOWER, _UPPER], _ASCII_UPPER] = 9.0
    pairs[_ASCII_LOWER, [_LOWER, _UPPER]] = pairs[_ASCII_UPPER, [_LOWER, _UPPER]] = 9.0
    # Upper case: likely at the beginning of a word, or after upper case.
    pairs[[_MARK, _DIGIT, _SPACE], _UPPER] = 3.0
    pairs[[_MARK, _DIGIT, _SPACE], _LOWER] = 1.5
    pairs[_LOWER, [_MARK, _DIGIT, _SPACE]] = pairs[_UPPER, [_MARK, _DIGIT, _SPACE]] = 1.5
    pairs[_UPPER, _LOWER] = pairs[_UPPER, _UPPER] = 0.7
    return costs, pairs[classes][:, classes]


def _latin(codec: str, share: float, letters: str) -> tuple[F64, F64]:
    """Return the costs of bytes (256) and of pairs of bytes (256, 256) of a language in Latin letters, of whose letters
    `share` are outside ASCII."""
    frequencies = _frequencies(letters)
    characters = _characters_of(codec)
    costs = np.full(256, _IMPOSSIBLE)
    costs[:0x80] = ASCII_COST
    for byte in range(0x80, 0x100):
        character = characters[byte]
        if character in frequencies:
            costs[byte] = -math.log(share * frequencies[character])
        elif character.lower() in frequencies:
            costs[byte] = 2.5 - math.log(share * frequencies[character.lower()])
        elif not character:
            costs[byte] = _UNDEFINED
        elif codec != "cp1252" and not character.isalpha():
            costs[byte] = 7.0
        elif character == "\u00a0":
            costs[byte] = 1.5
        elif character in _QUOTES_AND_DASHES:
            costs[byte] = 3.0
        elif character.isprintable() and (character == "µ" or not character.isalpha()):
            costs[byte] = 6.0
        elif character.isalpha():
            costs[byte] = 9.5
    classes = _classes(characters)
    pairs = np.zeros((7, 7))
    letter_classes = [_LOWER, _UPPER, _ASCII_LOWER, _ASCII_UPPER]
    pairs[[_LOWER, _UPPER], _LOWER] = 2.0
    pairs[_LOWER, _UPPER] = pairs[_LOWER, _ASCII_UPPER] = pairs[_ASCII_LOWER, _UPPER] = 6.0
    pairs[_ASCII_UPPER, _UPPER] = -1.5
    pairs[_MARK, _MARK] = 2.5
    pairs[_MARK, letter_classes] = 3.0
    pairs[letter_classes, _MARK] = 2.0
    by_byte = pairs[classes][:, classes]
    for byte, character in enumerate(characters):
        if character in _QUOTES_AND_DASHES and codec == "cp1252":
            by_byte[byte] = by_byte[:, byte] = 0
    if codec == "cp1252":
        # Repeated characters, and lists of characters in the order of their code points, are as they should be.
        for step, cost in ((0, 0.7), (1, 1.0), (2, 2.0)):
            first = np.arange(0x80, 0x100 - step)
            by_byte[first, first + step] = cost - costs[first + step]
    return costs, by_byte


def _cost_of_multibyte(codec: str, language: str, data: U8) -> float:
    try:
        text = data.tobytes().decode(codec)
    except UnicodeDecodeError:
        return math.inf
    if _PRIVATE.search(text):
        return math.inf
    table = _costs_of_characters(language)
    inside_words = _INSIDE_WORD_COST * len(_INSIDE_WORD.findall(text))
    return inside_words + sum(table.get(character, _IMPOSSIBLE) for character in text)


@functools.cache
def _costs_of_characters(language: str) -> dict[str, float]:
    """Return the cost of every character that text of the language may hold."""
    costs = {chr(codepoint): ASCII_COST for codepoint in (9, 10, 13, *range(0x20, 0x7F))}
    marks = "，。、；：？！（）《》“”‘’…—·「」『』【】〔〕〈〉\u3000"

    def spread(characters: str, share: float) -> None:
        for character in characters:
            costs.setdefault(character, -math.log(share / len(characters)))

    if language == "ko":
        spread(HANGUL, 0.65)
        spread(_rows_of("euc_kr", 0xB0, 0xC8), 0.3)
        spread(marks, 0.02)
        spread(_rows_of("euc_kr", 0xCA, 0xFD), 0.01)
    elif language == "ja":
        spread(HIRAGANA, 0.5)
        spread("、。", 0.06)
        spread("".join(map(chr, range(0x3041, 0x3094))), 0.01)
        spread("".join(map(chr, range(0x30A1, 0x30F7))) + "ー・", 0.12)
        spread(KANJI, 0.14)
        spread(_rows_of("euc_jp", 0xB0, 0xCF), 0.14)
        spread(marks, 0.02)
        spread(_rows_of("euc_jp", 0xD0, 0xF3), 0.005)
        spread(_rows_of("euc_jp", 0xA1, 0xA3), 0.01)
    else:
        chosen = SIMPLIFIED_CHINESE if language == "zh" else TRADITIONAL_CHINESE
        common, rare = (
            (_rows_of("gb2312", 0xB0, 0xD7), _rows_of("gb2312", 0xD8, 0xF7))
            if language == "zh"
            else (_rows_of("big5", 0xA4, 0xC6), _rows_of("big5", 0xC9, 0xF9))
        )
        spread("，。、的", 0.1)
        spread(chosen[:100], 0.28)
        spread(chosen, 0.22)
        spread(marks, 0.04)
        spread(common, 0.34)
        spread(rare, 0.004)
        spread(_rows_of("gb2312", 0xA1, 0xA3), 0.01)
        spread(_rows_of("big5", 0xA1, 0xA3), 0.01)
    return costs


def _rows_of(codec: str, first: int, last: int) -> str:
    """Return the characters of an encoding whose first byte is `first` to `last`."""
    return "".join(
        bytes([lead, trail]).decode(codec, errors="ignore")
        for lead in range(first, last + 1)
        for trail in range(0x40, 0xFF)
    )
