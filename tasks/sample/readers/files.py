"""Read the records of a file in bounded memory; damaged ones become BadRecords and reading continues.

jsonl, csv, parquet, arrow, WARC and MediaWiki files have many records, files of every other format are one document. A
reader can begin at a later record, so that an interrupted build resumes.
"""

from collections.abc import Iterator
from dataclasses import replace

from model.file_content import ContentStream
from tasks.sample.config import Source
from tasks.sample.discovery import InputFile, is_fault_of_machine, why_unreadable
from tasks.sample.readers.byte_stream import (
    BLOCK_BYTES,
    Gap,
    Line,
    LostLine,
    ReadingLimit,
    blocks_and_gaps,
    lines_of,
    until_enough,
    within_limits,
)
from tasks.sample.readers.conversations import thread_records
from tasks.sample.readers.csv_reader import csv_records
from tasks.sample.readers.encodings import (
    AUTO,
    NO_SIGNS_OF_UTF8,
    SAMPLE_BYTES,
    decode_file,
    decode_page,
    encoding_of,
    is_wide,
    sampled,
    utf8_blocks,
    utf8_lines,
)
from tasks.sample.readers.jsonl_reader import json_records
from tasks.sample.readers.mediawiki_reader import mediawiki_records
from tasks.sample.readers.parquet_reader import arrow_records, parquet_records
from tasks.sample.readers.records import BadRecord, Found, OnBytes, Record, decode_text, excerpt_of
from tasks.sample.readers.warc_reader import warc_records
from tasks.sample.rejects import EMPTY_FILE, NO_FILE


def read_records(
    file: InputFile, source: Source, begin: int, on_bytes: OnBytes, limit: ReadingLimit | None = None
) -> Iterator[Found]:
    """Yield the records of `file` from place `begin` on; `on_bytes` gets the stored bytes as they are consumed.

    A file that cannot be opened, or is truncated, ends in one BadRecord. Raises OSError for faults of the machine (a
    failing disk, a file that vanished while the stage ran), ChangedInput for a file that changed since it was digested,
    EnoughRead where the file has more than `limit` allows.
    """
    place = begin
    try:
        for found in _records(file, source, begin, on_bytes, limit or ReadingLimit()):
            if found.place >= begin:
                place = found.place + 1
                yield found
    except OSError as error:
        vanished = isinstance(error, FileNotFoundError) and file.size >= 0
        if vanished or is_fault_of_machine(error):
            raise
        yield BadRecord(place, 0, why_unreadable(error))


def _records(file: InputFile, source: Source, begin: int, on_bytes: OnBytes, limit: ReadingLimit) -> Iterator[Found]:
    if file.unreadable:
        yield BadRecord(0, 0, file.unreadable)
    elif file.size == 0:
        yield BadRecord(0, 0, f"{NO_FILE}{file.no_file}" if file.no_file else EMPTY_FILE)
    elif file.format in ("parquet", "arrow"):
        reader = parquet_records if file.format == "parquet" else arrow_records
        with file.open_seekable() as stream:
            for found in reader(stream, file.size, source, begin, on_bytes, limit):
                if isinstance(stream, ContentStream):
                    # The library takes a refused read for damage of the file.
                    stream.check()
                yield found
    else:
        stored = 0

        def count_bytes(count: int) -> None:
            nonlocal stored
            stored += count
            on_bytes(count)

        with file.open() as stream:
            blocks = blocks_and_gaps(stream, file.compression, count_bytes, max(1, int(min(BLOCK_BYTES, limit.left))))
            if file.compression is not None:
                blocks = within_limits(blocks, source, lambda: stored)
            yield from _streamed(file, limit.first_of(blocks), source, begin)


def _streamed(file: InputFile, blocks: Iterator[bytes | Gap], source: Source, begin: int) -> Iterator[Found]:
    if file.format in ("jsonl", "csv"):
        sample, blocks = sampled(blocks)
        encoding = encoding_of(sample, source.encoding)
        wide = encoding is not None and is_wide(encoding)
        lines = lines_of(utf8_blocks(blocks, encoding) if encoding and wide else blocks, source.max_file_bytes)
        if encoding is not None and not wide:
            lines = utf8_lines(lines, encoding)
        for found in _records_of_lines(file, lines, source, begin):
            yield replace(found, encoding=encoding) if encoding and isinstance(found, Record) else found
    elif file.format == "warc":
        yield from warc_records(blocks, source)
    elif file.format == "mediawiki":
        yield from mediawiki_records(blocks, source)
    elif begin == 0:
        yield _whole_file(file, blocks, source)


def _records_of_lines(file: InputFile, lines: Iterator[Line | LostLine], source: Source, begin: int) -> Iterator[Found]:
    if file.format == "csv":
        yield from csv_records(lines, source, begin, "\t" if ".tsv" in file.path.name.lower() else ",")
    elif source.thread is None:
        yield from json_records(lines, source, begin)
    else:
        yield from thread_records(until_enough(lines), source, source.thread, file.size)


def _whole_file(file: InputFile, blocks: Iterator[bytes | Gap], source: Source) -> Record | BadRecord:
    limit = source.max_file_bytes
    is_too_large = file.compression is None and file.size > limit
    raw = bytearray()
    for block in blocks:
        if isinstance(block, Gap):
            return BadRecord(0, len(raw), block.reason, excerpt_of(bytes(raw[-200:])))
        raw += block
        if is_too_large or len(raw) > limit:
            return BadRecord(0, 0, f"larger than max_file_bytes ({limit})", excerpt_of(bytes(raw[:400])))
    if file.format == "html":
        return decode_page(0, bytes(raw), None if source.encoding == AUTO else source.encoding)
    found = decode_text(0, 0, bytes(raw))
    is_utf8 = isinstance(found, Record) or not found.reason.startswith("invalid UTF-8")
    sample = bytes(raw[:SAMPLE_BYTES])
    if is_utf8 and source.encoding == AUTO and not any(sign in sample for sign in NO_SIGNS_OF_UTF8):
        return found
    encoding = encoding_of(sample, source.encoding)
    if encoding is None:
        return found
    found = decode_file(bytes(raw), encoding)
    return replace(found, encoding=encoding) if isinstance(found, Record) else found
