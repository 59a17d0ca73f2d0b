"""The history of documents in a run: from file and record to the steps that trained on them, or the rule that removed
them.

`histories_of` joins the tables of all stages for documents, and `describe_event` puts one event into words.
`listed_files` and `explain_unsampled` answer for files that left no document. All read existing artifacts only.
"""

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from flows.runs.lineage import need_stage
from flows.runs.record import recipe_of
from flows.runs.run_documents import EXCERPT_CHARS, rows_at
from flows.runs.text_kinds import text_kinds
from model.checkpoint.metrics import final_steps
from model.errors import InputError, RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.results import SampleResult

if TYPE_CHECKING:
    from tasks.sample.discovery import InputFile

IN_PROGRESS = "in progress"

LEDGER_STAGES = ("clean", "dedup", "decontaminate")


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
    events: list[dict[str, Any]] = field(default_factory=list)
    outcome: str = IN_PROGRESS

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return dict(self.__dict__)


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


class _Tables:
    """The rows of a run's tables about some documents; each table is read once, at first use."""

    def __init__(self, artifacts: dict[str, Artifact], doc_ids: frozenset[bytes]) -> None:
        self.artifacts = artifacts
        self._doc_ids = doc_ids
        self._found: dict[tuple[str, str], dict[bytes, list[dict[str, Any]]]] = {}

    def rows(self, stage: str, table: str, doc_id: bytes) -> list[dict[str, Any]]:
        """Return the rows of one document, in the order of the table."""
        if (stage, table) not in self._found:
            by_document: dict[bytes, list[dict[str, Any]]] = {}
            for row in rows_at(need_stage(self.artifacts, stage), table, self._doc_ids):
                by_document.setdefault(row["doc_id"], []).append(row)
            self._found[stage, table] = by_document
        return self._found[stage, table].get(doc_id, [])

    @functools.cached_property
    def survivors(self) -> dict[str, dict[str, Any]]:
        """Id -> row of the documents of this run that were kept in place of copies."""
        evidence = (
            _ledger_details(row).get("evidence")
            for doc_id in self._doc_ids
            for row in self.rows("dedup", "ledger", doc_id)
        )
        ids = {named["survivor"] for named in evidence if isinstance(named, dict) and "survivor" in named}
        found = rows_at(need_stage(self.artifacts, "dedup"), "documents", {bytes.fromhex(one) for one in ids})
        return {row["doc_id"].hex(): row for row in found}

    @functools.cached_property
    def text_kinds(self) -> dict[bytes, str | None]:
        """Id -> kind of text; empty where clean did not run."""
        if "clean" not in self.artifacts:
            return {}
        sampled = [rows[0] for doc_id in self._doc_ids if (rows := self.rows("sample", "documents", doc_id))]
        return text_kinds(self.artifacts["clean"], sampled)

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
    rows = tables.rows("sample", "documents", doc_id)
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
        for entry in tables.rows(stage, "ledger", doc_id):
            event = {"stage": stage, "what": entry["action"], **_ledger_details(entry)}
            if stage == "dedup" and isinstance(event.get("evidence"), dict) and "survivor" in event["evidence"]:
                event["survivor"] = _survivor(tables, event["evidence"])
            history.events.append(event)
            if entry["action"] in ("drop", "hold_out"):
                verb = "dropped" if entry["action"] == "drop" else "held out for evaluation"
                history.outcome = f"{verb} in {stage} by rule `{entry['rule']}`"
        if history.outcome != IN_PROGRESS:
            return history
    for leak in tables.rows("decontaminate", "leaks", doc_id):
        history.events.append(
            {"stage": "decontaminate", "what": "leak", **{k: leak[k] for k in ("benchmark", "item_id", "start", "end")}}
        )
    if "chunk" in artifacts:
        _add_training(history, tables, doc_id)
    return history


def _survivor(tables: _Tables, evidence: dict[str, Any]) -> dict[str, Any]:
    """Return the document kept in a duplicate's place: source, path and record, and the artifact of an earlier run."""
    of_earlier = {"earlier": evidence["earlier"]} if "earlier" in evidence else {}
    row = None
    if not of_earlier:
        row = tables.survivors.get(evidence["survivor"])
    elif (folder := tables.artifacts["dedup"].path.parent / evidence["earlier"]).exists():
        found = rows_at(Artifact.open(folder), "documents", {bytes.fromhex(evidence["survivor"])})
        row = next(iter(found), None)
    if row is None:
        return {"doc_id": evidence["survivor"], **of_earlier}
    origin = row["origin"]
    place = {"source": row["source"], "path": origin["path"], "record": origin["record"]}
    return {"doc_id": evidence["survivor"], **of_earlier, **place, "text": row["text"][:EXCERPT_CHARS]}


