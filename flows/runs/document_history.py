"""The history of documents in a run: from file and record to the steps that trained on them, or the rule that removed
them.

`histories_of` joins the tables of all stages for documents, and `describe_event` puts one event into words. Existing
artifacts are read only; `flows.runs.unsampled_files` answers for files that left no document.
"""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict, TypeVar, cast

import numpy as np
import pyarrow as pa

from flows.runs.lineage import need_stage
from flows.runs.run_documents import EXCERPT_CHARS, documents_of, rows_at, text_kinds
from model.checkpoint.metrics import final_steps
from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.tables.rows import DocumentRow, LeakRow, LedgerRow, SpanRow, Survivor

IN_PROGRESS = "in progress"

LEDGER_STAGES = ("clean", "dedup", "decontaminate")


class Sampled(TypedDict):
    """Sample took the document."""

    stage: str
    what: Literal["sampled"]
    bytes: int


class KeptDocument(TypedDict):
    """The document that was kept in the place of a duplicate; with its place unless it is not under this root."""

    doc_id: str
    earlier: NotRequired[str]
    """Identity of the artifact of an earlier run that has it."""
    source: NotRequired[str]
    path: NotRequired[str]
    record: NotRequired[int]
    text: NotRequired[str]
    """The beginning."""


class LedgerEvent(TypedDict):
    """A stage dropped, edited, cut or held out the document: a row of LEDGER without what is null."""

    stage: str
    what: Literal["drop", "edit", "cut", "hold_out"]
    rule: str
    bytes_in: int
    bytes_out: int
    piece: int
    value: NotRequired[float]
    limit: NotRequired[float]
    evidence: NotRequired[object]
    survivor: NotRequired[KeptDocument]


class Leaked(TypedDict):
    """An item of a benchmark was found in the document."""

    stage: str
    what: Literal["leak"]
    benchmark: str
    item_id: str
    start: int | None
    end: int | None


class Packed(TypedDict):
    """Chunk packed the document into rows."""

    stage: str
    what: Literal["packed"]
    tokens: int
    rows: list[int]


class Trained(TypedDict):
    """Steps read its rows, `reads` times in all."""

    stage: str
    what: Literal["trained"]
    steps: list[int]
    reads: int


Event = Sampled | LedgerEvent | Leaked | Packed | Trained


@dataclass
class DocumentHistory:
    """What happened to a document in one run; `events` are in the order of the pipeline."""

    doc_id: str
    source: str
    path: str
    record: int
    byte: int
    excerpt: str
    text_kind: str | None = None
    """The kind by which clean chose edits and rules; None where clean did not run, or the kind is unknown."""
    events: list[Event] = field(default_factory=list)
    outcome: str = IN_PROGRESS


def histories_of(
    artifacts: dict[str, Artifact], doc_ids: Sequence[bytes], *, ended: bool = False
) -> list[DocumentHistory]:
    """Return the histories of documents, in their order: from file and record to the steps that trained on them.

    Each table is read once for all. `ended` says that the run goes no further, so that the last stage that kept a
    document decides its outcome.
    """
    tables = _Tables(artifacts, frozenset(doc_ids))
    histories = [_collect_history(tables, doc_id) for doc_id in doc_ids]
    last = [stage for stage in ("sample", *LEDGER_STAGES) if stage in artifacts][-1]
    for history in histories:
        if ended and history.outcome == IN_PROGRESS:
            history.outcome = f"kept in {last}, and the run went no further with it"
    return histories


Row = TypeVar("Row", DocumentRow, LeakRow, LedgerRow, SpanRow)


