"""Text in a legacy encoding that was read as Latin-1 or Windows-1252: `Ïðèâåò` for `Привет`, `ÖÐÎÄ` for `中文`.

ftfy undoes UTF-8 that was read with another encoding, and nothing else. Here the other case is undone: the characters
are turned back into bytes, and every legacy encoding that decodes them is compared with the text as it is, in nats
(`tasks.common.legacy_encodings`). The text is changed only where the best reading is more probable by a wide margin,
for all of the text together and for each stretch of a line by itself. So a page with good lines and broken ones keeps
the good ones.

A compiled scan finds the few texts that are worth it. The longest are judged by a sample of their lines.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model.kernels import kernel
from tasks.clean.kernels.characters import character_flags, flags_of, suggests_mojibake
from tasks.common.legacy_encodings import COMMON_MARKS, Reading, letter_costs, readings, western_cost, western_models
from tasks.common.text import replace_places
from tasks.common.utf8 import decode

U8 = npt.NDArray[np.uint8]

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
"""Bytes of a text in which encodings are compared."""

_LONGEST_RUN, _FEWEST_PAIRS, _PAIR_SHARE, _FEWEST_HIGH = 4, 3, 0.25, 4
_FIRST_EXTENDED, _LAST_EXTENDED = 0x100, 0x24F
_OTHER_LATIN_GAIN = 3.0


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
    once = _decoded(text, [segment for segment in segments if segment.valid_utf8 == segment.high], "utf-8")
    suspected = suspect(np.frombuffer(bytearray(once.encode()), np.uint8))
    if suspected is None:
        return text
    twice = _undo_once(once, _segments(suspected.data), suspected)
    return text if twice is once else twice


def _undo_once(text: str, segments: "list[_Segment]", suspected: "Suspected") -> str:
    reading = _best_reading(_sample(segments), suspected)
    if reading is None:
        return text
    gains = np.array([western_cost(segment.data) - reading.cost(segment.data) for segment in segments])
    high = np.array([segment.high for segment in segments])
    evidence = np.array([not segment.is_utf8 for segment in segments])
    is_sure = (gains >= LEAST_SEGMENT_GAIN) & evidence
    share = 1.0 if reading.is_latin else high[is_sure].sum() / high[evidence].sum()
    least_gain = next((gain for least, gain in FOLLOWING_SHARES if share >= least), math.inf)
    changed = is_sure | (gains > least_gain)
    return _decoded(text, [segments[index] for index in np.flatnonzero(changed).tolist()], reading.codec)


def _decoded(text: str, segments: "list[_Segment]", codec: str) -> str:
    return replace_places(text, ((one.begin, one.end, one.data.tobytes().decode(codec)) for one in segments))


def _best_reading(segments: "list[_Segment]", suspected: "Suspected") -> "Reading | None":
    """Return the reading that makes stretches of a text more probable by the widest margin; None where none does."""
    before = np.array([western_cost(segment.data) for segment in segments])
    high = np.array([segment.high for segment in segments], np.float64)
    evidence = np.array([not segment.is_utf8 for segment in segments])
    best = None
    most = -math.inf
    for reading in readings():
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


def _distinct_letters(segments: "list[_Segment]", counted: npt.NDArray[np.bool_], reading: "Reading") -> int:
    """Return how many letters outside ASCII there are in the stretches that count: the same one again shows little."""
    letters: set[str] = set()
    for index in np.flatnonzero(counted).tolist():
        text = segments[index].data.tobytes().decode(reading.codec)
        letters.update(letter for letter in text if not letter.isascii() and letter.isalpha())
        if len(letters) >= reading.fewest_letters:
            break
    return len(letters)


def _gain_without_commonest(segments: "list[_Segment]", reading: "Reading") -> float:
    """Return the gain of a reading in Latin letters without the byte that adds most: a sign of the text's subject, as
    `±` is, may occur in every line."""
    assert reading.costs is not None
    counts = np.bincount(np.concatenate([segment.data for segment in segments]), minlength=256)
    gains = [counts * (costs - reading.costs) for costs, _ in western_models()]
    return min(float(gain.sum() - gain.max()) for gain in gains)


@dataclass
class _Segment:
    """A stretch of a line whose characters are bytes of the wrong encoding: where it is, in characters; its bytes."""

    begin: int
    end: int
    data: U8

    @functools.cached_property
    def high(self) -> int:
        """Return the number of bytes outside ASCII."""
        return int((self.data >= 0x80).sum())

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
    has_high = high_before[ends] > high_before[begins]
    places = zip(begins[has_high].tolist(), ends[has_high].tolist(), strict=True)
    return [_Segment(begin, end, found[begin:end]) for begin, end in places]


def _sample(segments: list[_Segment]) -> list[_Segment]:
    """Return stretches of SAMPLE_BYTES in all, evenly from all of the text, as they are in it."""
    total = sum(len(segment.data) for segment in segments)
    if total <= SAMPLE_BYTES:
        return segments
    step = -(-total // SAMPLE_BYTES)
    return [_Segment(segment.begin, segment.end, segment.data[:SAMPLE_BYTES]) for segment in segments[::step]]


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
    western, latin = letter_costs()
    gain = (western @ counts).min() - (latin @ counts).min()
    runs = longest >= _LONGEST_RUN or (pairs >= _FEWEST_PAIRS and pairs >= _PAIR_SHARE * high)
    is_latin = bool(gain > 0) and not has_other
    return Suspected(data, bool(runs), is_latin) if runs or is_latin else None


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
    return np.array([bytes([byte]).decode("cp1252", errors="ignore") in tuple(COMMON_MARKS) for byte in range(256)])


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
