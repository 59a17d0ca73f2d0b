"""Values separated by commas, tabs or semicolons (RFC 4180): the first row names the columns, one of which is the text.

Quoted fields may contain line breaks. An unreadable row is rejected alone, and reading continues at the line after its
first one, so that a stray quotation mark costs one row and not the rest of the file.
"""

import codecs
import csv
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from tasks.sample.config import Source
from tasks.sample.readers.byte_stream import Line, LostLine
from tasks.sample.readers.jsonl_reader import record_of_fields
from tasks.sample.readers.records import BadRecord, Record, excerpt_of, missing_column, undecodable

_LARGEST_FIELD = 2**31 - 1


def csv_records(
    lines: Iterator[Line | LostLine], source: Source, begin: int, delimiter: str
) -> Iterator[Record | BadRecord]:
    """Yield a record for every row after the header, numbered by the line where it begins."""
    csv.field_size_limit(_LARGEST_FIELD)  # the default is 128 KiB, for the whole process
    found = _Lines(lines)
    first = found.take()
    if isinstance(first, Line) and first.raw is not None:
        # A quotation mark begins a field only where nothing is before it.
        header_line = first.raw.removeprefix(codecs.BOM_UTF8)
        first = replace(first, raw=header_line)
        delimiter = delimiter_of(header_line.decode("utf-8", errors="replace"), delimiter)
    if first is not None:
        found.push_back([first])
    rows = _rows(found, source.max_file_bytes, delimiter)
    header = next(rows, None)
    if header is None:
        return
    if isinstance(header, BadRecord):
        yield header
        return
    names = header.cells
    if missing := missing_column(names, source):
        yield missing
        return
    twice = [name for name in (source.text_field, source.id_field, source.url_field) if name and names.count(name) > 1]
    if twice:
        yield BadRecord(0, 0, f"{names.count(twice[0])} columns are named `{twice[0]}`", excerpt_of(header.raw))
        return
    for row in rows:
        if row.number >= begin:
            yield row if isinstance(row, BadRecord) else _record(row, names, source)


def delimiter_of(header: str, delimiter: str) -> str:
    """Return what separates the names in the first line of a table: `delimiter`, or semicolons where it has none of
    it, as spreadsheets write in countries with a decimal comma."""
    return ";" if delimiter not in header and ";" in header else delimiter


class _Row:
    def __init__(self, number: int, byte: int, raw: bytes, cells: list[str]) -> None:
        self.number, self.byte, self.raw, self.cells = number, byte, raw, cells


class _Lines:
    """Lines that can be pushed back."""

    def __init__(self, lines: Iterator[Line | LostLine]) -> None:
        self._lines = lines
        self._back: deque[Line | LostLine] = deque()

    def take(self) -> Line | LostLine | None:
        return self._back.popleft() if self._back else next(self._lines, None)

    def push_back(self, lines: list[Line | LostLine]) -> None:
        self._back.extendleft(reversed(lines))


def _rows(lines: _Lines, limit: int, delimiter: str) -> Iterator[_Row | BadRecord]:
    while (first := lines.take()) is not None:
        if isinstance(first, LostLine):
            yield BadRecord(first.number, first.byte, first.reason, excerpt_of(first.rest))
        elif first.raw is None:
            yield BadRecord(first.number, first.byte, f"row longer than max_file_bytes ({limit})")
        elif first.torn or not first.raw.strip(b"\r"):
            continue  # the end of a lost row, or a blank line
        else:
            yield _row(first, first.raw, lines, limit, delimiter)


def _row(first: Line, raw: bytes, lines: _Lines, limit: int, delimiter: str) -> _Row | BadRecord:
    taken: list[Line | LostLine] = []
    held = [raw]
    size = len(raw)
    stop: list[Line | LostLine] = []
    reason = ""

    def physical_lines() -> Iterator[str]:
        nonlocal size, reason
        yield raw.decode("utf-8", errors="surrogateescape") + "\n"
        while (line := lines.take()) is not None:
            if isinstance(line, LostLine) or line.raw is None or size + len(line.raw) > limit:
                stop.append(line)
                end = f"before {line.reason}" if isinstance(line, LostLine) else f"within max_file_bytes ({limit})"
                reason = f"no end of a quoted field {end}"
                return
            taken.append(line)
            held.append(line.raw)
            size += len(line.raw) + 1
            yield line.raw.decode("utf-8", errors="surrogateescape") + "\n"

    try:
        cells = next(csv.reader(physical_lines(), delimiter=delimiter, strict=True))
    except csv.Error as error:
        lines.push_back([*taken, *stop])
        return BadRecord(first.number, first.byte, f"broken row: {reason or error}", excerpt_of(raw))
    return _Row(first.number, first.byte, b"\n".join(held), cells)


def _record(row: _Row, names: list[str], source: Source) -> Record | BadRecord:
    if len(row.cells) != len(names):
        reason = f"row of {len(row.cells)} fields under a header of {len(names)}"
        return BadRecord(row.number, row.byte, reason, excerpt_of(row.raw))
    try:
        row.raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return undecodable(row.number, row.byte, row.raw, error.start, "invalid UTF-8")
    fields = dict(zip(names, row.cells, strict=True))
    return record_of_fields(row.number, row.byte, fields, source, row.raw, "column")
