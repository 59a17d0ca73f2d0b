"""Look up the example documents of the run page: removed documents, leaked passages, rejected records, and histories.

Documents are chosen by the smallest id, which is a hash, so the choice is uniform and reproducible. Part i of a stage
holds the documents of part i of its parent, so a text is looked up in one part, and only some parts are opened.
Excerpts are shown without personal data, because pages are shared.
"""

import heapq
import re
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from flows.metrics.formatting import describe_evidence
from flows.runs.document_history import describe_event, histories_of
from flows.runs.record import RUNNING, RunData, state_of
from flows.runs.run_documents import NamedDocument, documents_of, named, sample_parts
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.tables.files import read_table
from tasks.artifacts.tables.rows import DocumentRow, LeakRow, LedgerRow, RejectRow, rows_of
from tasks.clean.document import DocumentContext
from tasks.clean.presets import PERSONAL
from tasks.sample.formats import named_record

PARENT = {"clean": "sample", "dedup": "clean", "decontaminate": "dedup"}

EXAMPLES_PER_RULE = 10

LEAKS_PER_BENCHMARK = 4

EXCERPT_CHARS = 400

CONTEXT_CHARS = 160
"""Characters shown before and after a leaked passage."""

SHOWN_OPEN = 3
"""Documents of each kind that the page shows without a click."""

MAX_KEPT_LOOKED_AT = 32

SHOWN_ACTIONS = ("drop", "cut")

MAX_REJECTED = 20

NUMBER = re.compile(r"(?<![\w-])\d[\d,.]*")

MAX_DOCUMENT_BYTES = 4_000_000_000
"""Bytes of documents up to which documents are looked up: a lookup reads all tables, and may take seconds only."""


@dataclass(frozen=True)
class RemovedDocument:
    """A document that a rule of a stage dropped or cut."""

    stage: str
    rule: str
    value: float | None
    limit: float | None
    evidence: str
    doc_id: str
    path: str
    """With the record."""
    source: str
    excerpt: str


Removals = dict[tuple[str, str, str], list[RemovedDocument]]
"""By stage, action and rule."""


def removals(artifacts: dict[str, Artifact]) -> Removals:
    """Return some documents that each rule dropped or cut."""
    found: Removals = {}
    for stage, parent in PARENT.items():
        if stage not in artifacts or parent not in artifacts:
            continue
        chosen = _chosen_rows(artifacts[stage])
        ids = {row["doc_id"] for rows in chosen.values() for _, row in rows}
        parts = {part for rows in chosen.values() for part, _ in rows}
        documents = documents_of(artifacts[parent], ids, ["doc_id", "source", "origin", "text"], parts=parts)
        for (action, rule), rows in sorted(chosen.items()):
            found[stage, action, rule] = [
                _removed_document(stage, row, documents.get(row["doc_id"])) for _, row in rows
            ]
    return found


def _removed_document(stage: str, row: LedgerRow, document: DocumentRow | None) -> RemovedDocument:
    origin = document["origin"] if document else None
    return RemovedDocument(
        stage=stage,
        rule=row["rule"],
        value=row["value"],
        limit=row["limit"],
        evidence=describe_evidence(row["evidence"]),
        doc_id=row["doc_id"].hex(),
        path=f"{origin['path']}, {named_record(origin['path'], origin['record'])}" if origin else "",
        source=document["source"] if document else "",
        excerpt=clip(document["text"], EXCERPT_CHARS) if document else "",
    )


class KeptExample(NamedDocument):
    """A document that training reads."""

    excerpt: str


def kept_documents(artifacts: dict[str, Artifact]) -> list[KeptExample]:
    """Return some documents that training reads, of each source one, then others."""
    last = next((artifacts[stage] for stage in ("decontaminate", "dedup", "clean") if stage in artifacts), None)
    if last is None:
        return []
    found: dict[bytes, DocumentRow] = {}
    for _, path in sample_parts(last.files("documents")):
        table = read_table(path, ["doc_id", "source", "origin"])
        for row in table.take(pc.select_k_unstable(table, MAX_KEPT_LOOKED_AT, [("doc_id", "ascending")])).to_pylist():
            found[row["doc_id"]] = row
    ordered = sorted(found)
    firsts = {found[doc_id]["source"]: doc_id for doc_id in reversed(ordered)}
    chosen = list(dict.fromkeys([*sorted(firsts.values()), *ordered]))[:SHOWN_OPEN]
    texts = documents_of(last, chosen, ["doc_id", "text"])
    return [{**named(found[doc_id]), "excerpt": clip(texts[doc_id]["text"], EXCERPT_CHARS)} for doc_id in chosen]


def _chosen_rows(artifact: Artifact) -> dict[tuple[str, str], list[tuple[int, LedgerRow]]]:
    """Return, by action and rule, some rows of a ledger and the parts that they are in."""
    chosen: dict[tuple[str, str], dict[bytes, tuple[int, LedgerRow]]] = {}
    for part, path in sample_parts(artifact.files("ledger")):
        ledger = read_table(path)
        ledger = ledger.filter(pc.is_in(ledger.column("action"), value_set=pa.array(SHOWN_ACTIONS)))
        for row in ledger.to_pylist():
            rows = chosen.setdefault((row["action"], row["rule"]), {})
            rows.setdefault(row["doc_id"], (part, row))
            if len(rows) > 64 * EXAMPLES_PER_RULE:
                chosen[row["action"], row["rule"]] = {
                    key: rows[key] for key in heapq.nsmallest(EXAMPLES_PER_RULE, rows)
                }
    return {rule: [rows[key] for key in heapq.nsmallest(EXAMPLES_PER_RULE, rows)] for rule, rows in chosen.items()}