class _Tables:
    """The rows of a run's tables about some documents; each table is read once, at first use."""

    def __init__(self, artifacts: dict[str, Artifact], doc_ids: frozenset[bytes]) -> None:
        self.artifacts = artifacts
        self._doc_ids = doc_ids
        self._rows: dict[tuple[str, type], dict[bytes, list[Any]]] = {}

    def rows(self, stage: str, kind: type[Row]) -> dict[bytes, list[Row]]:
        """Return id -> rows of one kind of a stage, in the order of its table."""
        if (stage, kind) not in self._rows:
            found: dict[Any, list[Any]] = {}
            for row in rows_at(need_stage(self.artifacts, stage), kind, self._doc_ids):
                found.setdefault(row["doc_id"], []).append(row)
            self._rows[stage, kind] = found
        return self._rows[stage, kind]

    @functools.cached_property
    def survivors(self) -> dict[str, DocumentRow]:
        """Id -> row of the documents of this run that were kept in place of copies."""
        kept = (Survivor.of(row["evidence"]) for rows in self.rows("dedup", LedgerRow).values() for row in rows)
        ids = {bytes.fromhex(one.survivor) for one in kept if one is not None}
        found = documents_of(need_stage(self.artifacts, "dedup"), ids)
        return {doc_id.hex(): row for doc_id, row in found.items()}

    @functools.cached_property
    def text_kinds(self) -> dict[bytes, str | None]:
        """Id -> kind of text; empty where clean did not run."""
        if "clean" not in self.artifacts:
            return {}
        return text_kinds(self.artifacts["clean"], [rows[0] for rows in self.rows("sample", DocumentRow).values()])

    @functools.cached_property
    def order(self) -> np.ndarray:
        """i64[positions]: the row that training reads at each position."""
        return self.artifacts["chunk"].table("order").column("row").to_numpy()

    @functools.cached_property
    def applied(self) -> pa.Table:
        """The steps that updated the weights."""
        steps = final_steps(self.artifacts["train"].table("steps"))
        return steps.filter(steps.column("applied"))


def _collect_history(tables: _Tables, doc_id: bytes) -> DocumentHistory:
    artifacts = tables.artifacts
    rows = tables.rows("sample", DocumentRow).get(doc_id)
    if not rows:
        raise InputError(f"document {doc_id.hex()} is not in the sample {artifacts['sample'].identity}")
    (row, *_) = rows
    origin = row["origin"]
    history = DocumentHistory(
        doc_id.hex(),
        row["source"],
        origin["path"],
        origin["record"],
        origin["byte"],
        row["text"][:EXCERPT_CHARS],
        tables.text_kinds.get(doc_id),
    )
    history.events.append({"stage": "sample", "what": "sampled", "bytes": len(row["text"].encode())})
    for stage in LEDGER_STAGES:
        if stage not in artifacts:
            return history
        for entry in tables.rows(stage, LedgerRow).get(doc_id, ()):
            event = _ledger_event(stage, entry)
            if stage == "dedup" and (kept := Survivor.of(entry["evidence"])):
                event["survivor"] = _kept_document(tables, kept)
            history.events.append(event)
            if entry["action"] in ("drop", "hold_out"):
                verb = "dropped" if entry["action"] == "drop" else "held out for evaluation"
                history.outcome = f"{verb} in {stage} by rule `{entry['rule']}`"
        if history.outcome != IN_PROGRESS:
            return history
    for leak in tables.rows("decontaminate", LeakRow).get(doc_id, ()):
        history.events.append(
            {
                "stage": "decontaminate",
                "what": "leak",
                "benchmark": leak["benchmark"],
                "item_id": leak["item_id"],
                "start": leak["start"],
                "end": leak["end"],
            }
        )
    if "chunk" in artifacts:
        _add_training(history, tables, doc_id)
    return history


def _kept_document(tables: _Tables, kept: Survivor) -> KeptDocument:
    found: KeptDocument = {"doc_id": kept.survivor}
    row = None
    if kept.earlier is None:
        row = tables.survivors.get(kept.survivor)
    else:
        found["earlier"] = kept.earlier
        if (folder := tables.artifacts["dedup"].path.parent / kept.earlier).exists():
            doc_id = bytes.fromhex(kept.survivor)
            row = documents_of(Artifact.open(folder), [doc_id]).get(doc_id)
    if row is None:
        return found
    origin = row["origin"]
    return {
        **found,
        "source": row["source"],
        "path": origin["path"],
        "record": origin["record"],
        "text": row["text"][:EXCERPT_CHARS],
    }


