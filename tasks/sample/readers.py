"""From one file to its records, in bounded memory; what is broken becomes a BadRecord and reading goes on.

jsonl and parquet hold many records, every other format is one document per file. A reader may be told to begin at a
later record, which is how an interrupted build goes on.
"""

import errno
import json
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.sample.byte_blocks import DamagedStream, byte_blocks
from tasks.sample.config import Source
from tasks.sample.discovery import InputFile
from tasks.sample.records import BadRecord, Record, decode_text, excerpt_of

_ROWS_PER_BATCH = 512
_MACHINE_FAULTS = frozenset({errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETIMEDOUT})

OnBytes = Callable[[int], None]
Found = Iterator[Record | BadRecord]


def read_records(file: InputFile, source: Source, begin: int, on_bytes: OnBytes) -> Found:
    """The records of `file` from number `begin` on; `on_bytes` hears of stored bytes as they are consumed.

    A file that cannot be opened, or breaks off, ends in one BadRecord. Only faults of the machine (a failing disk, a
    file that vanished while the stage ran) leave this function, as OSError.
    """
    reader = {"jsonl": _json_lines, "parquet": _parquet_rows}.get(file.format, _whole_file)
    number = begin
    try:
        for found in reader(file, source, begin, on_bytes):
            if found.number >= begin:
                number = found.number + 1
                yield found
    except OSError as error:
        vanished = isinstance(error, FileNotFoundError) and file.size >= 0
        if vanished or error.errno in _MACHINE_FAULTS:
            raise
        yield BadRecord(number, 0, f"unreadable: {error.strerror or str(error).splitlines()[0]}")


def _whole_file(file: InputFile, source: Source, begin: int, on_bytes: OnBytes) -> Found:
    if begin > 0:
        return
    limit = source.max_file_bytes
    raw = bytearray()
    with file.path.open("rb") as stream:
        try:
            for block in byte_blocks(stream, file.compression, on_bytes):
                raw += block
                if len(raw) > limit:
                    yield BadRecord(0, 0, f"larger than max_file_bytes ({limit})", excerpt_of(bytes(raw[:400])))
                    return
        except DamagedStream as error:
            yield BadRecord(0, len(raw), str(error), excerpt_of(bytes(raw[-200:])))
            return
    yield decode_text(0, 0, bytes(raw))


def _json_lines(file: InputFile, source: Source, begin: int, on_bytes: OnBytes) -> Found:
    with file.path.open("rb") as stream:
        number, byte = 0, 0
        lines = _Lines(source.max_file_bytes)
        try:
            for block in byte_blocks(stream, file.compression, on_bytes):
                for number, byte, line in lines.feed(block):
                    if number >= begin and (line is None or not line.isspace()):
                        yield _parse_line(number, byte, line, source)
        except DamagedStream as error:
            yield BadRecord(lines.number, lines.byte, str(error), excerpt_of(lines.unfinished))
            return
        for number, byte, line in lines.end():
            if number >= begin and (line is None or not line.isspace()):
                yield _parse_line(number, byte, line, source)


