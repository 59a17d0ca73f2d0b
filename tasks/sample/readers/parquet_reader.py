"""Parquet and Arrow IPC: one column is the text, a row is a record.

A damaged part costs its rows, which are rejected one by one if the file states their number, as a parquet row group
does. An Arrow file without its footer is read as the stream that it contains. The memory needed depends on the pages of
a parquet file, since as many rows are read at once as fit, not on its row groups; for an Arrow file, on its batches.

A page is unpacked whole, and a writer that ends pages after a fixed number of rows makes pages of gigabytes from long
texts. So the unpacked sizes are first read from the page headers, which are Thrift structures in the compact protocol
(parquet-format, src/main/thrift/parquet.thrift).
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.sample.config import Source
from tasks.sample.discovery import is_fault_of_machine
from tasks.sample.readers.byte_stream import UNPACKS_TOO_MUCH, ReadingLimit, most_unpacked
from tasks.sample.readers.jsonl_reader import url_of
from tasks.sample.readers.records import BadRecord, Found, OnBytes, Record, decode_text, excerpt_of, missing_column

_ROWS_PER_BATCH = 512

_BATCH_BYTES = 64 * 1024**2

LARGEST_PAGE = 256 * 1024**2
"""Bytes after unpacking; typical pages have 1 MiB."""

_READ_BYTES = 1 << 20

_ARROW_MAGIC = b"ARROW1\0\0"

_HEADER_BYTES = 1 << 13

_LONGEST_HEADER = 1 << 24

_UNPACKED, _STORED, _DATA, _DICTIONARY, _DATA_V2 = 2, 3, 5, 7, 8
"""Field numbers of a page header."""

_VALUES = 1
"""Field number of the count in the header of each kind of page."""

_BYTES_OF_TEXT = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
"""Types of text, and of its bytes."""


def parquet_records(
    stream: BinaryIO, size: int, source: Source, begin: int, on_bytes: OnBytes, limit: ReadingLimit
) -> Iterator[Found]:
    """Yield the rows from number `begin` on; `on_bytes` gets the file's `size` in proportion to the rows read.

    `limit` counts bytes of text; raises EnoughRead."""
    try:
        # Without read-ahead of whole column chunks, which may exceed memory.
        parquet = pq.ParquetFile(stream, pre_buffer=False, buffer_size=_READ_BYTES)
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        yield BadRecord(0, 0, f"torn parquet file: {_damage(error)}")
        return
    with parquet:
        if wrong := _wrong_columns(parquet.schema_arrow, source):
            yield wrong
            return
        progress = _Progress(size, parquet.metadata.num_rows, on_bytes)
        first = 0
        for group in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            if first + rows > begin:
                yield from _row_group(parquet, stream, group, first, source, begin, progress, limit)
            first += rows
            progress.reach(first)


def _row_group(
    parquet: pq.ParquetFile,
    stream: BinaryIO,
    group: int,
    first: int,
    source: Source,
    begin: int,
    progress: "_Progress",
    limit: ReadingLimit,
) -> Iterator[Found]:
    found = parquet.metadata.row_group(group)
    row, end = first, first + found.num_rows
    try:
        columns = _columns(parquet.schema_arrow, source)
        rows = _rows_at_once(parquet, stream, group, columns, source)
        rows = int(max(1, min(rows, limit.left * found.num_rows / max(1, found.total_byte_size))))
        for batch in parquet.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False):
            progress.reach(row + batch.num_rows)
            yield from _rows_of_batch(batch, row, source, begin, limit)
            row += batch.num_rows
        return
    except TooLarge as error:
        reason = f"row group {group} {error}"
    except (pa.ArrowException, DamagedHeader, OSError) as error:
        reason = f"damaged row group {group}: {_damage(error)}"
    for number in range(max(row, begin), end):
        yield BadRecord(number, 0, reason)


class TooLarge(Exception):
    """Raised for a row group that cannot be read in bounded memory, or unpacks to more than the source allows."""


def _rows_at_once(parquet: pq.ParquetFile, stream: BinaryIO, group: int, columns: list[str], source: Source) -> int:
    """Return how many rows of a row group certainly fit into memory; raises TooLarge if a single page does not."""
    found = parquet.metadata.row_group(group)
    # Of no other column: pyarrow ends the process where the statistics of one are damaged.
    wanted = [number for number in range(found.num_columns) if parquet.schema.column(number).path in columns]
    longest = 1.0
    for chunk in map(found.column, wanted):
        unpacked = chunk.total_uncompressed_size
        most, why = most_unpacked(chunk.total_compressed_size, source)
        if unpacked > most:
            raise TooLarge(f"{UNPACKS_TOO_MUCH} {why}")
        offsets = [chunk.data_page_offset]
        if chunk.dictionary_page_offset:
            offsets.append(chunk.dictionary_page_offset)
        elif unpacked <= _BATCH_BYTES:
            continue
        begin = min(offsets)
        for page in pages(stream, begin, begin + chunk.total_compressed_size):
            if page.unpacked > LARGEST_PAGE:
                raise TooLarge(
                    f"has a page of {page.unpacked:,} bytes, and a page is read whole: the limit is {LARGEST_PAGE:,}."
                    f" Write the file again with smaller row groups"
                )
            # Each row may contain the longest value of a dictionary.
            longest = max(longest, page.unpacked if page.is_dictionary else page.unpacked / max(1, page.values))
            if unpacked <= _BATCH_BYTES and not page.is_dictionary:
                break
    return max(1, min(_ROWS_PER_BATCH, int(_BATCH_BYTES / longest)))


def arrow_records(
    stream: BinaryIO, size: int, source: Source, begin: int, on_bytes: OnBytes, limit: ReadingLimit
) -> Iterator[Found]:
    """Yield the rows from number `begin` on of an Arrow IPC file or stream (Feather 2, `datasets` caches), as
    `parquet_records`."""
    is_file = stream.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
    stream.seek(0)
    torn = None
    if is_file:
        try:
            reader = pa.ipc.open_file(stream)
        except (pa.ArrowException, OSError) as error:
            torn = f"torn arrow file: {_damage(error)}"
            stream.seek(len(_ARROW_MAGIC))
        else:
            yield from _arrow_file(reader, size, source, begin, on_bytes, limit)
            return
    yield from _arrow_stream(stream, source, begin, on_bytes, torn, limit)


def _arrow_file(
    reader: pa.ipc.RecordBatchFileReader, size: int, source: Source, begin: int, on_bytes: OnBytes, limit: ReadingLimit
) -> Iterator[Found]:
    if wrong := _wrong_columns(reader.schema, source):
        yield wrong
        return
    progress = _Progress(size, reader.num_record_batches, on_bytes)
    row = 0
    for number in range(reader.num_record_batches):
        progress.reach(number + 1)
        try:
            batch = reader.get_batch(number)
        except (pa.ArrowException, OSError) as error:
            yield BadRecord(row, 0, f"damaged record batch {number}: {_damage(error)}")
            row += 1  # it does not show its number of rows
            continue
        yield from _rows_of_batch(batch, row, source, begin, limit)
        row += batch.num_rows


def _arrow_stream(
    stream: BinaryIO, source: Source, begin: int, on_bytes: OnBytes, torn: str | None, limit: ReadingLimit
) -> Iterator[Found]:
    row = place = 0
    try:
        reader = pa.ipc.open_stream(stream)
        if wrong := _wrong_columns(reader.schema, source):
            yield wrong
            return
        for batch in reader:
            on_bytes(stream.tell() - place)
            place = stream.tell()
            yield from _rows_of_batch(batch, row, source, begin, limit)
            row += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        torn = torn or f"torn arrow stream: {_damage(error)}"
    if torn:
        yield BadRecord(row, 0, torn)


class _Progress:
    """Reports a file's bytes in proportion to the rows read."""

    def __init__(self, size: int, total: int, on_bytes: OnBytes) -> None:
        self._size, self._total, self._on_bytes = size, max(1, total), on_bytes
        self._reported = 0

    def reach(self, done: int) -> None:
        reached = self._size * done // self._total
        if reached > self._reported:
            self._on_bytes(reached - self._reported)
            self._reported = reached