def _add_training(history: DocumentHistory, tables: _Tables, doc_id: bytes) -> None:
    spans = tables.rows("chunk", SpanRow).get(doc_id, [])
    rows = np.unique(np.array([span["row"] for span in spans], dtype=np.int64))
    tokens = sum(span["tok_len"] for span in spans)
    history.events.append({"stage": "chunk", "what": "packed", "tokens": tokens, "rows": rows.tolist()})
    if "train" not in tables.artifacts:
        history.outcome = "packed"
        return
    positions = np.flatnonzero(np.isin(tables.order, rows))
    applied = tables.applied
    starts, ends = applied.column("pos_start").to_numpy(), applied.column("pos_end").to_numpy()
    which = np.searchsorted(starts, positions, side="right") - 1
    begun = which >= 0
    read = which[begun][positions[begun] < ends[which[begun]]]
    numbers = np.unique(applied.column("step").to_numpy()[read]).tolist()
    history.events.append({"stage": "train", "what": "trained", "steps": numbers, "reads": len(read)})
    history.outcome = (
        f"trained in {len(numbers)} step{'s' if len(numbers) > 1 else ''}"
        if numbers
        else "packed, and not reached by the token budget"
    )


def _ledger_event(stage: str, entry: LedgerRow) -> LedgerEvent:
    event: LedgerEvent = {
        "stage": stage,
        "what": cast(Literal["drop", "edit", "cut", "hold_out"], entry["action"]),
        "rule": entry["rule"],
        "bytes_in": entry["bytes_in"],
        "bytes_out": entry["bytes_out"],
        "piece": entry["piece"],
    }
    if entry["value"] is not None:
        event["value"] = entry["value"]
    if entry["limit"] is not None:
        event["limit"] = entry["limit"]
    if entry["evidence"]:
        try:
            event["evidence"] = json.loads(entry["evidence"])
        except json.JSONDecodeError:
            event["evidence"] = entry["evidence"]
    return event


MAX_STEPS = 12


def describe_event(event: Event) -> str:
    """Return one event of a history in words, without its stage."""
    if event["what"] == "sampled":
        return f"sampled, {event['bytes']:,} bytes"
    if event["what"] == "packed":
        return f"packed as {event['tokens']:,} tokens in {_rows_in_words(event['rows'])}"
    if event["what"] == "trained":
        steps = [str(step) for step in event["steps"][:MAX_STEPS]]
        more = f" and {len(event['steps']) - MAX_STEPS} more" if len(event["steps"]) > MAX_STEPS else ""
        readings = f"{event['reads']:,} reading{'s' if event['reads'] > 1 else ''}"
        numbered = f"step{'s' if len(event['steps']) > 1 else ''} {', '.join(steps)}{more}"
        return f"{readings} of its rows, in {numbered}" if steps else "never reached"
    if event["what"] == "leak":
        return f"held item {event['item_id']} of {event['benchmark']} at bytes {event['start']} to {event['end']}"
    measured = f", {event['value']:.4g} against {event['limit']:.4g}" if "value" in event and "limit" in event else ""
    sizes = f" ({event['bytes_in']:,} -> {event['bytes_out']:,} bytes)"
    evidence = event.get("evidence")
    if isinstance(evidence, dict):
        evidence = ", ".join(f"{key} {value}" for key, value in evidence.items())
    return f"{event['what']} by `{event['rule']}`{measured}{sizes}" + (f": {evidence}" if evidence else "")


def _rows_in_words(rows: list[int]) -> str:
    """Return "rows 3 to 5", or where rows between are others' "3 rows from 3 to 17"."""
    if len(rows) < 2:
        return f"row {rows[0]}" if rows else "no row"
    first, last = rows[0], rows[-1]
    in_turn = last - first == len(rows) - 1
    return f"rows {first} to {last}" if in_turn else f"{len(rows)} rows from {first} to {last}"
