"""The stage itself: one pass over all files in order, writing parts of a stated size.

The reader is sequential, so the parts depend on the input and the configuration alone. Each finished part remembers
where its last document ended; a killed build reads on from there.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import blake3
import pyarrow as pa
import pyarrow.ipc

from model.errors import GuardError
from tasks.ledger import LedgerRows, clip_bytes
from tasks.parts import unit_name
from tasks.report import SourceCounts, StageReport
from tasks.sample.config import SampleConfig, Source
from tasks.sample.discovery import InputFile, SourceFiles
from tasks.sample.document_id import document_id
from tasks.sample.mixture import SourcePlan, plan_as_json, plan_mixture
from tasks.sample.readers import read_records
from tasks.sample.records import BadRecord, Record
from tasks.schema import DOCUMENTS, REJECTS
from tasks.seed import seed64, unit_interval
from tasks.workspace import Workspace, table_file_name

CURSOR = "cursor"
REJECTS_PER_PART = 65536
_RECORDS_PER_REPORT = 1024


def sample_documents(listings: list[SourceFiles], config: SampleConfig, workspace: Workspace) -> StageReport:
    """Read every file of `listings`, write DOCUMENTS, REJECTS and an empty LEDGER part by part.

    Facts: `mixture_plan` and `files` by source. Raises GuardError when more than `max_reject_share` of all records, or
    all records of a source, could not be read.
    """
    plans = plan_mixture(config, listings)
    reports = _finished_parts(workspace)
    cursor = _Cursor.from_json(reports[-1].facts[CURSOR]) if reports else _Cursor(0, 0)
    files = [(listing.source, file) for listing in listings for file in listing.files]
    if cursor.file < len(files):
        reader = _Reader(files, plans, config, workspace)
        reader.remember(workspace, len(reports))
        for number, part in enumerate(reader.parts(cursor), start=len(reports)):
            reports.append(_write_part(workspace, number, part))
    report = StageReport.merged(reports)
    for listing in listings:
        report.source(listing.source.name)
    _check_rejects(report, config, workspace, len(reports))
    report.facts = {
        "mixture_plan": plan_as_json(plans),
        "files": {
            listing.source.name: {"read": len(listing.files), **dict(sorted(listing.passed_over.items()))}
            for listing in listings
        },
    }
    return report


@dataclass(frozen=True)
class _Cursor:
    """Where reading goes on: index of the file among all files, and record number within it."""

    file: int
    record: int

    @staticmethod
    def from_json(data: dict[str, int]) -> "_Cursor":
        return _Cursor(data["file"], data["record"])


@dataclass
class _Part:
    """Rows collected for one part."""

    documents: list[dict[str, Any]] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    text_bytes: int = 0
    report: StageReport = field(default_factory=StageReport)

    def close(self, cursor: _Cursor) -> "_Part":
        self.report.facts[CURSOR] = {"file": cursor.file, "record": cursor.record}
        return self


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
        self._seen: set[bytes] = set()

    def remember(self, workspace: Workspace, parts: int) -> None:
        """Take the ids of finished parts into the search for double ids, as if this process had read them."""
        if any(source.id_field for source, _ in self._files):
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
                else:
                    size = len(found.text.encode())
                    if part.documents and part.text_bytes + size > self._config.part_bytes:
                        yield part.close(_Cursor(index, found.number))
                        part = _Part()
                        counts = part.report.source(source.name)
                    self._take(part, counts, source, file, found, size, seed)
                if len(part.rejects) >= REJECTS_PER_PART:
                    yield part.close(_Cursor(index, found.number + 1))
                    part = _Part()
                if count % _RECORDS_PER_REPORT == 0:
                    self._workspace.advance(min(self._total_bytes, done + consumed[0]), self._total_bytes, "bytes")
            done += max(0, file.size)
            self._workspace.advance(done, self._total_bytes, "bytes")
        yield part.close(_Cursor(len(self._files), 0))

    def _take(
        self, part: _Part, counts: SourceCounts, source: Source, file: InputFile, record: Record, size: int, seed: int
    ) -> None:
        doc_id = document_id(source.name, file.relative, record.number, record.key)
        if record.key is not None and doc_id in self._seen:
            # Only an id field can repeat; paths and record numbers cannot.
            excerpt = clip_bytes(record.text)
            double = BadRecord(record.number, record.byte, f"id {record.key!r} was seen before", excerpt)
            _reject(part, counts, file, double)
            return
        counts.documents_in += 1
        counts.bytes_in += size
        if unit_interval(doc_id, seed) >= self._plans[source.name].rate:
            counts.not_selected += 1
            return
        if record.key is not None:
            self._seen.add(doc_id)
        counts.documents_out += 1
        counts.bytes_out += size
        part.text_bytes += size
        part.documents.append(_document(doc_id, source, file, record))


def _adder(consumed: list[int]) -> Any:
    def add(count: int) -> None:
        consumed[0] += count

    return add


def _reject(part: _Part, counts: SourceCounts, file: InputFile, bad: BadRecord) -> None:
    counts.documents_in += 1
    counts.rejected += 1
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


_META = {kind: f'{{"format":"{kind}"}}' if kind != "text" else None for kind in ("text", "markdown", "html", "code")}


def _document(doc_id: bytes, source: Source, file: InputFile, record: Record) -> dict[str, Any]:
    kind = source.content if file.format in ("jsonl", "parquet") else file.format
    return {
        "doc_id": doc_id,
        "piece": 0,
        "source": source.name,
        "lang": source.language,
        "text": record.text,
        "text_digest": blake3.blake3(record.text.encode()).digest(length=16),
        "origin": {"path": file.relative, "record": record.number, "byte": record.byte},
        "meta": _META[kind],
    }


def _finished_parts(workspace: Workspace) -> list[StageReport]:
    reports: list[StageReport] = []
    while (report := workspace.finished(unit_name(len(reports)))) is not None:
        reports.append(report)
    return reports


def _write_part(workspace: Workspace, number: int, part: _Part) -> StageReport:
    name = unit_name(number)
    tables = {
        "documents": pa.Table.from_pylist(part.documents, schema=DOCUMENTS),
        "rejects": pa.Table.from_pylist(part.rejects, schema=REJECTS),
        "ledger": LedgerRows("sample").table(),
    }
    with workspace.unit(name) as unit:
        for table, rows in tables.items():
            unit.write_table(table, rows, table_file_name(table, name))
        unit.report = part.report
    return part.report


def _column(path: Path, column: str) -> list[Any]:
    with pa.memory_map(str(path)) as source:
        schema = pa.ipc.open_file(source).schema
        options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(column)])
        return pa.ipc.open_file(source, options=options).read_all().column(column).to_pylist()


def _check_rejects(report: StageReport, config: SampleConfig, workspace: Workspace, parts: int) -> None:
    total = report.total()
    share = total.rejected / max(1, total.documents_in)
    unreadable = [
        name
        for name, counts in sorted(report.sources.items())
        if counts.rejected and counts.rejected == counts.documents_in
    ]
    if share <= config.max_reject_share and not unreadable:
        return
    by_file: Counter[tuple[str, str]] = Counter()
    reasons: dict[tuple[str, str], str] = {}
    for number in range(parts):
        path = workspace.file(table_file_name("rejects", unit_name(number)))
        columns = zip(_column(path, "source"), _column(path, "path"), _column(path, "reason"), strict=True)
        for source, relative, reason in columns:
            by_file[source, relative] += 1
            reasons.setdefault((source, relative), reason)
    suspects = {key: count for key, count in by_file.items() if not unreadable or key[0] in unreadable}
    worst = max(sorted(suspects), key=lambda key: suspects[key])
    what = (
        f"no record of source `{unreadable[0]}` could be read"
        if unreadable
        else f"{total.rejected} of {total.documents_in} records ({share:.1%}) were rejected, and"
        f" [sample] max_reject_share allows {config.max_reject_share:.1%}"
    )
    raise GuardError(
        f"sample: {what}. The worst file is `{worst[1]}` of source `{worst[0]}` with {suspects[worst]} rejects; its"
        f" first: {reasons[worst]}. Repair or exclude the file, or correct format, text_field and id_field of the"
        f" source; if the loss is meant, raise max_reject_share."
    )
