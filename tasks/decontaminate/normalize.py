"""Words for matching: without compatibility forms, case, accents, look-alikes, punctuation and invisible characters.

Each code point folds by itself, whatever its neighbours: NFKD, case folding, combining marks removed, look-alike
letters of other scripts to one letter. So two texts that are equal under NFKC are equal here, a word keeps its place in
the original UTF-8 bytes. The text that training reads is not changed.

A word is a run of letters, digits and marks; in scripts without spaces each character is a word. Zero-width and other
format characters neither end a word nor count. Escapes count as the characters that they mean, at their own bytes: HTML
entities (`&eacute;`, `&#233;`, `&amp;quot;`), JSON's `\\u00e9`, `\\n`, `\\t` and `\\r`, and LaTeX's `\\%` and
`\\textbf{`, whose command is no word.

Letters of other scripts that look like Latin ones hide a copied passage; folding both sides to the Latin letter makes
the copies equal again. No two letters of one script fold to the same letter, so distinct words of a script stay
distinct. The table is our own, in the spirit of Unicode UTS #39; its keys are characters after NFKD and case folding.
"""

import functools
import unicodedata
from html.entities import html5
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from model.kernels import kernel
from tasks.common.text import is_unspaced
from tasks.common.utf8 import FNV_BASIS, GOLDEN, decode, finish_word

_TABLE_SIZE = 0x30000
_KIND_SHIFT = 28
_VALUE_MASK = (1 << _KIND_SHIFT) - 1
SEPARATOR, LETTER, CHARACTER_WORD, HIDDEN, SEQUENCE = range(5)
_LAST_IDEOGRAPH = 0x3FFFD
_SPACE = 0x20
_AMPERSAND, _SEMICOLON, _HASH, _BACKSLASH, _BRACE = 0x26, 0x3B, 0x23, 0x5C, 0x7B
_MAX_ENTITY_BYTES = 10
ENTITIES = {
    name.removesuffix(";"): ord(character)
    for name, character in html5.items()
    if name.endswith(";") and 3 <= len(name) <= 9 and len(character) == 1
}
"""Named HTML entities of one character, of 2 to 8 letters or digits -> the character."""

WORD, CHARACTER, NUMBER = range(3)
_KIND, _CHARACTER_BIT, _NUMBER_BIT = np.uint64(3), np.uint64(CHARACTER), np.uint64(NUMBER)
_ZERO, _NINE = ord("0") | (1 << _KIND_SHIFT), ord("9") | (1 << _KIND_SHIFT)
_CYRILLIC = dict(zip("авекмнорстухіјѕԁԛԝѵӏ", "abekmhopctyxijsdqwvl", strict=True))
_GREEK = dict(zip("αβεζηικμνορτυχ", "abezhikmvoptux", strict=True))
_ARMENIAN = dict(zip("օսոհցք", "ounhgp", strict=True))
_LATIN = {"ı": "i", "ɡ": "g", "ɑ": "a", "ł": "l", "ø": "o", "đ": "d"}
LOOK_ALIKES: dict[str, str] = {**_CYRILLIC, **_GREEK, **_ARMENIAN, **_LATIN}


class FoldTable(NamedTuple):
    """`entries[codepoint]` = kind << 28 | value; for SEQUENCE the value points into `pool`: length, then entries."""

    entries: npt.NDArray[np.uint32]
    pool: npt.NDArray[np.uint32]
    entity_names: npt.NDArray[np.uint64]
    """The named HTML entities as bytes of a number, the last letter lowest; ascending."""
    entity_codepoints: npt.NDArray[np.int64]


