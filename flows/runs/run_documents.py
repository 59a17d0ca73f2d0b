"""Read the documents of a run from its artifacts: by id, path or file, those that a training step read, and the kind of
text of each: as clean recorded it, or for dropped documents as it recognises it again. Nothing else is recomputed.

`flows.runs.document_history` follows one document through the stages.
"""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.runs.lineage import need_stage
from model.checkpoint.metrics import final_rows, final_steps
from model.errors import InputError
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.tables.files import read_table
from tasks.artifacts.tables.ledger import DROP
from tasks.artifacts.tables.rows import (
    DocumentRow,
    LeakRow,
    LedgerRow,
    RejectRow,
    SequenceRow,
    SpanRow,
    StepRow,
    Survivor,
    rows_of,
)
from tasks.artifacts.tables.schema import DOCUMENTS
from tasks.clean.document import KINDS
from tasks.common.text import as_stored

if TYPE_CHECKING:
    from tasks.clean.batch import DocumentBatch
    from tasks.clean.config import CleanConfig

EXCERPT_CHARS = 160

MAX_PARTS = 8
"""Files of a table that a sample of it is read from."""


def find_documents(artifacts: dict[str, Artifact], wanted: str) -> list[bytes]:
    """Return the ids of sampled documents whose hexadecimal id begins with `wanted`, or whose path contains it;
    InputError for an empty one, which every path contains."""
    if not wanted:
        raise InputError('"" is a part of every path. Name documents by ids or parts of their paths.')
    sample = need_stage(artifacts, "sample")
    # `data step` and LEAKS name a piece as ID/N; a history is of the whole document.
    beginning, slash, piece = wanted.lower().partition("/")
    is_hex = len(beginning) >= 4 and all(character in "0123456789abcdef" for character in beginning)
    may_be_id = is_hex and (piece.isdigit() or not slash)
    by_id: list[bytes] = []
    by_path: list[bytes] = []
    for batch in parts_of(sample, "documents", ["doc_id", "origin"]):
        ids = batch.column("doc_id").to_pylist()
        if may_be_id:
            by_id += [doc_id for doc_id in ids if doc_id.hex().startswith(beginning)]
        paths = pc.struct_field(batch.column("origin"), "path")
        by_path += [ids[i] for i in pc.indices_nonzero(pc.match_substring(paths, as_stored(wanted))).to_pylist()]
    # Folders such as 2019/05 look like the piece of a document.
    return (by_path or by_id) if slash else (by_id or by_path)


def documents_by_file(
    artifacts: dict[str, Artifact], files: Collection[tuple[str, str]]
) -> dict[tuple[str, str], list[bytes]]:
    """Return, for each (source, path within it) of `files`, the ids of the documents sampled from that file."""
    found: dict[tuple[str, str], list[bytes]] = {file: [] for file in files}
    for batch in parts_of(need_stage(artifacts, "sample"), "documents", ["doc_id", "source", "origin"]):
        paths = pc.struct_field(batch.column("origin"), "path")
        here = pc.is_in(paths, value_set=pa.array({path for _, path in files}, paths.type))
        for row in batch.filter(here).to_pylist():
            if (row["source"], row["origin"]["path"]) in found:
                found[row["source"], row["origin"]["path"]].append(row["doc_id"])
    return found


def rejects_of(artifacts: dict[str, Artifact], wanted: str) -> list[RejectRow]:
    """Return the rejected records whose path contains `wanted`."""
    found: list[RejectRow] = []
    for table in parts_of(need_stage(artifacts, "sample"), "rejects", None):
        found += table.filter(pc.match_substring(table.column("path"), as_stored(wanted))).to_pylist()
    return found


class ReadDocument(TypedDict):
    """The tokens of a document in a row that a training step read."""

    row: int
    doc_id: str
    piece: int
    source: str
    path: str
    start: int
    end: int
    tokens: int
    text: str
    """The beginning."""


class StepRead(TypedDict):
    """What a training step read."""

    step: int
    applied: bool
    loss: float | None
    rows: int
    documents: list[ReadDocument]