def _damage(error: Exception) -> str:
    """Return what is wrong with a file by the library's error; raises the error where the machine failed instead."""
    if isinstance(error, OSError) and is_fault_of_machine(error):
        raise error
    return (str(error) or type(error).__name__).splitlines()[0]


def _columns(schema: pa.Schema, source: Source) -> list[str]:
    wanted = [name for name in (source.text_field, source.id_field, source.url_field) if name is not None]
    return [name for name in dict.fromkeys(wanted) if name in schema.names]


def _wrong_columns(schema: pa.Schema, source: Source) -> BadRecord | None:
    try:
        names = schema.names
    except UnicodeDecodeError as error:
        return BadRecord(0, 0, f"damaged names of columns: {error}")
    if missing := missing_column(names, source):
        return missing
    for name in _columns(schema, source):
        if names.count(name) > 1:
            return BadRecord(0, 0, f"{names.count(name)} columns are named `{name}`")
    kind = schema.field(source.text_field).type
    if (kind.value_type if pa.types.is_dictionary(kind) else kind) not in {*_BYTES_OF_TEXT, *_BYTES_OF_TEXT.values()}:
        return BadRecord(0, 0, f"column `{source.text_field}` holds {kind}, not text", setting="text_field")
    return None


def _rows_of_batch(
    batch: pa.RecordBatch, first: int, source: Source, begin: int, limit: ReadingLimit
) -> Iterator[Found]:
    try:
        texts = _Values(batch.column(source.text_field), decoded=False)
        keys, urls = (
            _Values(batch.column(name), decoded=True) if name in batch.schema.names else None
            for name in (source.id_field, source.url_field)
        )
    except pa.ArrowException as error:
        for number in range(max(first, begin), first + batch.num_rows):
            yield BadRecord(number, 0, f"damaged record batch: {_damage(error)}")
        return
    for offset in range(max(0, begin - first), batch.num_rows):
        number = first + offset
        try:
            raw = texts.at(offset)
            key = None if keys is None else _key(keys.at(offset))
            url = None if urls is None else url_of(urls.at(offset))
        except _OutsideDictionary as error:
            yield BadRecord(number, 0, str(error))
            continue
        if raw is None:
            yield BadRecord(number, 0, f"column `{source.text_field}` is null")
            continue
        limit.take(len(raw))
        if len(raw) > source.max_file_bytes:
            yield BadRecord(number, 0, f"larger than max_file_bytes ({source.max_file_bytes})", excerpt_of(raw))
            continue
        found = decode_text(number, 0, raw)
        if isinstance(found, BadRecord):
            yield found
            continue
        if keys is not None and key is None:
            reason = f"no id in column `{source.id_field}`"
            yield BadRecord(number, 0, reason, excerpt_of(raw), setting="id_field")
            continue
        yield Record(number, 0, found.text, key, url=url)


