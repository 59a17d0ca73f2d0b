"""Text in a legacy encoding that was read as Latin-1 or Windows-1252: `Ïðèâåò` for `Привет`, `ÖÐÎÄ` for `中文`.

ftfy undoes UTF-8 that was read with another encoding, and nothing else. Here the other case is undone: the characters
are turned back into bytes, and every legacy encoding that decodes them is compared with the text as it is. Both are
measured in nats under simple models of text: letters by their frequency in each language, the commonest characters of
Chinese, Japanese and Korean, upper case at the beginning of a word or in all of it, no word of two scripts. The text is
changed only where the best reading is more probable by a wide margin, for all of the text together and for each stretch
of a line by itself. So a page with good lines and broken ones keeps the good ones.

A compiled scan finds the few texts that are worth it. The longest are judged by a sample of their lines.
"""

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.clean.edits.letter_frequencies import (
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
from tasks.clean.kernels.characters import character_flags, decode, flags_of, suggests_mojibake
from tasks.common.kernels import kernel

U8 = npt.NDArray[np.uint8]
F64 = npt.NDArray[np.float64]

LEAST_GAIN, LEAST_GAIN_PER_BYTE = 16.0, 1.5
"""Nats by which the new reading of a text must be more probable: so many, and so many more per byte outside ASCII."""

LEAST_LATIN_GAIN, LEAST_LATIN_GAIN_PER_BYTE = 8.0, 0.6
"""The same, where the new reading is in Latin letters too: many letters stay as they are."""

LEAST_SEGMENT_GAIN = 6.0
"""Nats below which a stretch of a line counts for nothing by itself."""

FOLLOWING_SHARES = ((0.9, -LEAST_SEGMENT_GAIN), (0.6, 0.0))
"""(share of the bytes outside ASCII that are in stretches with that gain, gain from which the others follow them)."""

UTF8_SHARE = 0.7
"""Share of the bytes outside ASCII that are valid UTF-8, from which the text is left to ftfy."""

SAMPLE_BYTES = 1 << 15
"""Characters of a text in which encodings are compared."""

_LONGEST_RUN, _FEWEST_PAIRS, _PAIR_SHARE, _FEWEST_HIGH = 4, 3, 0.25, 4
_FIRST_EXTENDED, _LAST_EXTENDED = 0x100, 0x24F
_IMPOSSIBLE = 12.0
_UNDEFINED = 1e6
_INSIDE_WORD_COST = 15.0
_INSIDE_WORD = re.compile(r"(?<=[A-Za-z])[^\x00-\x7f]{1,2}(?=[A-Za-z])")
_PRIVATE = re.compile("[\ue000-\uf8ff]")
_OTHER_LATIN_GAIN = 3.0
_ASCII = 3.0
_COMMON_MARKS = "«»—–„“”‘’…№·°§\u00a0"
_QUOTES_AND_DASHES = "’‘“”–—…"


def undo_wrong_encoding(text: str) -> str:
    """Return the text with the stretches decoded that were read with the wrong encoding; the same object if none is.

    UTF-8 of such text that was read with the wrong encoding again is undone, too.
    """
    suspected = suspect(np.frombuffer(bytearray(text.encode()), np.uint8))
    if suspected is None:
        return text
    segments = _segments(suspected.data)
    valid = sum(segment.valid_utf8 for segment in segments)
    if valid < UTF8_SHARE * sum(segment.high for segment in segments):
        return _undo_once(text, segments, suspected)
    once = _replace(text, [(segment, "utf-8") for segment in segments if segment.valid_utf8 == segment.high])
    suspected = suspect(np.frombuffer(bytearray(once.encode()), np.uint8))
    if suspected is None:
        return text
    twice = _undo_once(once, _segments(suspected.data), suspected)
    return text if twice is once else twice


def _undo_once(text: str, segments: "list[_Segment]", suspected: "Suspected") -> str:
    reading = _best_reading(_sample(segments), suspected) if segments else None
    if reading is None:
        return text
    gains = np.array([_western_cost(segment.data) - reading.cost(segment.data) for segment in segments])
    high = np.array([segment.high for segment in segments])
    evidence = np.array([not segment.is_utf8 for segment in segments])
    is_sure = (gains >= LEAST_SEGMENT_GAIN) & evidence
    share = 1.0 if reading.is_latin else high[is_sure].sum() / high[evidence].sum()
    least_gain = next((gain for least, gain in FOLLOWING_SHARES if share >= least), math.inf)
    changed = is_sure | (gains > least_gain)
    return _replace(text, [(segments[index], reading.codec) for index in np.flatnonzero(changed).tolist()])


def _replace(text: str, decoded: "list[tuple[_Segment, str]]") -> str:
    """Return the text with each of some stretches, in order, decoded from its bytes with an encoding."""
    pieces, position = [], 0
    for segment, encoding in decoded:
        pieces += [text[position : segment.begin], segment.data.tobytes().decode(encoding)]
        position = segment.end
    return "".join([*pieces, text[position:]])


def _best_reading(segments: "list[_Segment]", suspected: "Suspected") -> "_Reading | None":
    """Return the reading that makes stretches of a text more probable by the widest margin; None where none does."""
    before = np.array([_western_cost(segment.data) for segment in segments])
    high = np.array([segment.high for segment in segments], np.float64)
    evidence = np.array([not segment.is_utf8 for segment in segments])
    best = None
    most = -math.inf
    for reading in _readings():
        if not (suspected.latin if reading.is_latin else suspected.runs):
            continue
        gain = before - np.array([reading.cost(segment.data) for segment in segments])
        if reading.is_latin:
            total, least = float(gain.sum()), LEAST_LATIN_GAIN + LEAST_LATIN_GAIN_PER_BYTE * float(high.sum())
            if total >= least and _gain_without_commonest(segments, reading) < _OTHER_LATIN_GAIN:
                continue
        else:
            counted = (gain >= LEAST_SEGMENT_GAIN) & evidence
            total = float(gain[counted].sum())
            least = LEAST_GAIN + LEAST_GAIN_PER_BYTE * float(high[counted].sum())
            if total >= least and _distinct_letters(segments, counted, reading) < reading.fewest_letters:
                continue
        if total >= least and total - reading.rarity > most:
            best, most = reading, total - reading.rarity
    return best


def _distinct_letters(segments: "list[_Segment]", counted: npt.NDArray[np.bool_], reading: "_Reading") -> int:
    """Return how many letters outside ASCII there are in the stretches that count: the same one again shows little."""
    letters: set[str] = set()
    for index in np.flatnonzero(counted).tolist():
        text = segments[index].data.tobytes().decode(reading.codec)
        letters.update(letter for letter in text if not letter.isascii() and letter.isalpha())
        if len(letters) >= reading.fewest_letters:
            break
    return len(letters)


def _gain_without_commonest(segments: "list[_Segment]", reading: "_Reading") -> float:
    """Return the gain of a reading in Latin letters without the byte that adds most: a sign of the text's subject, as
    `±` is, may occur in every line."""
    assert reading.costs is not None
    counts = np.bincount(np.concatenate([segment.data for segment in segments]), minlength=256)
    gains = [counts * (costs - reading.costs) for costs, _ in _western()]
    return min(float(gain.sum() - gain.max()) for gain in gains)


@dataclass
class _Segment:
    """A stretch of a line whose characters are bytes of the wrong encoding: where it is, in characters; its bytes."""

    begin: int
    end: int
    data: U8
    high: int
    """Bytes outside ASCII."""

    @functools.cached_property
    def valid_utf8(self) -> int:
        """Return how many bytes outside ASCII are valid UTF-8."""
        return len(self.data.tobytes().decode(errors="ignore").encode()) - (len(self.data) - self.high)

    @property
    def is_utf8(self) -> bool:
        """Return whether the bytes are valid UTF-8, or what is left of it; few bytes may be so by chance."""
        return self.valid_utf8 >= UTF8_SHARE * self.high


def _segments(found: U8) -> list[_Segment]:
    stops = np.flatnonzero((found == 0) | (found == 10))
    begins, ends = np.concatenate(([0], stops + 1)), np.concatenate((stops, [len(found)]))
    high_before = np.concatenate(([0], np.cumsum(found >= 0x80)))
    high = high_before[ends] - high_before[begins]
    return [
        _Segment(int(begins[index]), int(ends[index]), found[begins[index] : ends[index]], int(high[index]))
        for index in np.flatnonzero(high).tolist()
    ]


def _sample(segments: list[_Segment]) -> list[_Segment]:
    """Return stretches of SAMPLE_BYTES in all, evenly from all of the text, as they are in it."""
    total = sum(len(segment.data) for segment in segments)
    if total <= SAMPLE_BYTES:
        return segments
    step = -(-total // SAMPLE_BYTES)
    chosen = segments[::step]
    return [
        _Segment(
            segment.begin,
            segment.end,
            segment.data[:SAMPLE_BYTES],
            int((segment.data[:SAMPLE_BYTES] >= 0x80).sum()),
        )
        for segment in chosen
    ]


@dataclass(frozen=True)
class Suspected:
    """A text that may have been read with the wrong encoding."""

    data: U8
    """For each character the byte that Latin-1 or Windows-1252 reads as it, 0 for none."""
    runs: bool
    """Whether runs of characters outside ASCII suggest another script."""
    latin: bool
    """Whether other encodings would make its letters more probable in Latin letters."""


def suspect(raw: U8) -> Suspected | None:
    """Return what suggests that a text (UTF-8 bytes) was read with the wrong encoding; None where nothing does."""
    found = np.empty(len(raw), np.uint8)
    count, high, pairs, longest, has_other, has_sign = _to_bytes(
        raw, _byte_of_character(), _is_common_mark(), character_flags(), found
    )
    if high < _FEWEST_HIGH or not has_sign:
        return None
    data = found[:count]
    counts = np.bincount(data, minlength=256).astype(np.float64)
    western, latin = _letter_costs()
    gain = (western @ counts).min() - (latin @ counts).min()
    runs = longest >= _LONGEST_RUN or (pairs >= _FEWEST_PAIRS and pairs >= _PAIR_SHARE * high)
    return (
        Suspected(data, bool(runs), True)
        if gain > 0 and not has_other
        else Suspected(data, True, False)
        if runs
        else None
    )


@kernel
def _to_bytes(raw, table, is_common, flags_table, found):
    """Write the byte of each character.

    Returns (characters, bytes outside ASCII, such pairs, longest run of such, whether other Latin letters occur,
    whether the prefilter finds a sign of mojibake).

    Two marks that are common in good text are no pair, nor is a character that repeats the one before it, and where it
    follows it in the table of the encoding the run is not longer.
    """
    count = high = pairs = run = longest = 0
    has_other = has_sign = False
    position = 0
    before = codepoint_before = flags_before = np.int64(0)
    while position < len(raw):
        codepoint, position = decode(raw, position)
        flags = flags_of(codepoint, flags_table)
        has_sign |= codepoint >= 0x80 and suggests_mojibake(codepoint_before, flags_before, flags)
        codepoint_before, flags_before = codepoint, flags
        byte = np.int64(table[codepoint]) if codepoint < len(table) else np.int64(0)
        has_other |= byte == 0 and _FIRST_EXTENDED <= codepoint <= _LAST_EXTENDED
        found[count] = byte
        count += 1
        if byte >= 0x80:
            high += 1
            if before < 0x80:
                run = 1
            elif byte != before and not (is_common[byte] and is_common[before]):
                pairs += 1
                run += byte != before + 1
            longest = max(longest, run)
        before = byte
    return count, high, pairs, longest, has_other, has_sign


@functools.cache
def _is_common_mark() -> npt.NDArray[np.bool_]:
    return np.array([bytes([byte]).decode("cp1252", errors="ignore") in tuple(_COMMON_MARKS) for byte in range(256)])


@functools.cache
def _byte_of_character() -> U8:
    """Return a table, by code point below 0x2200: its byte in Latin-1, else in Windows-1252, else 0."""
    table = np.zeros(0x2200, np.uint8)
    table[1:0x100] = np.arange(1, 0x100)
    table[:0x20] = 0
    table[[9, 10]] = 9, 10
    for byte in range(0x80, 0xA0):
        character = bytes([byte]).decode("cp1252", errors="ignore")
        if character:
            table[ord(character)] = byte
    return table


@dataclass(frozen=True)
class _Reading:
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
def _readings() -> tuple[_Reading, ...]:
    readings = [
        _Reading(codec, language, functools.partial(_cost_of_bytes, *_scripted(codec, letters)), rarity=rarity)
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
        _Reading(codec, language, functools.partial(_cost_of_bytes, costs, pairs), costs)
        for codec, languages in _LATIN_READINGS
        for language, letters in languages.items()
        for costs, pairs in [_latin(codec, *letters)]
    ]
    readings += [
        _Reading(codec, language, functools.partial(_cost_of_multibyte, codec, language), fewest_letters=2)
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


def _western_cost(data: U8) -> float:
    """Return what a text costs as it is, in the Western language in which it costs least."""
    return min(_cost_of_bytes(costs, pairs, data) for costs, pairs in _western())


@functools.cache
def _western() -> tuple[tuple[F64, F64], ...]:
    return tuple(_latin("cp1252", share, letters) for share, letters in WESTERN.values())


@functools.cache
def _letter_costs() -> tuple[F64, F64]:
    """Return the costs of bytes alone: (Western languages, 256), (other readings in Latin letters, 256)."""
    others = [_latin(codec, *letters)[0] for codec, languages in _LATIN_READINGS for letters in languages.values()]
    return np.stack([costs for costs, _ in _western()]), np.stack(others)


def _cost_of_bytes(costs: F64, pairs: F64, data: U8) -> float:
    return float(costs[data].sum() + pairs[data[:-1], data[1:]].sum())


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
    costs[:0x80] = _ASCII
    for byte in range(0x80, 0x100):
        character = characters[byte]
        if character.lower() in frequencies:
            costs[byte] = -math.log(frequencies[character.lower()])
        elif not character:
            costs[byte] = _UNDEFINED
        elif character in _COMMON_MARKS:
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
    costs[:0x80] = _ASCII
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
    costs = {chr(codepoint): _ASCII for codepoint in (9, *range(0x20, 0x7F))}
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