@dataclass(frozen=True)
class LeakedPassage:
    """A leaked item, with the document's text before, in and after the leak."""

    item_id: str
    form: str
    matched: int
    total: int
    doc_id: str
    source: str
    before: str
    leak: str
    after: str


def leaked_passages(artifacts: dict[str, Artifact]) -> dict[str, list[LeakedPassage]]:
    """Return some leaked items by benchmark."""
    if "decontaminate" not in artifacts or "dedup" not in artifacts:
        return {}
    table = artifacts["decontaminate"].table("leaks")
    table = table.filter(pc.and_(pc.equal(table.column("state"), "leaked"), pc.is_valid(table.column("doc_id"))))
    by_benchmark: dict[str, dict[str, LeakRow]] = {}
    for row in sorted(rows_of(table, LeakRow), key=lambda row: (row["doc_id"], row["start"])):
        of_benchmark = by_benchmark.setdefault(row["benchmark"], {})
        if len(of_benchmark) < LEAKS_PER_BENCHMARK:
            of_benchmark.setdefault(row["item_id"], row)
    chosen = [(row, row["doc_id"] or b"") for of_items in by_benchmark.values() for row in of_items.values()]
    documents = documents_of(artifacts["dedup"], {doc_id for _, doc_id in chosen}, ["doc_id", "source", "text"])
    found: dict[str, list[LeakedPassage]] = {}
    for row, doc_id in chosen:
        document = documents.get(doc_id)
        raw = document["text"].encode() if document else b""
        found.setdefault(row["benchmark"], []).append(
            LeakedPassage(
                item_id=row["item_id"],
                form=row["form"],
                matched=row["matched"],
                total=row["total"],
                doc_id=doc_id.hex(),
                source=document["source"] if document else "",
                before=masked(raw[: row["start"]].decode(errors="ignore")[-2 * CONTEXT_CHARS :])[-CONTEXT_CHARS:],
                leak=clip(raw[row["start"] : row["end"]].decode(errors="ignore"), EXCERPT_CHARS),
                after=masked(raw[row["end"] :].decode(errors="ignore")[: 2 * CONTEXT_CHARS])[:CONTEXT_CHARS],
            )
        )
    return found


@dataclass(frozen=True)
class Rejected:
    """The records that sampling could not read: their number by reason (without numbers), and some of them."""

    reasons: list[tuple[str, int]]
    records: list[RejectRow]
    count: int


def rejected(artifacts: dict[str, Artifact]) -> Rejected | None:
    """Return the records that sampling could not read; None without a sample."""
    if "sample" not in artifacts:
        return None
    reasons: Counter[str] = Counter()
    records: list[RejectRow] = []
    for path in artifacts["sample"].files("rejects"):
        table = read_table(path)
        reasons.update(NUMBER.sub("…", reason) for reason in table.column("reason").to_pylist())
        first = rows_of(table.slice(0, MAX_REJECTED - len(records)), RejectRow)
        records.extend({**row, "excerpt": clip(row["excerpt"], EXCERPT_CHARS)} for row in first)
    return Rejected(reasons.most_common(MAX_REJECTED), records, reasons.total())


def clip(text: str, characters: int) -> str:
    """Return the beginning of a text, without personal data."""
    shown = masked(text[: 2 * characters])
    return shown if len(shown) <= characters else shown[:characters] + "…"


def masked(text: str) -> str:
    """Mask personal data, as the edits of clean do."""
    # Kernels are loaded where a page is made, not where a run begins.
    from tasks.clean.edits.registry import EDIT_REGISTRY

    for name in PERSONAL:
        text = EDIT_REGISTRY[name].function(text, DocumentContext())
    return text


def is_too_large(stage: Artifact) -> bool:
    """Return whether a stage has more documents than are looked up for a page."""
    return sum(file.bytes for file in stage.records if file.table == "documents") > MAX_DOCUMENT_BYTES


@dataclass(frozen=True)
class ShownHistory:
    """What happened to a document, as (stage, words) in the order of the pipeline."""

    events: list[tuple[str, str]]
    outcome: str


def document_histories(
    record: RunData, artifacts: dict[str, Artifact], doc_ids: list[bytes]
) -> dict[str, ShownHistory]:
    """Return histories by hexadecimal id.

    Empty for runs with more than MAX_DOCUMENT_BYTES of documents.
    """
    if "sample" not in artifacts or not doc_ids or is_too_large(artifacts["sample"]):
        return {}
    return {
        life.doc_id: ShownHistory([(event["stage"], describe_event(event)) for event in life.events], life.outcome)
        for life in histories_of(artifacts, doc_ids, ended=state_of(record) != RUNNING)
    }