def _key(key: object) -> str | None:
    if isinstance(key, bytes):
        key = key.hex()
    # pandas writes NaN where an id is missing.
    return None if key is None or key == "" or key != key else str(key)


class _OutsideDictionary(ValueError):
    """Raised for a row that refers to a value which its dictionary does not have."""


class _Values:
    """A column's values one by one, without expanding dictionaries. Raises ArrowInvalid for offsets that lead outside.

    Texts are bytes, since neither format checks that they are UTF-8; with `decoded` one that is not is None.
    """

    def __init__(self, column: pa.Array, *, decoded: bool) -> None:
        self._places = column.indices if isinstance(column, pa.DictionaryArray) else None
        values = column if self._places is None else column.dictionary
        as_bytes = _BYTES_OF_TEXT.get(values.type)
        self._decodes = decoded and as_bytes is not None
        self._values = values if as_bytes is None else values.view(as_bytes)
        # The library reads wherever an offset leads, which ends the process.
        self._values.validate(full=True)

    def at(self, row: int) -> Any:
        """Return the value of a row; None for null."""
        place = row if self._places is None else self._places[row].as_py()
        if place is None:
            return None
        if not 0 <= place < len(self._values):
            raise _OutsideDictionary(f"place {place} of a dictionary of {len(self._values)} values")
        value = self._values[place].as_py()
        if not self._decodes or value is None:
            return value
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None


class DamagedHeader(ValueError):
    """Raised for bytes that are not a page header."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of `unpacked` bytes with `values` values; those of a dictionary may occur in any number of rows."""

    unpacked: int
    values: int
    is_dictionary: bool


def pages(stream: BinaryIO, begin: int, end: int) -> Iterator[Page]:
    """Yield the pages of the column chunk at bytes `begin` to `end`. Raises DamagedHeader."""
    if begin < 0:
        raise DamagedHeader(f"no page header at byte {begin}")
    while begin < end:
        fields, length = _header(stream, begin)
        kind = next((kind for kind in (_DATA, _DATA_V2, _DICTIONARY) if kind in fields), None)
        of_kind = fields[kind] if kind is not None else {_VALUES: 0}
        values = of_kind.get(_VALUES) if isinstance(of_kind, dict) else None
        stored = _size(fields.get(_STORED), begin)
        yield Page(_size(fields.get(_UNPACKED), begin), _size(values, begin), kind == _DICTIONARY)
        begin += length + stored


def _size(value: Any, begin: int) -> int:
    if type(value) is not int or value < 0:  # bool is a subclass of int
        raise DamagedHeader(f"no page header at byte {begin}")
    return value


def _header(stream: BinaryIO, begin: int) -> tuple[dict[int, Any], int]:
    """Return the fields of the header at `begin`, and its length in bytes."""
    size = _HEADER_BYTES
    while True:
        stream.seek(begin, os.SEEK_SET)
        raw = stream.read(size)
        compact = _Compact(raw)
        try:
            return compact.struct(), compact.at
        except (_NotCompact, IndexError, RecursionError) as error:
            if isinstance(error, _NotCompact) or len(raw) < size or size >= _LONGEST_HEADER:
                raise DamagedHeader(f"no page header at byte {begin}") from error
            size *= 8


class _NotCompact(ValueError):
    """Raised for bytes that cannot begin a structure."""


class _Compact:
    """Parser of Thrift's compact protocol; raises IndexError if the bytes end too early, _NotCompact if they are
    invalid."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self.at = raw, 0

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            fields[number] = self._value(head & 15)
        return fields

    def _byte(self) -> int:
        self.at += 1
        return self._raw[self.at - 1]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise _NotCompact("a number of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _value(self, kind: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind in (3, 7):
            return self._skip(1 if kind == 3 else 8)
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 8:
            return self._skip(self._varint())
        if kind in (9, 10):
            head = self._byte()
            # In a list a boolean is a byte of its own: otherwise a large count would need no bytes.
            element = 3 if head & 15 in (1, 2) else head & 15
            return [self._value(element) for _ in range(head >> 4 if head >> 4 < 15 else self._varint())]
        if kind == 12:
            return self.struct()
        raise _NotCompact(f"no kind {kind}")  # headers contain no maps

    def _skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self._raw):
            raise IndexError(size)
