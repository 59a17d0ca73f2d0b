"""Words for matching: without compatibility forms, case, accents, look-alikes, punctuation and invisible characters.

Each code point folds by itself, whatever its neighbours: NFKD, case folding, combining marks removed, look-alike
letters of other scripts to one letter. So two texts that are equal under NFKC are equal here, a word keeps its place in
the original UTF-8 bytes, and the kernel and the plain Python version share one table. The text that training reads is
not changed.

A word is a run of letters, digits and marks; in scripts without spaces each character is a word. Zero-width and other
format characters neither end a word nor count. HTML entities such as `&quot;` separate words.

Letters of other scripts that look like Latin ones hide a copied passage; folding both sides to the Latin letter makes
the copies equal again. No two letters of one script fold to the same letter, so distinct words of a script stay
distinct. The table is our own, in the spirit of Unicode UTS #39; its keys are characters after NFKD and case folding.
"""

import functools
import re
import unicodedata
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.common.kernels import kernel
from tasks.common.text import is_unspaced

_TABLE_SIZE = 0x30000
_KIND_SHIFT = 28
_VALUE_MASK = (1 << _KIND_SHIFT) - 1
SEPARATOR, LETTER, CHARACTER_WORD, HIDDEN, SEQUENCE = range(5)
_LAST_IDEOGRAPH = 0x3FFFD
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,7});")
_AMPERSAND, _SEMICOLON, _HASH = 0x26, 0x3B, 0x23
_MAX_ENTITY_BYTES = 10

_FNV_BASIS = np.uint64(0xCBF29CE484222325)
"""The offset basis of FNV-1a."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio, odd."""

_FINISH = np.uint64(0xD6E8FEB86659FD93)
_SHIFT32 = np.uint64(32)
_CYRILLIC = dict(zip("авекмнорстухіјѕԁԛԝѵӏ", "abekmhopctyxijsdqwvl", strict=True))
_GREEK = dict(zip("αβεζηικμνορτυχ", "abezhikmvoptux", strict=True))
_ARMENIAN = dict(zip("օսոհցք", "ounhgp", strict=True))
_LATIN = {"ı": "i", "ɡ": "g", "ɑ": "a", "ł": "l", "ø": "o", "đ": "d"}
LOOK_ALIKES: dict[str, str] = {**_CYRILLIC, **_GREEK, **_ARMENIAN, **_LATIN}


@dataclass(frozen=True)
class FoldTable:
    """`entries[codepoint]` = kind << 28 | value; for SEQUENCE the value points into `pool`: length, then entries."""

    entries: npt.NDArray[np.uint32]
    pool: npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Word:
    """A folded word and its half-open range in the UTF-8 bytes of the text."""

    text: str
    start: int
    end: int
    unsegmented: bool
    """Whether it is a single character of a script without spaces."""


def fold_words(text: str) -> list[Word]:
    """Return the words of `text`, in plain Python: items consist of them, and they verify the kernel's matches."""
    table = fold_table()
    words: list[Word] = []
    run: list[str] = []
    begin = end = offset = 0

    def close() -> None:
        if run:
            words.append(Word("".join(run), begin, end, unsegmented=False))
            run.clear()

    position = 0
    while position < len(text):
        character = text[position]
        if character == "&" and (entity := _ENTITY.match(text, position)):
            close()
            position, offset = entity.end(), offset + entity.end() - entity.start()
            continue
        position += 1
        start, offset = offset, offset + len(character.encode())
        for entry in _entries(ord(character), table):
            kind, value = entry >> _KIND_SHIFT, entry & _VALUE_MASK
            if kind == LETTER:
                begin = begin if run else start
                end = offset
                run.append(chr(value))
            elif kind != HIDDEN:
                close()
                if kind == CHARACTER_WORD:
                    words.append(Word(chr(value), start, offset, unsegmented=True))
    close()
    return words


def _entries(codepoint: int, table: FoldTable) -> list[int]:
    if codepoint >= _TABLE_SIZE:
        return [
            codepoint | (CHARACTER_WORD << _KIND_SHIFT)
            if codepoint <= _LAST_IDEOGRAPH
            else _kind_outside_table(codepoint) << _KIND_SHIFT
        ]
    entry = int(table.entries[codepoint])
    if entry >> _KIND_SHIFT != SEQUENCE:
        return [entry]
    at = entry & _VALUE_MASK
    return table.pool[at + 1 : at + 1 + int(table.pool[at])].tolist()


def _kind_outside_table(codepoint: int) -> int:
    return HIDDEN if 0xE0000 <= codepoint <= 0xE0FFF else SEPARATOR


@kernel
def hash_words(data, begin, end, entries, pool, hashes, starts, ends):
    """Write hash and range (bytes from `begin`) of each word of data[begin:end].

    Returns (words, words that are single characters of scripts without spaces). The three outputs need capacity for
    `max_words(end - begin)` values.
    """
    count = unsegmented_words = 0
    state = _FNV_BASIS
    inside = False
    word_start = word_end = np.int64(0)
    position = begin
    while position < end:
        start = position
        byte = data[position]
        if byte < 0x80:
            codepoint = np.int64(byte)
            position += 1
            if byte == _AMPERSAND:
                length = _entity_length(data, start, end)
                if length > 0:
                    position = start + length
        elif byte < 0xE0:
            codepoint = (np.int64(byte & 0x1F) << 6) | np.int64(data[position + 1] & 0x3F)
            position += 2
        elif byte < 0xF0:
            codepoint = (
                (np.int64(byte & 0x0F) << 12)
                | (np.int64(data[position + 1] & 0x3F) << 6)
                | np.int64(data[position + 2] & 0x3F)
            )
            position += 3
        else:
            codepoint = (
                (np.int64(byte & 0x07) << 18)
                | (np.int64(data[position + 1] & 0x3F) << 12)
                | (np.int64(data[position + 2] & 0x3F) << 6)
                | np.int64(data[position + 3] & 0x3F)
            )
            position += 4
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
                continue
            if inside:
                hashes[count], starts[count], ends[count] = _finish(state), word_start - begin, word_end - begin
                count += 1
                state = _FNV_BASIS
                inside = False
            if part_kind == CHARACTER_WORD:
                hashes[count] = _finish((_FNV_BASIS ^ np.uint64(entry)) * GOLDEN)
                starts[count], ends[count] = start - begin, position - begin
                count += 1
                unsegmented_words += 1
    if inside:
        hashes[count], starts[count], ends[count] = _finish(state), word_start - begin, word_end - begin
        count += 1
    return count, unsegmented_words


@kernel
def _finish(state):
    state ^= state >> _SHIFT32
    return state * _FINISH


@kernel
def _entity_length(data, position, end):
    """Return the bytes of an HTML entity that begins at the ampersand at `position`; 0 where none does."""
    last = min(end, position + _MAX_ENTITY_BYTES)
    numeric = position + 1 < last and data[position + 1] == _HASH
    hexadecimal = numeric and position + 2 < last and (data[position + 2] | 0x20) == 0x78
    begin = position + 1 + numeric + hexadecimal
    for at in range(begin, last):
        byte = data[at]
        length = at - begin
        if byte == _SEMICOLON:
            longest = 6 if hexadecimal else 7 if numeric else 8
            shortest = 1 if numeric else 2
            return at + 1 - position if shortest <= length <= longest else 0
        digit = 0x30 <= byte <= 0x39
        letter = 0x61 <= (byte | 0x20) <= 0x7A
        if hexadecimal:
            allowed = digit or 0x61 <= (byte | 0x20) <= 0x66
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
    return FoldTable(entries, np.array(pool, np.uint32))


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
