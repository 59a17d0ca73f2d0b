"""Read a group of files and write parts of a configured size.

Parts depend on the group and the configuration alone. Each finished part records where its first document began and its
last one ended, and a killed build resumes from there.
"""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tasks.artifacts.report import SourceCounts, StageReport
from tasks.artifacts.tables.files import read_table, table_file_name, write_table
from tasks.artifacts.tables.ledger import LedgerRows, clip_bytes
from tasks.artifacts.tables.map_parts import unit_name
from tasks.artifacts.tables.schema import REJECTS
from tasks.artifacts.workspace import Workspace
from tasks.common.numeric import seed64, unit_interval
from tasks.sample.config import SampleConfig, Source
from tasks.sample.discovery import InputFile
from tasks.sample.document_columns import DocumentColumns, document_id
from tasks.sample.groups import Group
from tasks.sample.readers.files import read_records
from tasks.sample.readers.records import BadRecord, OnBytes, Record, Skipped, excerpt_of
from tasks.sample.rejects import UNREADABLE, is_record
from tasks.sample.seen_ids import SeenIds, id_array

BEGIN, END = "begin", "end"
"""Facts of a part: [file in the group, place in it]."""

READ_AGAIN = "read_again"
"""Fact of a part: whether it was written without ids that earlier groups hold."""

PARTS = "parts"
"""Fact of a group: the number of its parts."""

SKIPPED_RECORDS = "records_passed_over"
DECODED = "decoded_records"
"""Fact: `SOURCE: ENCODING` -> number of documents whose file was not UTF-8; the `meta` of each names the encoding."""

REJECTS_PER_PART = 65536

_RECORDS_PER_REPORT = 1024


def read_group(
    workspace: Workspace,
    config: SampleConfig,
    rates: Mapping[str, float],
    on_bytes: OnBytes,
    index: int,
    group: Group,
    taken: frozenset[bytes],
) -> StageReport:
    """Read the files of group `index`, write its parts as units, and return the report of all of them.

    `rates` are the shares of each source's documents to keep, and `taken` are ids that earlier groups hold; records
    with these ids are rejected. `on_bytes` gets the stored bytes that were read so far.
    """
    report, seen, begin, number = StageReport(), SeenIds(), (0, 0), 0
    # A part that was written before others were read again may begin elsewhere. One of a second reading lacks ids that
    # the first has to find: a build that was killed between them reads the group twice again.
    while (
        (done := workspace.finished(part_name(index, number))) is not None
        and done.facts[BEGIN] == list(begin)
        and done.facts[READ_AGAIN] == bool(taken)
    ):
        report.merge(done)
        if group.has_ids:
            seen.extend(id_array(part_column(workspace, "documents", index, number, "doc_id")))
        begin, number = tuple(done.facts[END]), number + 1
    if begin < (len(group.files), 0):
        reader = _Reader(group, config, rates, taken, seen, on_bytes)
        for part in reader.parts(begin):
            part.report.facts[READ_AGAIN] = bool(taken)
            report.merge(_write_part(workspace, index, number, part))
            number += 1
    report.facts[PARTS] = number
    return report


def part_name(group: int, number: int) -> str:
    """Return the name of a group's part; names sort in the order of documents."""
    return f"{unit_name(group)}-{unit_name(number)}"


def part_column(workspace: Workspace, table: str, group: int, number: int, column: str) -> list[Any]:
    """Return a column of a table of a finished part."""
    path = workspace.file(table_file_name(table, part_name(group, number)))
    return read_table(path, [column]).column(column).to_pylist()


@dataclass
class _Part:
    begin: tuple[int, int]
    documents: DocumentColumns = field(default_factory=DocumentColumns)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    text_bytes: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)
    decoded: Counter[str] = field(default_factory=Counter)
    report: StageReport = field(default_factory=StageReport)

    def close(self, end: tuple[int, int]) -> "_Part":
        self.report.facts = {
            BEGIN: list(self.begin),
            END: list(end),
            SKIPPED_RECORDS: dict(sorted(self.skipped.items())),
            UNREADABLE: dict(sorted(self.unreadable.items())),
            DECODED: dict(sorted(self.decoded.items())),
        }
        return self