def step_of(artifacts: dict[str, Artifact], step: int) -> StepRead:
    """Return what one training step read: its loss, and every document segment in its rows with some text."""
    train, chunk = need_stage(artifacts, "train"), need_stage(artifacts, "chunk")
    steps = final_steps(train.table("steps"))
    mine = rows_of(steps.filter(pc.equal(steps.column("step"), step)), StepRow)
    if not mine:
        last = pc.max(steps.column("step")).as_py()
        first = pc.min(steps.column("step")).as_py()
        raise InputError(f"step {step}: the run trained steps {first} to {last}; they are counted from 0")
    metrics = final_rows(train.table("metrics"), steps)
    metric = metrics.filter(pc.equal(metrics.column("step"), step)).to_pylist()
    reads = rows_read(chunk, mine)[step]
    segments = segments_of(chunk, reads)
    ids, columns = {s["doc_id"] for s in segments}, ["doc_id", "piece", "source", "origin", "text"]
    found = rows_at(need_stage(artifacts, "decontaminate"), DocumentRow, ids, columns)
    documents = {(row["doc_id"], row["piece"]): row for row in found}
    texts = {one: row["text"].encode() for one, row in documents.items()}
    return {
        "step": step,
        "applied": mine[-1]["applied"],
        "loss": metric[-1]["loss"] if metric else None,
        "rows": len(reads),
        "documents": [
            {
                "row": s["row"],
                "doc_id": s["doc_id"].hex(),
                "piece": s["piece"],
                "source": documents[s["doc_id"], s["piece"]]["source"],
                "path": documents[s["doc_id"], s["piece"]]["origin"]["path"],
                "start": s["start"],
                "end": s["end"],
                "tokens": s["tok_len"],
                "text": texts[s["doc_id"], s["piece"]][s["start"] : s["end"]].decode(errors="replace")[:EXCERPT_CHARS],
            }
            for s in segments
        ],
    }


def rows_read(chunk: Artifact, steps: list[StepRow]) -> dict[int, list[int]]:
    """Return, by step, the sequences (rows of SEQUENCES) that it read, in order."""
    order = chunk.table("order").column("row")
    rows: dict[int, list[int]] = {}
    for entry in steps:
        read = order.slice(entry["pos_start"], entry["pos_end"] - entry["pos_start"]).to_pylist()
        rows.setdefault(entry["step"], []).extend(read)
    return rows


class NamedDocument(TypedDict):
    """A document for people to find."""

    doc_id: str
    source: str
    path: str


def named(row: DocumentRow) -> NamedDocument:
    """Return how people find the document of a row."""
    return {"doc_id": row["doc_id"].hex(), "source": row["source"], "path": row["origin"]["path"]}


def documents_at(artifacts: dict[str, Artifact], begin: int, end: int) -> list[NamedDocument]:
    """Return the documents in the rows at the positions [begin, end) of ORDER, each once, in their order there."""
    chunk = need_stage(artifacts, "chunk")
    rows = set(chunk.table("order").column("row").slice(begin, end - begin).to_pylist())
    ids = list(dict.fromkeys(segment["doc_id"] for segment in segments_of(chunk, rows)))
    found = documents_of(need_stage(artifacts, "sample"), ids, ["doc_id", "source", "origin"])
    return [named(found[doc_id]) for doc_id in ids]


def segments_of(chunk: Artifact, rows: Collection[int]) -> list[SpanRow]:
    """Return the segments of documents in rows of SEQUENCES, in order."""
    found = rows_at(chunk, SpanRow, rows, by="row")
    return sorted(found, key=lambda span: (span["row"], span["tok_start"]))


TABLES: dict[type, str] = {
    DocumentRow: "documents",
    LeakRow: "leaks",
    LedgerRow: "ledger",
    SequenceRow: "sequences",
    SpanRow: "spans",
}
"""Rows that are looked up -> the table that they are in."""

Row = TypeVar("Row")


