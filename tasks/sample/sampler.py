"""Sample documents: one sequential pass over all files, which writes parts of a configured size.

Parts depend on the input and the configuration alone. Each finished part records where its last document ended, and a
killed build resumes from there. The id of a document never changes: BLAKE3-128 of its source and its identifier there.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.artifacts.ledger import LedgerRows, clip_bytes
from tasks.artifacts.map_parts import unit_name
from tasks.artifacts.report import SourceCounts, StageReport
from tasks.artifacts.schema import DOC_ID_BYTES, DOCUMENTS, REJECTS
from tasks.artifacts.tables import table_file_name, write_table
from tasks.artifacts.workspace import Workspace
from tasks.common.numeric import seed64, unit_interval
from tasks.sample.config import SampleConfig, Source
from tasks.sample.discovery import InputFile, SourceFiles
from tasks.sample.mixture import SourcePlan, mixture_remarks, plan_as_json, plan_mixture
from tasks.sample.readers import read_records
from tasks.sample.records import BadRecord, Record, Skipped, excerpt_of
from tasks.sample.rejects import REJECTED, SOURCES_READ, UNREADABLE, RejectedFiles, is_record

CURSOR = "cursor"

SKIPPED_RECORDS = "records_passed_over"
DECODED = "decoded_records"
"""Fact: `SOURCE: ENCODING` -> number of documents whose file was not UTF-8; the `meta` of each names the encoding."""

REJECTS_PER_PART = 65536

_RECORDS_PER_REPORT = 1024

IDS_IN_A_RUN = 1 << 16

_KIND = f"S{DOC_ID_BYTES}"

_ONE_DOCUMENT_A_FILE = frozenset({"text", "markdown", "wikitext", "html", "code"})

_META = {kind: f'{{"format":"{kind}"}}' if kind != "text" else None for kind in _ONE_DOCUMENT_A_FILE}


def sample_documents(
    listings: list[SourceFiles], config: SampleConfig, workspace: Workspace, kept_sizes: Mapping[str, int] | None = None
) -> StageReport:
    """Read every file of `listings` and write DOCUMENTS, REJECTS and an empty LEDGER part by part.

    `kept_sizes` are the bytes of text of sources that an earlier run measured.

    Facts: `mixture_plan` and `files` by source, `mixture_remarks` (sentences), `records_passed_over` by source and
    kind, `unreadable_records` by source, `decoded_records` by source and encoding, `rejected_files` by source: path,
    number of rejects and first reason of some.
    """
    plans = plan_mixture(config, listings, kept_sizes)
    files = [(listing.source, file) for listing in listings for file in listing.files]
    progress = _Progress(listings, workspace)
    finished = _finished_parts(workspace)
    for number, done in enumerate(finished):
        progress.add(done, _rejects_of(workspace, number))
    if progress.cursor.file < len(files):
        reader = _Reader(files, plans, config, workspace)
        reader.add_finished(workspace, len(finished))
        for number, part in enumerate(reader.parts(progress.cursor), start=len(finished)):
            rejects = [(row["source"], row["path"], row["reason"]) for row in part.rejects]
            progress.add(_write_part(workspace, number, part), rejects)
    report = progress.report
    for listing in listings:
        report.source(listing.source.name)
    report.facts = {
        "mixture_plan": plan_as_json(plans),
        "mixture_remarks": mixture_remarks(config, plans),
        SKIPPED_RECORDS: report.facts.get(SKIPPED_RECORDS, {}),
        UNREADABLE: report.facts.get(UNREADABLE, {}),
        DECODED: report.facts.get(DECODED, {}),
        REJECTED: progress.rejected.named(),
        "files": {
            listing.source.name: {"read": len(listing.files), **dict(sorted(listing.skipped.items()))}
            for listing in listings
        },
    }
    return report


@dataclass(frozen=True)
class _Cursor:
    """Where reading resumes: index of the file among all files, and position in it."""

    file: int
    record: int

    @staticmethod
    def from_json(data: dict[str, int]) -> "_Cursor":
        return _Cursor(data["file"], data["record"])


@dataclass
class DocumentColumns:
    """Columns of the documents of one part."""

    doc_ids: list[bytes] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    languages: list[str | None] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    first_bytes: list[int] = field(default_factory=list)
    metas: list[str | None] = field(default_factory=list)

    def add(self, doc_id: bytes, source: Source, file: InputFile, record: Record, text: bytes) -> None:
        self.doc_ids.append(doc_id)
        self.sources.append(source.name)
        self.languages.append(source.language)
        self.texts.append(text)
        self.digests.append(blake3.blake3(text).digest(length=16))
        self.paths.append(file.relative)
        self.records.append(record.number)
        self.first_bytes.append(record.byte)
        self.metas.append(_meta(source, file, record))

    def table(self) -> pa.Table:
        """Return the rows in the DOCUMENTS schema."""
        origin = pa.StructArray.from_arrays(
            [
                pa.array(self.paths, pa.string()),
                pa.array(self.records, pa.int64()),
                pa.array(self.first_bytes, pa.int64()),
            ],
            fields=list(DOCUMENTS.field("origin").type),
        )
        columns = [
            pa.array(self.doc_ids, pa.binary(DOC_ID_BYTES)),
            pa.array([0] * len(self.doc_ids), pa.int16()),
            pa.array(self.sources, pa.string()).dictionary_encode(),
            pa.array(self.languages, pa.string()).dictionary_encode(),
            pa.array(self.texts, pa.large_binary()).cast(pa.large_string()),
            pa.array(self.digests, pa.binary(16)),
            origin,
            pa.array(self.metas, pa.string()),
            pa.nulls(len(self.doc_ids), DOCUMENTS.field("text_kind").type),
        ]
        return pa.Table.from_arrays(columns, schema=DOCUMENTS)


@dataclass
class _Part:
    """The rows of one part."""

    documents: DocumentColumns = field(default_factory=DocumentColumns)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    text_bytes: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)
    decoded: Counter[str] = field(default_factory=Counter)
    report: StageReport = field(default_factory=StageReport)

    def close(self, cursor: _Cursor) -> "_Part":
        self.report.facts[CURSOR] = {"file": cursor.file, "record": cursor.record}
        self.report.facts[SKIPPED_RECORDS] = dict(sorted(self.skipped.items()))
        self.report.facts[UNREADABLE] = dict(sorted(self.unreadable.items()))
        self.report.facts[DECODED] = dict(sorted(self.decoded.items()))
        return self


class _Progress:
    """The state after the parts so far: their report, their rejects, and the sources that were read to their end."""

    def __init__(self, listings: list[SourceFiles], workspace: Workspace) -> None:
        self.report = StageReport()
        self.rejected = RejectedFiles()
        self.cursor = _Cursor(0, 0)
        self._workspace = workspace
        ends = itertools.accumulate(len(listing.files) for listing in listings)
        self._ends = {listing.source.name: end for listing, end in zip(listings, ends, strict=True)}
        self._read: list[str] = []

    def add(self, part: StageReport, rejects: Iterable[tuple[str, str, str]]) -> None:
        """Add the next part. Raises GuardError if a source that was read to its end exceeds a limit."""
        self.report.merge(part)
        self.rejected.add(rejects)
        self.cursor = _Cursor.from_json(part.facts[CURSOR])
        read = [name for name, end in self._ends.items() if end <= self.cursor.file]
        if read != self._read:
            self._read = read
            self.report.facts |= {SOURCES_READ: read, REJECTED: self.rejected.named()}
            self._workspace.check_so_far(self.report)


class _Reader:
    def __init__(
        self,
        files: list[tuple[Source, InputFile]],
        plans: dict[str, SourcePlan],
        config: SampleConfig,
        workspace: Workspace,
    ) -> None:
        self._files = files
        self._plans = plans
        self._config = config
        self._workspace = workspace
        self._total_bytes = sum(max(0, file.size) for _, file in files)
        self._seen = SeenIds()

    def add_finished(self, workspace: Workspace, parts: int) -> None:
        """Add the ids of finished parts to the search for duplicates, as if this process had read them."""
        if any(source.id_field or source.thread for source, _ in self._files):
            for number in range(parts):
                self._seen.update(_column(workspace.file(table_file_name("documents", unit_name(number))), "doc_id"))

    def parts(self, cursor: _Cursor) -> Iterator[_Part]:
        part = _Part()
        done = sum(max(0, file.size) for _, file in self._files[: cursor.file])
        for index in range(cursor.file, len(self._files)):
            source, file = self._files[index]
            begin = cursor.record if index == cursor.file else 0
            seed = seed64(self._config.seed, "sample", "select", source.name)
            consumed = [0]
            for count, found in enumerate(read_records(file, source, begin, _adder(consumed))):
                counts = part.report.source(source.name)
                if isinstance(found, BadRecord):
                    _reject(part, counts, file, found)
                elif isinstance(found, Skipped):
                    part.skipped[f"{source.name}: {found.what}"] += found.count
                else:
                    text = found.text.encode()
                    if part.documents.texts and part.text_bytes + len(text) > self._config.part_bytes:
                        yield part.close(_Cursor(index, found.place))
                        part = _Part()
                        counts = part.report.source(source.name)
                    self._process(part, counts, source, file, found, text, seed)
                if len(part.rejects) >= REJECTS_PER_PART:
                    yield part.close(_Cursor(index, found.place + 1))
                    part = _Part()
                if count % _RECORDS_PER_REPORT == 0:
                    self._workspace.advance(min(self._total_bytes, done + consumed[0]), self._total_bytes, "bytes")
            done += max(0, file.size)
            self._workspace.advance(done, self._total_bytes, "bytes")
        yield part.close(_Cursor(len(self._files), 0))

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
        if record.key is not None and doc_id in self._seen:
            # Only ids from an id field can repeat.
            reason = f"id {record.key!r} was seen before"
            _reject(part, counts, file, BadRecord(record.number, record.byte, reason, excerpt_of(record.text)))
            return
        counts.documents_in += 1
        counts.bytes_in += len(text)
        if unit_interval(doc_id, seed) >= self._plans[source.name].rate:
            counts.not_selected += 1
            return
        if record.key is not None:
            self._seen.add(doc_id)
        counts.documents_out += 1
        counts.bytes_out += len(text)
        part.text_bytes += len(text)
        if record.encoding is not None:
            part.decoded[f"{source.name}: {record.encoding}"] += 1
        part.documents.add(doc_id, source, file, record, text)


def _adder(consumed: list[int]) -> Any:
    def add(count: int) -> None:
        consumed[0] += count

    return add


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


def _meta(source: Source, file: InputFile, record: Record) -> str | None:
    kind = record.kind or (file.format if file.format in _ONE_DOCUMENT_A_FILE else source.content)
    if record.url is None and record.encoding is None:
        return _META[kind]
    facts = {} if kind == "text" else {"format": kind}
    if record.url is not None:
        facts["url"] = record.url
    if record.encoding is not None:
        facts["encoding"] = record.encoding
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":"))


def _finished_parts(workspace: Workspace) -> list[StageReport]:
    reports: list[StageReport] = []
    while (report := workspace.finished(unit_name(len(reports)))) is not None:
        reports.append(report)
    return reports


def _write_part(workspace: Workspace, number: int, part: _Part) -> StageReport:
    name = unit_name(number)
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


def _rejects_of(workspace: Workspace, number: int) -> Iterable[tuple[str, str, str]]:
    path = workspace.file(table_file_name("rejects", unit_name(number)))
    return zip(_column(path, "source"), _column(path, "path"), _column(path, "reason"), strict=True)


def _column(path: Path, column: str) -> list[Any]:
    with pa.memory_map(str(path)) as source:
        schema = pa.ipc.open_file(source).schema
        options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(column)])
        return pa.ipc.open_file(source, options=options).read_all().column(column).to_pylist()


def document_id(source: str, relative: str, record: int, key: str | None) -> bytes:
    """Return BLAKE3-128 of (source, key) if the source has an id field, else of (source, root-relative path, record).

    The parts are joined as JSON, so that different parts never give the same text.
    """
    parts = [source, "path", relative, record] if key is None else [source, "id", key]
    text = json.dumps(parts, ensure_ascii=True, separators=(",", ":"))
    return blake3.blake3(text.encode()).digest(length=DOC_ID_BYTES)


class SeenIds:
    """A growing set of document ids with 16 bytes an id.

    New ids are collected in a set; full sets become sorted runs, and runs of similar size are merged, so that there are
    never more than a few dozen.
    """

    def __init__(self) -> None:
        self._waiting: set[bytes] = set()
        self._runs: list[npt.NDArray[np.bytes_]] = []

    def __contains__(self, doc_id: bytes) -> bool:
        if doc_id in self._waiting:
            return True
        wanted = np.array(doc_id, _KIND)
        for run in self._runs:
            place = np.searchsorted(run, wanted)
            if place < len(run) and run[place] == wanted:
                return True
        return False

    def add(self, doc_id: bytes) -> None:
        """Add an id."""
        self._waiting.add(doc_id)
        if len(self._waiting) >= IDS_IN_A_RUN:
            self._flush()

    def update(self, doc_ids: Iterable[bytes]) -> None:
        """Add many ids."""
        for doc_id in doc_ids:
            self.add(doc_id)

    def _flush(self) -> None:
        # numpy drops zero bytes at the end as padding; ids have one length, so none become equal.
        self._runs.append(np.sort(np.array(list(self._waiting), _KIND)))
        self._waiting.clear()
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            self._runs[-2:] = [np.sort(np.concatenate(self._runs[-2:]), kind="stable")]
