"""Texts that show what a run removed: a few documents for each rule, a few leaks with their surroundings, and records
that could not be read.

Documents are chosen by their id, which is a hash: the choice is even and the same every time. Part i of a stage holds
the documents of part i of its parent, so that a text is looked up in one part, and only some parts are opened.

Beginnings of documents as the page shows them: it is made to be shown around.

What became of the documents that the page shows, as `bessemer data history` tells it.
"""

import heapq
import re
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flows.metrics.formatting import describe_evidence
from flows.runs.document_history import describe_event, histories_of, sample_parts
from flows.runs.record import RUNNING, state_of
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.tables import read_table
from tasks.clean.document import DocumentContext
from tasks.clean.edits.pii import mask_emails, mask_ip_addresses, mask_payment_cards, mask_phones

PARENT = {"clean": "sample", "dedup": "clean", "decontaminate": "dedup"}

PER_RULE = 10

PER_BENCHMARK = 4

EXCERPT_CHARS = 400

AROUND_CHARS = 160

SHOWN = ("drop", "cut")

MOST_REJECTED = 20

NUMBER = re.compile(r"(?<![\w-])\d[\d,.]*")

Key = tuple[bytes, int]


def removals(artifacts: dict[str, Artifact]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """(stage, action, rule) -> documents that the rule dropped or cut, with value, limit, evidence and an excerpt."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for stage, parent in PARENT.items():
        if stage not in artifacts or parent not in artifacts:
            continue
        chosen = _chosen_rows(artifacts[stage])
        texts = _texts(artifacts[parent], {(row["doc_id"], row["part"]) for rows in chosen.values() for row in rows})
        origins = _origins(artifacts["sample"], {row["doc_id"] for rows in chosen.values() for row in rows})
        for (action, rule), rows in sorted(chosen.items()):
            found[stage, action, rule] = [
                {
                    **{key: row[key] for key in ("value", "limit", "bytes_in", "bytes_out")},
                    "evidence": describe_evidence(row["evidence"]),
                    "doc_id": row["doc_id"].hex(),
                    "path": origins.get(row["doc_id"], ""),
                    "source": texts.get(row["doc_id"], ("", ""))[0],
                    "excerpt": clip(texts.get(row["doc_id"], ("", ""))[1], EXCERPT_CHARS),
                }
                for row in rows
            ]
    return found


def _chosen_rows(artifact: Artifact) -> dict[tuple[str, str], list[dict[str, Any]]]:
    chosen: dict[tuple[str, str], dict[bytes, dict[str, Any]]] = {}
    for part, path in sample_parts(artifact.files("ledger")):
        ledger = read_table(path)
        ledger = ledger.filter(pc.is_in(ledger.column("action"), value_set=pa.array(SHOWN)))
        for row in ledger.to_pylist():
            rows = chosen.setdefault((row["action"], row["rule"]), {})
            rows.setdefault(row["doc_id"], {**row, "part": part})
            if len(rows) > 64 * PER_RULE:
                chosen[row["action"], row["rule"]] = {key: rows[key] for key in heapq.nsmallest(PER_RULE, rows)}
    return {rule: [rows[key] for key in heapq.nsmallest(PER_RULE, rows)] for rule, rows in chosen.items()}


def _texts(parent: Artifact, wanted: set[Key]) -> dict[bytes, tuple[str, str]]:
    """doc_id -> (source, text) of documents of `parent`, given as (doc_id, part)."""
    files = parent.files("documents")
    found: dict[bytes, tuple[str, str]] = {}
    for part in sorted({part for _, part in wanted}):
        if part < len(files):
            ids = pa.array([doc_id for doc_id, of_part in wanted if of_part == part], pa.binary(16))
            table = read_table(files[part]).select(["doc_id", "source", "text"])
            for row in table.filter(pc.is_in(table.column("doc_id"), value_set=ids)).to_pylist():
                found[row["doc_id"]] = (row["source"], row["text"])
    return found


def _origins(sample: Artifact, wanted: set[bytes]) -> dict[bytes, str]:
    """doc_id -> path and record, looked for in some parts of the sample."""
    ids = pa.array(sorted(wanted), pa.binary(16))
    found: dict[bytes, str] = {}
    for _, path in sample_parts(sample.files("documents")):
        table = read_table(path).select(["doc_id", "origin"])
        for row in table.filter(pc.is_in(table.column("doc_id"), value_set=ids)).to_pylist():
            found[row["doc_id"]] = f"{row['origin']['path']}, record {row['origin']['record']}"
    return found


def leaked_passages(artifacts: dict[str, Artifact]) -> dict[str, list[dict[str, Any]]]:
    """Benchmark -> leaked items with the document's text before, at and after the leak."""
    if "decontaminate" not in artifacts or "dedup" not in artifacts:
        return {}
    table = artifacts["decontaminate"].table("leaks")
    table = table.filter(pc.and_(pc.equal(table.column("state"), "leaked"), pc.is_valid(table.column("doc_id"))))
    by_benchmark: dict[str, dict[str, dict[str, Any]]] = {}
    for row in sorted(table.to_pylist(), key=lambda row: (row["doc_id"], row["start"])):
        of_benchmark = by_benchmark.setdefault(row["benchmark"], {})
        if len(of_benchmark) < PER_BENCHMARK:
            of_benchmark.setdefault(row["item_id"], row)
    chosen = [row for rows in by_benchmark.values() for row in rows.values()]
    texts = _texts_anywhere(artifacts["dedup"], {row["doc_id"] for row in chosen})
    found: dict[str, list[dict[str, Any]]] = {}
    for row in chosen:
        source, text = texts.get(row["doc_id"], ("", ""))
        raw = text.encode()
        found.setdefault(row["benchmark"], []).append(
            {
                **{key: row[key] for key in ("item_id", "form", "matched", "total", "remains")},
                "doc_id": row["doc_id"].hex(),
                "source": source,
                "before": raw[: row["start"]].decode(errors="ignore")[-AROUND_CHARS:],
                "leak": clip(raw[row["start"] : row["end"]].decode(errors="ignore"), EXCERPT_CHARS),
                "after": raw[row["end"] :].decode(errors="ignore")[:AROUND_CHARS],
            }
        )
    return found


def rejected(artifacts: dict[str, Artifact]) -> dict[str, Any]:
    """Records that sampling could not read: `reasons` (their numbers left out) by how many, and the first `records`."""
    if "sample" not in artifacts:
        return {}
    reasons: Counter[str] = Counter()
    records: list[dict[str, Any]] = []
    for path in artifacts["sample"].files("rejects"):
        table = read_table(path)
        for reason in table.column("reason").to_pylist():
            reasons[NUMBER.sub("…", reason)] += 1
        for row in table.slice(0, MOST_REJECTED - len(records)).to_pylist():
            records.append({**row, "excerpt": clip(row["excerpt"], EXCERPT_CHARS)})
    return {"reasons": reasons.most_common(MOST_REJECTED), "records": records, "count": reasons.total()}


def _texts_anywhere(parent: Artifact, wanted: set[bytes]) -> dict[bytes, tuple[str, str]]:
    count = len(parent.files("documents"))
    return _texts(parent, {(doc_id, part) for doc_id in wanted for part in range(count)}) if wanted else {}


def clip(text: str, characters: int) -> str:
    """The beginning of a text, without personal data."""
    shown = masked(text[: 2 * characters])
    return shown if len(shown) <= characters else shown[:characters] + "…"


def masked(text: str) -> str:
    """The text without addresses of mail and machines, phone and card numbers."""
    for mask in (mask_emails, mask_ip_addresses, mask_phones, mask_payment_cards):
        text = mask(text, DocumentContext())
    return text


MOST_BYTES = 4_000_000_000
"""Of documents: telling their lives means reading the tables of all, and the page is not worth more than seconds."""


def fates_of(record: dict[str, Any], artifacts: dict[str, Artifact], doc_ids: list[bytes]) -> dict[str, dict[str, Any]]:
    """Hexadecimal id -> `events` as (stage, words) in the order of the road, and the `fate`; empty for runs with more
    text than the page may read."""
    if "sample" not in artifacts or not doc_ids:
        return {}
    sizes = (file.bytes for file in artifacts["sample"].records if file.table == "documents")
    if sum(sizes) > MOST_BYTES:
        return {}
    lives = histories_of(artifacts, doc_ids, ended=state_of(record) != RUNNING)
    return {
        life.doc_id: {
            "events": [(event["stage"], describe_event(event)) for event in life.events],
            "fate": life.outcome,
        }
        for life in lives
    }
