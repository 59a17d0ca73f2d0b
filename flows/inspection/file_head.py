"""Read the beginnings of files: their text and records as the sample stage will read them, and how many they hold.

Record counts are exact where that is cheap, and estimated otherwise. Of a table it is judged whether its first row is a
record, and the names of its columns are missing. A real header that is taken for a record costs a whole table, and a
record taken for a header costs one: one column that looks named is enough for a header.
"""

import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from tasks.clean.edits.html import html_to_text
from tasks.clean.edits.wikitext import plain_text
from tasks.sample.bounded_reader import BoundedReader, Bounds, spread
from tasks.sample.config import Source
from tasks.sample.discovery import InputFile
from tasks.sample.readers.byte_stream import Gap, blocks_and_gaps
from tasks.sample.readers.csv_reader import delimiter_of
from tasks.sample.readers.encodings import AUTO, SAMPLE_BYTES, encoding_of
from tasks.sample.readers.mediawiki_reader import OPENING, mediawiki_records
from tasks.sample.readers.records import BadRecord, Record
from tasks.sample.readers.warc_reader import warc_records

SNIFFED_RECORDS = 200
"""Records of a file that are read."""

HEAD_BYTES = 256 * 1024
"""Stored bytes that are read of a file at most."""

MAX_COUNTED_FILES = 16
"""Files of a format that are opened to count records; those of the others are estimated from their bytes."""


@dataclass(frozen=True)
class StoredFile:
    """A file with its format, compression and stored bytes."""

    path: Path
    format: str
    compression: str | None
    size: int


@dataclass(frozen=True)
class RecordCount:
    """A number of records, and whether it is exact."""

    records: float
    exact: bool


@dataclass(frozen=True)
class FileHead:
    """The beginning of a file, decompressed."""

    raw: bytes
    stored: int
    """Stored bytes that `raw` came from."""
    whole: bool
    """Whether that was the whole file."""
    damage: str = ""
    """Damage of the compressed stream; empty where there is none."""


def read_head(path: Path, compression: str | None, limit: int = HEAD_BYTES) -> FileHead:
    """Return the first `limit` stored bytes of a file, decompressed; raise OSError where it cannot be read."""
    with path.open("rb") as stream:
        stored = stream.read(limit)
        whole = not stream.read(1)
    raw = bytearray()
    damage = ""
    for block in blocks_and_gaps(io.BytesIO(stored), compression, lambda count: None):
        if isinstance(block, Gap):
            # The end of a stream that was cut at `limit` is not damage.
            damage = block.reason if whole or "ends early" not in block.reason else ""
            break
        raw += block
    return FileHead(bytes(raw), len(stored), whole, damage)


def decoded(raw: bytes, whole: bool, format: str) -> tuple[str, str | None]:
    """Return the text as the sample stage decodes it, and why it will reject the file, if it will."""
    try:
        text = raw.decode("utf-8-sig")
        encoding = encoding_of(raw[:SAMPLE_BYTES], AUTO)
        return _without_nul(text) if encoding is None else (raw.decode(encoding, errors="ignore"), None)
    except UnicodeDecodeError as error:
        if not whole and error.start >= len(raw) - 4:
            return _without_nul(raw[: error.start].decode("utf-8-sig"))
        encoding = encoding_of(raw[:SAMPLE_BYTES], AUTO)
        if encoding is not None:
            return raw.decode(encoding, errors="ignore"), None
        if format in ("jsonl", "csv", "html") and b"\0" not in raw[:4096]:
            return raw.decode(errors="replace"), None  # Damaged records are rejected one by one.
        return "", (
            f"not UTF-8 (byte {error.start}), and no other encoding is clear: convert it with iconv, or name"
            f" `encoding` in its source"
        )


def _without_nul(text: str) -> tuple[str, str | None]:
    return ("", "binary in spite of its name") if "\0" in text[:4096] else (text, None)


def looks_like_text(text: str) -> bool:
    """Return whether at most one character of twenty is a control character."""
    controls = sum(character < " " and character not in "\t\n\r\f\x1b" for character in text)
    return controls * 20 <= len(text)


def json_records(text: str, whole: bool) -> list[dict[str, Any]]:
    """Return the records of the first lines."""
    lines = text.split("\n")
    records: list[dict[str, Any]] = []
    for line in lines[: SNIFFED_RECORDS if whole else max(1, min(SNIFFED_RECORDS, len(lines) - 1))]:
        with suppress(ValueError, RecursionError):
            if isinstance(value := json.loads(line), dict):
                records.append(value)
    return records


def rejects(files: Sequence[StoredFile], most: int, text_field: str, id_field: str | None) -> tuple[list[str], int]:
    """Return why the sample stage would reject records at the beginnings of at most `most` files, and how many records
    these have."""
    source = Source(name="source", paths=("paths",), weight=1, text_field=text_field, id_field=id_field)
    listed = [
        InputFile("source", file.path, file.path.name, file.format, file.compression, file.size) for file in files
    ]
    bounds = Bounds(most, most * HEAD_BYTES, HEAD_BYTES, SNIFFED_RECORDS)
    reasons: list[str] = []
    count = 0
    for _, records in BoundedReader(source, listed, bounds).files():
        with suppress(OSError):  # A file that is gone now.
            for found in records:
                count += 1
                reasons += [found.reason] if isinstance(found, BadRecord) else []
    return reasons, count