def _add_training(history: DocumentHistory, tables: _Tables, doc_id: bytes) -> None:
    spans = tables.rows("chunk", "spans", doc_id)
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
    read = which[(which >= 0) & (positions < ends[np.maximum(which, 0)])]
    numbers = np.unique(applied.column("step").to_numpy()[read]).tolist()
    history.events.append({"stage": "train", "what": "trained", "steps": numbers, "reads": len(read)})
    history.outcome = (
        f"trained in {len(numbers)} step{'s' if len(numbers) > 1 else ''}"
        if numbers
        else "packed, and not reached by the token budget"
    )


def _ledger_details(entry: dict[str, Any]) -> dict[str, Any]:
    details = {
        key: entry[key]
        for key in ("rule", "value", "limit", "bytes_in", "bytes_out", "piece")
        if entry[key] is not None
    }
    evidence = entry["evidence"]
    if evidence:
        try:
            details["evidence"] = json.loads(evidence)
        except json.JSONDecodeError:
            details["evidence"] = evidence
    return details


MAX_FILES = 20


def listed_files(run_folder: Path, wanted: str) -> "list[InputFile]":
    """Return the files of the run's sources whose path, here or within the source, contains `wanted`; 20 at most.

    The folders are listed again as the run's recipe names them, so files that were deleted since are not found.
    """
    from tasks.sample.discovery import find_files  # Loads the configuration of the stage.

    recipe = recipe_of(run_folder)
    found: list[InputFile] = []
    for source in recipe.sample.sources:
        try:
            (listing,) = find_files(recipe.sample.model_copy(update={"sources": (source,)}))
        except (InputError, RecipeError):
            continue  # Its folder was deleted, and nothing is known of its files.
        found += [file for file in listing.files if wanted in file.relative or wanted in str(file.path)]
    return found[:MAX_FILES]


def explain_unsampled(file: "InputFile", sample: Artifact) -> str:
    """Return a sentence on why a listed file left no document and no reject."""
    rate = SampleResult.of(sample.report).mixture_plan[file.source]["rate"]
    where = f"{file.source}: {file.relative}"
    if file.size == 0:
        return f"{where}: an empty file, which holds no record"
    if rate < 1:
        return (
            f"{where}: read and not selected; of the records of `{file.source}` sampling kept {rate:.1%}, chosen by the"
            f" hash of their ids, since its share of the mixture or the run's --limit asks for no more"
        )
    return f"{where}: read, and it holds no record with a text"


MAX_PARTS = 8


def sample_parts(files: list[Path]) -> Iterator[tuple[int, Path]]:
    """Yield at most MAX_PARTS of the files, evenly spread, with their index."""
    step = max(1, -(-len(files) // MAX_PARTS))
    yield from ((index, files[index]) for index in range(0, len(files), step))


MAX_STEPS = 12


def describe_event(event: dict[str, Any]) -> str:
    """Return one event of a history in words, without its stage."""
    what = event["what"]
    if what == "sampled":
        return f"sampled, {event['bytes']} bytes"
    if what == "packed":
        rows = event["rows"]
        where = f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} to {rows[-1]}" if rows else "no row"
        return f"packed as {event['tokens']} tokens in {where}"
    if what == "trained":
        steps = [str(step) for step in event["steps"][:MAX_STEPS]]
        more = f" and {len(event['steps']) - MAX_STEPS} more" if len(event["steps"]) > MAX_STEPS else ""
        times = f"{event['reads']} time{'s' if event['reads'] > 1 else ''}"
        numbered = f"step{'s' if len(event['steps']) > 1 else ''} {', '.join(steps)}{more}"
        return f"read {times}, in {numbered}" if steps else "never reached"
    if what == "leak":
        return f"held item {event['item_id']} of {event['benchmark']} at bytes {event['start']} to {event['end']}"
    measured = f", {event['value']:.4g} against {event['limit']:.4g}" if "value" in event and "limit" in event else ""
    sizes = f" ({event['bytes_in']} -> {event['bytes_out']} bytes)"
    evidence = event.get("evidence")
    if isinstance(evidence, dict):
        evidence = ", ".join(f"{key} {value}" for key, value in evidence.items())
    return f"{what} by `{event['rule']}`{measured}{sizes}" + (f": {evidence}" if evidence else "")
