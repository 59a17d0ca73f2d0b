"""Judge whether the first row of a table is a record, and the names of its columns are missing.

A real header that is taken for a record costs a whole table, and a record taken for a header costs one: one column that
looks named is enough for a header.
"""

import re
from collections.abc import Sequence

WORDS_OF_A_SENTENCE, WORDS_OF_A_LONG_CELL = 5, 12
"""Words from which a cell that ends as a sentence does, and any cell, is no name. Questions of surveys are names."""

CHARACTERS_WITHOUT_SPACES = 15
"""Length from which a cell with marks of sentences is one in scripts that write no spaces."""

MOST_ALIKE = 0.9
"""Share of a column's cells that have letters, or have none, from which a first cell of the other kind is a name."""


def is_record(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row is a record like the `others`: a column shows that it is, and none that it names."""
    if list(first) in [list(row) for row in others]:
        return False  # Tables were joined with their headers.
    columns = [[row[place].strip() for row in others if place < len(row)] for place in range(len(first))]
    found = [
        _is_cell(cell.strip(), [one for one in cells if one])
        for cell, cells in zip(first, columns, strict=True)
        if cell.strip() and any(cells)
    ]
    return True in found and False not in found


def _is_cell(cell: str, others: Sequence[str]) -> bool | None:
    """Return True for a cell like the `others` of its column, False for a name above them, None where it may be both:
    it has digits at the places where most others have them, is frequent among them, or is a sentence as they are."""
    lettered = sum(map(_has_letters, others)) / len(others)
    if max(lettered, 1 - lettered) >= MOST_ALIKE and _has_letters(cell) != (lettered >= MOST_ALIKE):
        return False
    shape = _DIGITS.sub("0", cell)
    alike = sum(_DIGITS.sub("0", one) == shape for one in others) if _DIGITS.search(cell) else 0
    sentences = sum(map(_is_sentence, others)) if _is_sentence(cell) else 0
    return True if others.count(cell) > 1 or 2 * max(alike, sentences) >= len(others) else None


def _has_letters(cell: str) -> bool:
    return any(map(str.isalpha, cell))


_DIGITS = re.compile(r"\d+")

_END = re.compile(r"[.!…。！][\"'»”’)]*$")

_MARKS = re.compile(r"[，。、！；]")


def _is_sentence(cell: str) -> bool:
    if cell.endswith(("?", ":", "？", "：")):
        return False
    words = len(cell.split())
    ends = words >= WORDS_OF_A_SENTENCE and _END.search(cell) is not None
    dense = len(cell) >= CHARACTERS_WITHOUT_SPACES and _MARKS.search(cell) is not None
    return ends or dense or words >= WORDS_OF_A_LONG_CELL