@kernel
def hash_words(data, begin, end, table, hashes, starts, ends):
    """Write hash and range (bytes from `begin`) of each word of data[begin:end]; returns how many there are.

    `table` is a `FoldTable`. The lowest two bits of a hash are the kind of the word: WORD,
    CHARACTER for one of a script without spaces, NUMBER for digits alone. The three outputs need capacity for
    `max_words(end - begin)` values.
    """
    entries, pool, entity_names, entity_codepoints = table
    count = 0
    digits = True
    state = FNV_BASIS
    inside = False
    word_start = word_end = np.int64(0)
    position = begin
    while position < end:
        start = position
        codepoint, position = decode(data, position)
        if codepoint == _AMPERSAND:
            codepoint, position = _entity(data, start, end, entity_names, entity_codepoints)
        elif codepoint == _BACKSLASH:
            codepoint, position = _escape(data, start, end)
        if codepoint < _TABLE_SIZE:
            entry = entries[codepoint]
        elif codepoint <= _LAST_IDEOGRAPH:
            entry = np.uint32(codepoint | (CHARACTER_WORD << _KIND_SHIFT))
        elif 0xE0000 <= codepoint <= 0xE0FFF:
            entry = np.uint32(HIDDEN << _KIND_SHIFT)
        else:
            entry = np.uint32(SEPARATOR)
        kind = entry >> _KIND_SHIFT
        if kind == LETTER:
            if not inside:
                word_start = start
                inside = True
            word_end = position
            state = (state ^ np.uint64(entry)) * GOLDEN
            digits &= _ZERO <= entry <= _NINE
            continue
        if kind == HIDDEN:
            continue
        at = np.int64(entry & _VALUE_MASK)
        parts = np.int64(pool[at]) if kind == SEQUENCE else np.int64(1)
        for part in range(parts):
            if kind == SEQUENCE:
                entry = pool[at + 1 + part]
            part_kind = entry >> _KIND_SHIFT
            if part_kind == LETTER:
                if not inside:
                    word_start = start
                    inside = True
                word_end = position
                state = (state ^ np.uint64(entry)) * GOLDEN
                digits &= _ZERO <= entry <= _NINE
                continue
            if inside:
                hashes[count], starts[count], ends[count] = _finish(state, digits), word_start - begin, word_end - begin
                count += 1
                state = FNV_BASIS
                inside = False
                digits = True
            if part_kind == CHARACTER_WORD:
                hashes[count] = (_finish((FNV_BASIS ^ np.uint64(entry)) * GOLDEN, False) & ~_KIND) | _CHARACTER_BIT
                starts[count], ends[count] = start - begin, position - begin
                count += 1
    if inside:
        hashes[count], starts[count], ends[count] = _finish(state, digits), word_start - begin, word_end - begin
        count += 1
    return count


@kernel
def _finish(state, digits):
    return (finish_word(state) & ~_KIND) | (_NUMBER_BIT if digits else np.uint64(0))


@kernel
def _entity(data, start, end, names, codepoints):
    """Return the character of the HTML entity at the ampersand at `start`, and the byte after it."""
    from_byte = start
    while (
        from_byte + 4 < end
        and data[from_byte + 1] == ord("a")
        and data[from_byte + 2] == ord("m")
        and data[from_byte + 3] == ord("p")
        and data[from_byte + 4] == _SEMICOLON
    ):
        from_byte += 4
    length = _entity_length(data, from_byte, end)
    while length == 0 and from_byte > start:
        from_byte -= 4
        length = _entity_length(data, from_byte, end)
    if length == 0:
        return np.int64(_AMPERSAND), start + 1
    last = from_byte + length - 1
    if data[from_byte + 1] == _HASH:
        hexadecimal = (data[from_byte + 2] | 0x20) == ord("x")
        codepoint = np.int64(0)
        for at in range(from_byte + 2 + hexadecimal, last):
            codepoint = codepoint * (16 if hexadecimal else 10) + _digit(data[at])
        return codepoint if codepoint <= 0x10FFFF else np.int64(_SPACE), last + 1
    name = np.uint64(0)
    for at in range(from_byte + 1, last):
        name = (name << np.uint64(8)) | np.uint64(data[at])
    place = np.searchsorted(names, name)
    if place < names.size and names[place] == name:
        return codepoints[place], last + 1
    return np.int64(_SPACE), last + 1


@kernel
def _digit(byte):
    return np.int64(byte) - ord("0") if byte < 0x40 else (np.int64(byte) | 0x20) - ord("a") + 10


@kernel
def _escape(data, start, end):
    """Return the character that the backslashes at `start` and what follows mean, and the byte after it."""
    at = start + 1
    while at < end and data[at] == _BACKSLASH:
        at += 1
    unit = _hexadecimal_unit(data, at, end)
    if unit >= 0:
        if unit & 0xFC00 == 0xD800:
            second = at + 5
            while second < end and data[second] == _BACKSLASH:
                second += 1
            low = _hexadecimal_unit(data, second, end)
            if second > at + 5 and low >= 0 and low & 0xFC00 == 0xDC00 and not _is_mark(data, second + 5, end):
                return np.int64(0x10000 + ((unit & 0x3FF) << 10) + (low & 0x3FF)), second + 5
        if not _is_mark(data, at + 5, end):
            return unit, at + 5
    after = at
    while after < end and ord("a") <= (data[after] | 0x20) <= ord("z") and data[after] < 0x80:
        after += 1
    if after >= at + 2 and after < end and data[after] == _BRACE:
        return np.int64(_SPACE), after
    if (
        at < end
        and (data[at] == ord("n") or data[at] == ord("t") or data[at] == ord("r"))
        and not _is_mark(data, at + 1, end)
    ):
        return np.int64(_SPACE), at + 1
    # The other backslashes of the run mean as little: read one by one, a long run would take quadratic time.
    return np.int64(_BACKSLASH), at