@dataclass
class _Reader:
    group: Group
    config: SampleConfig
    rates: Mapping[str, float]
    taken: frozenset[bytes]
    seen: SeenIds
    on_bytes: OnBytes

    @functools.cached_property
    def _excluded(self) -> frozenset[bytes]:
        return frozenset(bytes.fromhex(doc_id) for doc_id in self.config.exclude_documents)

    def parts(self, begin: tuple[int, int]) -> Iterator[_Part]:
        part = _Part(begin)
        first, place = begin
        consumed = 0

        def count_bytes(count: int) -> None:
            nonlocal consumed
            consumed += count

        done = sum(max(0, file.size) for _, file in self.group.files[:first])
        for index, (source, file) in enumerate(self.group.files[first:], start=first):
            seed = seed64(self.config.seed, "sample", "select", source.name)
            consumed = 0
            for count, found in enumerate(read_records(file, source, place, count_bytes)):
                text = found.text.encode() if isinstance(found, Record) else b""
                is_full = text and part.documents.texts and part.text_bytes + len(text) > self.config.part_bytes
                if is_full or len(part.rejects) >= REJECTS_PER_PART:
                    yield part.close((index, found.place))
                    part = _Part((index, found.place))
                counts = part.report.source(source.name)
                if isinstance(found, BadRecord):
                    _reject(part, counts, file, found)
                elif isinstance(found, Skipped):
                    part.skipped[f"{source.name}: {found.what}"] += found.count
                else:
                    self._process(part, counts, source, file, found, text, seed)
                if count % _RECORDS_PER_REPORT == 0:
                    self.on_bytes(done + min(consumed, max(0, file.size)))
            place = 0
            done += max(0, file.size)
            self.on_bytes(done)
        yield part.close((len(self.group.files), 0))

    def _process(
        self,
        part: _Part,
        counts: SourceCounts,
        source: Source,
        file: InputFile,
        record: Record,
        text: bytes,
        seed: int,
    ) -> None:
        doc_id = document_id(source.name, file.relative, record.number, record.key)
        if record.key is not None and (doc_id in self.seen or doc_id in self.taken):
            # Only ids from an id field can repeat.
            reason = f"id {record.key!r} was seen before"
            _reject(part, counts, file, BadRecord(record.number, record.byte, reason, excerpt_of(record.text)))
            return
        counts.documents_in += 1
        counts.bytes_in += len(text)
        if doc_id in self._excluded or unit_interval(doc_id, seed) >= self.rates[source.name]:
            counts.not_selected += 1
            return
        if record.key is not None:
            self.seen.add(doc_id)
        counts.documents_out += 1
        counts.bytes_out += len(text)
        part.text_bytes += len(text)
        if record.encoding is not None:
            part.decoded[f"{source.name}: {record.encoding}"] += 1
        part.documents.add(doc_id, source, file, record, text)


def _reject(part: _Part, counts: SourceCounts, file: InputFile, bad: BadRecord) -> None:
    counts.documents_in += 1
    counts.rejected += 1
    if is_record(bad.reason):
        part.unreadable[file.source] += 1
    part.rejects.append(
        {
            "source": file.source,
            "path": file.relative,
            "record": bad.number,
            "byte": bad.byte,
            "reason": clip_bytes(bad.reason),
            "excerpt": clip_bytes(bad.excerpt),
        }
    )


def _write_part(workspace: Workspace, group: int, number: int, part: _Part) -> StageReport:
    name = part_name(group, number)
    tables = {
        "documents": part.documents.table(),
        "rejects": pa.Table.from_pylist(part.rejects, schema=REJECTS),
        "ledger": LedgerRows("sample").table(),
    }
    with workspace.unit(name) as unit:
        for table, rows in tables.items():
            write_table(unit, table, rows, table_file_name(table, name))
        unit.report = part.report
    return part.report