def rows_at(
    artifact: Artifact,
    kind: type[Row],
    wanted: Collection[Any],
    columns: list[str] | None = None,
    *,
    by: str = "doc_id",
    parts: Collection[int] | None = None,
) -> list[Row]:
    """Return the rows of a kind whose column `by` has a wanted value, of all parts or those of some numbers, with all
    columns or those named."""
    found: list[Row] = []
    if not wanted:
        return found
    files = artifact.files(TABLES[kind])
    for path in files if parts is None else [files[part] for part in sorted(parts) if part < len(files)]:
        rows = read_table(path, columns)
        values = pa.array(sorted(wanted), rows.schema.field(by).type)
        found += rows_of(rows.filter(pc.is_in(rows.column(by), value_set=values)), kind)
    return found


def documents_of(
    artifact: Artifact,
    ids: Collection[bytes],
    columns: list[str] | None = None,
    *,
    parts: Collection[int] | None = None,
) -> dict[bytes, DocumentRow]:
    """Return the row of each document by its id, as `rows_at` finds it; of a cut one that of its first piece."""
    return {row["doc_id"]: row for row in reversed(rows_at(artifact, DocumentRow, ids, columns, parts=parts))}


def parts_of(artifact: Artifact, table: str, columns: list[str] | None) -> Iterator[pa.Table]:
    """Return the parts of a table, one in memory at a time; all columns for None."""
    return (read_table(path, columns) for path in artifact.files(table))


def dropped_copies(dedup: Artifact) -> Iterator[tuple[bytes, bytes]]:
    """Yield the ids of each document that was dropped as a copy and of the one that was kept.

    A document that lost a passage to another is no copy of it.
    """
    for part in parts_of(dedup, "ledger", ["doc_id", "action", "evidence"]):
        for row in part.filter(pc.equal(part.column("action"), DROP)).to_pylist():
            if kept := Survivor.of(row["evidence"]):
                yield row["doc_id"], bytes.fromhex(kept.survivor)


def text_kinds(clean: Artifact, documents: Sequence[DocumentRow]) -> dict[bytes, str | None]:
    """Return doc_id -> kind of documents, given as rows of DOCUMENTS that clean read.

    None where a kind cannot be recognised from the artifact alone, because the recipe brings lists or functions.
    """
    kept = rows_at(clean, DocumentRow, {document["doc_id"] for document in documents}, ["doc_id", "text_kind"])
    kinds = {row["doc_id"]: row["text_kind"] for row in kept}
    dropped = [document for document in documents if document["doc_id"] not in kinds]
    config = settings_of(clean) if dropped else None
    for document in dropped:
        kind = None if config is None else KINDS[recognised(config, document).contexts.text_kinds[0]]
        kinds[document["doc_id"]] = kind
    return kinds


def settings_of(clean: Artifact) -> "CleanConfig | None":
    """Return the configuration of a clean artifact; None where it had lists or functions of the recipe, whose paths are
    not part of the identity."""
    # Takes a tenth of a second, which documents that were kept do not need.
    from pydantic import ValidationError

    from tasks.clean.config import CleanConfig

    try:
        return CleanConfig.model_validate(manifest_of(clean)["identity_parts"]["params"])
    except ValidationError:
        return None


def recognised(config: "CleanConfig", document: DocumentRow) -> "DocumentBatch":
    """Return one row of DOCUMENTS as a batch whose kind clean has recognised."""
    # Loads numba, which documents that were kept do not need.
    from tasks.clean.batch import iter_batches
    from tasks.clean.chain import recognise_batch

    row = {name: document[name] for name in DOCUMENTS.names}
    (batch,) = iter_batches(pa.Table.from_pylist([row], schema=DOCUMENTS), config.emoji)
    recognise_batch(batch, np.zeros(1, np.int64), config)
    return batch


def sample_parts(files: list[Path]) -> Iterator[tuple[int, Path]]:
    """Yield at most MAX_PARTS of the files, evenly spread, with their index."""
    step = max(1, -(-len(files) // MAX_PARTS))
    yield from ((index, files[index]) for index in range(0, len(files), step))