def table_records(path: Path, text: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of the beginning of a table by column, without cells that have none, up to an unreadable row."""
    with suppress(csv.Error):
        for row in csv.DictReader(io.StringIO(text), delimiter=_delimiter(path, text)):
            yield {name: value for name, value in row.items() if name is not None}


def lacks_header(path: Path, text: str) -> bool:
    """Return whether the first row of a table is a record like those below it."""
    rows: list[list[str]] = []
    with suppress(csv.Error):
        written = filter(None, csv.reader(io.StringIO(text), delimiter=_delimiter(path, text)))
        rows.extend(itertools.islice(written, SNIFFED_RECORDS))
    return len(rows) > 1 and is_record(rows[0], rows[1:])


def _delimiter(path: Path, text: str) -> str:
    csv.field_size_limit(2**31 - 1)  # A cell may hold a book.
    return delimiter_of(text.partition("\n")[0], "\t" if ".tsv" in path.name.lower() else ",")


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


def wiki_pages(raw: bytes) -> list[str]:
    """Return the articles at the beginning of an export of a wiki."""
    found = mediawiki_records([raw], Source(name="wiki", paths=("wiki.xml",)))
    records = (record for record in found if isinstance(record, Record))
    return [record.text for record in itertools.islice(records, SNIFFED_RECORDS)]


def warc_pages(raw: bytes) -> list[str]:
    """Return the texts at the beginning of a WARC archive, without a record that was cut at its end."""
    found = warc_records(iter([raw]), Source(name="crawl", paths=("crawl.warc",)))
    return [record.text for record in found if isinstance(record, Record)]


PAGES: dict[str, Callable[[bytes], list[str]]] = {"mediawiki": wiki_pages, "warc": warc_pages}
"""Formats whose files hold many pages, and how those at the beginning of one are read."""


def parquet_records(path: Path) -> list[dict[str, Any]]:
    """Return the first SNIFFED_RECORDS rows of a Parquet file."""
    with pq.ParquetFile(path) as parquet:
        for batch in parquet.iter_batches(SNIFFED_RECORDS, use_threads=False):
            return batch.to_pylist()
    return []


def arrow_records(path: Path) -> list[dict[str, Any]]:
    """Return the first SNIFFED_RECORDS rows of an Arrow file or stream."""
    for batch in _arrow_batches(path):
        return batch.slice(0, SNIFFED_RECORDS).to_pylist()
    return []


def _arrow_batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as source:
        try:
            reader = pa.ipc.open_file(source)
            yield from map(reader.get_batch, range(reader.num_record_batches))
        except pa.ArrowInvalid:
            yield from pa.ipc.open_stream(source)


def count_records(files: Sequence[StoredFile]) -> RecordCount:
    """Count records: one per file, rows of Parquet and Arrow from their metadata, lines of JSON Lines, pages of wikis
    (those that are no articles included), texts of WARC archives and rows of tables from the beginnings of files."""
    by_format: dict[str, list[StoredFile]] = {}
    for file in files:
        by_format.setdefault(file.format if file.format in COUNTED else "", []).append(file)
    counts = [
        RecordCount(len(of_format), True) if not name else _extrapolated(of_format, COUNTED[name])
        for name, of_format in by_format.items()
    ]
    return RecordCount(sum(count.records for count in counts), all(count.exact for count in counts))


def _extrapolated(files: Sequence[StoredFile], count: Callable[[StoredFile], tuple[float, int, bool]]) -> RecordCount:
    """Return the records of files: of each that is looked at, from the part of its stored bytes that is read, and of
    all from the stored bytes of those. `count` returns the records of a file, the stored bytes that hold them, and
    whether these are the whole file."""
    found, looked, exact = 0.0, 0, len(files) <= MAX_COUNTED_FILES
    for file in spread(files, MAX_COUNTED_FILES):
        try:
            records, read, whole = count(file)
        except (OSError, pa.ArrowException):
            continue  # The sample stage reports files that cannot be read.
        found += records if whole or not read else records * max(file.size, read) / read
        looked, exact = looked + max(0, file.size), exact and whole
    everything = sum(max(0, file.size) for file in files)
    return RecordCount(found if len(files) <= MAX_COUNTED_FILES or not looked else found * everything / looked, exact)


def _marks(file: StoredFile, mark: bytes) -> tuple[float, int, bool]:
    head = read_head(file.path, file.compression)
    unfinished_line = mark == b"\n" and head.whole and not head.raw.endswith(mark)
    return max(1, head.raw.count(mark) + unfinished_line) if head.raw else 0, head.stored, head.whole


def _table_rows(file: StoredFile) -> tuple[float, int, bool]:
    """Count rows below the header, in whose quoted fields lines may break."""
    head = read_head(file.path, file.compression)
    rows = sum(1 for _ in table_records(file.path, decoded(head.raw, head.whole, "csv")[0]))
    return max(0, rows - (not head.whole)), head.stored, head.whole


def _pages(file: StoredFile) -> tuple[float, int, bool]:
    head = read_head(file.path, file.compression)
    return len(warc_pages(head.raw)), head.stored, head.whole


MARKUP: dict[str, Callable[[str], str]] = {
    **dict.fromkeys(("html", "warc"), lambda page: html_to_text(page)[0] or ""),
    **dict.fromkeys(("wikitext", "mediawiki"), plain_text),
}
"""Format, or content of a text field -> how clean finds the text in its markup, by default."""

COUNTED: dict[str, Callable[[StoredFile], tuple[float, int, bool]]] = {
    "jsonl": partial(_marks, mark=b"\n"),
    "mediawiki": partial(_marks, mark=OPENING),
    "parquet": lambda file: (pq.read_metadata(file.path).num_rows, file.size, True),
    "arrow": lambda file: (sum(batch.num_rows for batch in _arrow_batches(file.path)), file.size, True),
    "csv": _table_rows,
    "warc": _pages,
}
"""Formats whose files hold many records, and how they are counted."""