class _Lines:
    """Splits blocks at line feeds; holds at most one unfinished line of `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._held = 0
        self._too_long = False
        self.number = 0
        self.byte = 0

    @property
    def unfinished(self) -> bytes:
        return b"".join(self._pieces)

    def feed(self, block: bytes) -> Iterator[tuple[int, int, bytes | None]]:
        """(number, first byte, line) of every line that ends in `block`; None for a line longer than the limit."""
        first, *rest = block.split(b"\n")
        self._hold(first)
        for piece in rest:
            yield self._take(1)
            self._hold(piece)

    def end(self) -> Iterator[tuple[int, int, bytes | None]]:
        """The last line, where the file does not end in a line feed."""
        if self._held:
            yield self._take(0)

    def _hold(self, piece: bytes) -> None:
        self._held += len(piece)
        if self._held > self._limit:
            self._too_long = True
            self._pieces.clear()
        elif piece:
            self._pieces.append(piece)

    def _take(self, separator: int) -> tuple[int, int, bytes | None]:
        line = (self.number, self.byte, None if self._too_long else b"".join(self._pieces) or b"\n")
        self.number += 1
        self.byte += self._held + separator
        self._pieces, self._held, self._too_long = [], 0, False
        return line


def _parse_line(number: int, byte: int, line: bytes | None, source: Source) -> Record | BadRecord:
    if line is None:
        return BadRecord(number, byte, f"line longer than max_file_bytes ({source.max_file_bytes})")
    decoded = decode_text(number, byte, line)
    if isinstance(decoded, BadRecord):
        return decoded
    try:
        fields = json.loads(decoded.text)
    except (ValueError, RecursionError) as error:
        position = decoded.byte + len(decoded.text[: getattr(error, "pos", 0)].encode())
        return BadRecord(number, position, f"broken JSON: {error}", excerpt_of(line))
    if not isinstance(fields, dict):
        return BadRecord(number, byte, f"not a JSON object but {type(fields).__name__}", excerpt_of(line))
    return _record_of_fields(number, byte, fields, source, line)


def _record_of_fields(number: int, byte: int, fields: dict, source: Source, line: bytes) -> Record | BadRecord:
    if source.text_field not in fields:
        return BadRecord(number, byte, f"no field `{source.text_field}`", excerpt_of(line))
    text = fields[source.text_field]
    if not isinstance(text, str):
        reason = f"field `{source.text_field}` holds {type(text).__name__}, not text"
        return BadRecord(number, byte, reason, excerpt_of(line))
    if not text.strip():
        return BadRecord(number, byte, "empty text", excerpt_of(line))
    if not _is_encodable(text):
        return BadRecord(number, byte, "text holds half of a surrogate pair, which is no character", excerpt_of(line))
    if source.id_field is None:
        return Record(number, byte, text)
    key = fields.get(source.id_field)
    if isinstance(key, bool) or not isinstance(key, str | int) or key == "":
        return BadRecord(number, byte, f"no id in field `{source.id_field}`", excerpt_of(line))
    return Record(number, byte, text, str(key))


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _parquet_rows(file: InputFile, source: Source, begin: int, on_bytes: OnBytes) -> Found:
    number = begin
    try:
        with pq.ParquetFile(file.path) as parquet:
            columns = [source.text_field] if source.id_field is None else [source.text_field, source.id_field]
            missing = [column for column in columns if column not in parquet.schema_arrow.names]
            if missing:
                found = ", ".join(parquet.schema_arrow.names[:20])
                yield BadRecord(0, 0, f"no column `{missing[0]}`", f"columns: {found}")
                return
            kind = parquet.schema_arrow.field(source.text_field).type
            if not _holds_text(kind):
                yield BadRecord(0, 0, f"column `{source.text_field}` holds {kind}, not text")
                return
            row = 0
            for batch in parquet.iter_batches(_ROWS_PER_BATCH, columns=columns, use_threads=False):
                if row + batch.num_rows > begin:
                    for found in _rows_of_batch(batch, row, source):
                        if found.number >= begin:
                            number = found.number + 1
                            yield found
                row += batch.num_rows
        on_bytes(file.size)
    except pa.ArrowException as error:
        yield BadRecord(number, 0, f"torn parquet file: {str(error).splitlines()[0]}")


def _holds_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(
        holds(kind)
        for holds in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
        )
    )


def _rows_of_batch(batch: pa.RecordBatch, first: int, source: Source) -> Found:
    # As bytes, since parquet does not check that its strings are UTF-8.
    texts = _plain(batch.column(source.text_field)).cast(pa.large_binary())
    keys = None if source.id_field is None else _plain(batch.column(source.id_field))
    for offset in range(batch.num_rows):
        number = first + offset
        raw = texts[offset].as_py()
        if raw is None:
            yield BadRecord(number, 0, f"column `{source.text_field}` is null")
        elif len(raw) > source.max_file_bytes:
            yield BadRecord(number, 0, f"larger than max_file_bytes ({source.max_file_bytes})", excerpt_of(raw))
        else:
            yield _with_key(decode_text(number, 0, raw), keys, offset, source, raw)


def _with_key(
    found: Record | BadRecord, keys: pa.Array | None, offset: int, source: Source, raw: bytes
) -> Record | BadRecord:
    if keys is None or isinstance(found, BadRecord):
        return found
    try:
        key = keys[offset].as_py()
    except UnicodeDecodeError:
        key = None
    if isinstance(key, bytes):
        key = key.hex()
    if key is None or key == "":
        return BadRecord(found.number, 0, f"no id in column `{source.id_field}`", excerpt_of(raw))
    return Record(found.number, 0, found.text, str(key))


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