@kernel
def _is_mark(data, at, end):
    """Return whether a combining mark (U+0300 to U+036F) is at `at`: the letter before it is another letter."""
    return at + 1 < end and (data[at] == 0xCC or (data[at] == 0xCD and data[at + 1] <= 0xAF))


@kernel
def _hexadecimal_unit(data, at, end):
    """Return the value of `u` and four hexadecimal digits at `at`; -1 without."""
    if at + 5 > end or data[at] != ord("u"):
        return np.int64(-1)
    value = np.int64(0)
    for place in range(at + 1, at + 5):
        byte = data[place]
        if not (ord("0") <= byte <= ord("9") or ord("a") <= (byte | 0x20) <= ord("f")):
            return np.int64(-1)
        value = value * 16 + _digit(byte)
    return value


@kernel
def _entity_length(data, position, end):
    """Return the bytes of an HTML entity whose name or number begins after `position`; 0 where none does."""
    last = min(end, position + _MAX_ENTITY_BYTES)
    numeric = position + 1 < last and data[position + 1] == _HASH
    hexadecimal = numeric and position + 2 < last and (data[position + 2] | 0x20) == ord("x")
    begin = position + 1 + numeric + hexadecimal
    for at in range(begin, last):
        byte = data[at]
        length = at - begin
        if byte == _SEMICOLON:
            longest = 6 if hexadecimal else 7 if numeric else 8
            shortest = 1 if numeric else 2
            return at + 1 - position if shortest <= length <= longest else 0
        digit = ord("0") <= byte <= ord("9")
        letter = ord("a") <= (byte | 0x20) <= ord("z")
        if hexadecimal:
            allowed = digit or ord("a") <= (byte | 0x20) <= ord("f")
        elif numeric:
            allowed = digit
        else:
            allowed = letter or (digit and length > 0)
        if not allowed:
            return 0
    return 0


def max_words(size: int) -> int:
    """Return the most words in `size` UTF-8 bytes: the densest character (U+3316) folds to 6 words from 3 bytes."""
    return 2 * size + 2


def words_as_written(text: str) -> list[str]:
    """Return the words of a text as they are in it, in lower case."""
    raw = text.encode()
    hashes = np.empty(max_words(len(raw)), np.uint64)
    starts, ends = (np.empty(hashes.size, np.int64) for _ in range(2))
    count = hash_words(np.frombuffer(raw, np.uint8), 0, len(raw), fold_table(), hashes, starts, ends)
    return [
        raw[start:end].decode().lower()
        for start, end in zip(starts[:count].tolist(), ends[:count].tolist(), strict=True)
    ]


@functools.cache
def fold_table() -> FoldTable:
    """Return the table for all code points below 0x30000; above are ideographs, hidden tags and unassigned ones."""
    entries = np.zeros(_TABLE_SIZE, np.uint32)
    pool: list[int] = []
    for first, last in ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0x20000, 0x2FFFF)):
        entries[first : last + 1] = np.arange(first, last + 1) | (CHARACTER_WORD << _KIND_SHIFT)
    for codepoint in range(_TABLE_SIZE):
        if 0x3400 <= codepoint <= 0x9FFF and not 0x4DC0 <= codepoint < 0x4E00:
            continue
        if codepoint >= 0x20000 and not 0x2F800 <= codepoint <= 0x2FA1F:
            continue
        folded = _fold(chr(codepoint))
        if len(folded) == 1:
            entries[codepoint] = folded[0]
        elif folded:
            entries[codepoint] = len(pool) | (SEQUENCE << _KIND_SHIFT)
            pool += [len(folded), *folded]
        else:
            entries[codepoint] = HIDDEN << _KIND_SHIFT
    entries.setflags(write=False)
    names = sorted((int.from_bytes(name.encode()), codepoint) for name, codepoint in ENTITIES.items())
    return FoldTable(
        entries,
        np.array(pool, np.uint32),
        np.array([name for name, _ in names], np.uint64),
        np.array([codepoint for _, codepoint in names], np.int64),
    )


def _fold(character: str) -> list[int]:
    """Return the entries that one character becomes; empty where matching ignores it."""
    if unicodedata.category(character) == "Cf" or 0xFE00 <= ord(character) <= 0xFE0F:
        return []
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    folded: list[int] = []
    for part in plain:
        # Marks with a combining class are accents; vowel signs and viramas (classes 0 and 9) are part of spelling.
        if unicodedata.category(part) == "Cf" or unicodedata.combining(part) not in (0, 9):
            continue
        part = LOOK_ALIKES.get(part, part)
        if unicodedata.category(part)[0] not in "LNM":
            folded.append(SEPARATOR)
        else:
            folded.append(ord(part) | ((CHARACTER_WORD if is_unspaced(ord(part)) else LETTER) << _KIND_SHIFT))
    return folded
