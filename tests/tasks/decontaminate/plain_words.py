"""The words of a text in plain Python, from which the kernel may not differ."""

import re
import sys
from dataclasses import dataclass

from tasks.decontaminate.normalize import (
    CHARACTER_WORD,
    ENTITIES,
    HIDDEN,
    LETTER,
    SEPARATOR,
    SEQUENCE,
    FoldTable,
    fold_table,
)

TABLE_SIZE, LAST_IDEOGRAPH, KIND_SHIFT = 0x30000, 0x3FFFD, 28
_ENTITY = re.compile(r"&(?:amp;)*(?:#([0-9]{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z][a-zA-Z0-9]{1,7}));")
_ESCAPE = re.compile(
    r"\\+(?:u([dD][89abAB][0-9a-fA-F]{2})\\+u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|[a-zA-Z]{2,}(?=\{)|[ntr])"
    r"(?![\u0300-\u036f])"  # a letter with a mark is no escape, decomposed or not
)


@dataclass(frozen=True)
class Word:
    """A folded word and its half-open range in the UTF-8 bytes of the text."""

    text: str
    start: int
    end: int
    unsegmented: bool
    """Whether it is a single character of a script without spaces."""


def fold_words(text: str) -> list[Word]:
    """Return the words of `text`, in plain Python."""
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
        start = offset
        if found := _escape_at(text, position):
            codepoint, length = found
            position, offset = position + length, offset + length
        else:
            codepoint = ord(character)
            position, offset = position + 1, offset + len(character.encode())
        for entry in _entries(codepoint, table):
            kind, value = entry >> KIND_SHIFT, entry & ((1 << KIND_SHIFT) - 1)
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


def _escape_at(text: str, position: int) -> tuple[int, int] | None:
    """Return the character that an escape at `position` means, and the escape's length; None without one."""
    if text[position] == "&" and (entity := _ENTITY.match(text, position)):
        decimal, hexadecimal, name = entity.groups()
        codepoint = int(decimal) if decimal else int(hexadecimal, 16) if hexadecimal else ENTITIES.get(name, 0x20)
        return codepoint if codepoint <= sys.maxunicode else 0x20, entity.end() - position
    if text[position] == "\\" and (escape := _ESCAPE.match(text, position)):
        high, low, single = escape.groups()
        codepoint = int(single, 16) if single else 0x20
        if high:
            codepoint = 0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF)
        return codepoint, escape.end() - position
    return None


def _entries(codepoint: int, table: FoldTable) -> list[int]:
    if codepoint >= TABLE_SIZE:
        return [
            codepoint | (CHARACTER_WORD << KIND_SHIFT)
            if codepoint <= LAST_IDEOGRAPH
            else _kind_outside_table(codepoint) << KIND_SHIFT
        ]
    entry = int(table.entries[codepoint])
    if entry >> KIND_SHIFT != SEQUENCE:
        return [entry]
    at = entry & ((1 << KIND_SHIFT) - 1)
    return table.pool[at + 1 : at + 1 + int(table.pool[at])].tolist()


def _kind_outside_table(codepoint: int) -> int:
    return HIDDEN if 0xE0000 <= codepoint <= 0xE0FFF else SEPARATOR
