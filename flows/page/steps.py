"""Documents that some training steps read: those at which something happened, and some of the others.

The page holds no more than these; `bessemer step RUN N` names those of any step.
"""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.page.event_marks import KINDS
from flows.page.excerpts import clip
from model.kept_rows import kept_rows, kept_steps
from tasks.artifact import Artifact
from tasks.tables import read_table

MOST_STEPS, MOST_EVENTS = 24, 12
"""Steps that are shown, and how many of these at most because something happened in them."""
MOST_DOCUMENTS = 6
"""Of each step."""
EXCERPT_CHARS = 140
MOST_BYTES = 4_000_000_000
"""Of documents: looking some of them up means reading all, and the page is not worth more than seconds."""


def shown_steps(artifacts: dict[str, Artifact]) -> list[dict[str, Any]]:
    """Steps in their order: number, loss, whether it moved weights, rows, what happened, and its documents, the
    longest first, each with source, path, tokens and an excerpt of what was read."""
    if not {"train", "chunk", "decontaminate"} <= artifacts.keys() or not artifacts["train"].rows("steps"):
        return []
    train = artifacts["train"]
    steps = kept_steps(train.table("steps"))
    events = train.table("events") if train.rows("events") else None
    happened = _happened(events)
    chosen = _chosen(steps.column("step").to_numpy(), set(happened))
    mine = steps.filter(pc.is_in(steps.column("step"), value_set=pa.array(chosen, pa.int64()))).to_pylist()
    metrics = kept_rows(train.table("metrics"), steps)
    losses = dict(zip(metrics.column("step").to_pylist(), metrics.column("loss").to_pylist(), strict=True))
    rows = _rows_read(artifacts["chunk"], mine)
    segments = _segments(artifacts["chunk"], {row for of_step in rows.values() for row in of_step})
    found: list[dict[str, Any]] = []
    for step in chosen:
        parts = [segment for row in rows[step] for segment in segments.get(row, ())]
        tokens: Counter[bytes] = Counter()
        for part in parts:
            tokens[part["doc_id"]] += part["tok_len"]
        largest = {part["doc_id"]: part for part in sorted(parts, key=lambda part: part["tok_len"])}
        shown = sorted(tokens, key=lambda doc_id: (-tokens[doc_id], doc_id))[:MOST_DOCUMENTS]
        found.append(
            {
                "step": step,
                "loss": losses.get(step),
                "applied": any(entry["applied"] for entry in mine if entry["step"] == step),
                "rows": len(rows[step]),
                "happened": happened.get(step, ""),
                "count": len(tokens),
                "documents": [{"tokens": tokens[doc_id], **largest[doc_id]} for doc_id in shown],
            }
        )
    _look_up(artifacts["decontaminate"], [document for step in found for document in step["documents"]])
    return found


def _happened(events: pa.Table | None) -> dict[int, str]:
    """Step -> titles of what happened in it."""
    titles = {kind: title for kind, title, *_ in KINDS}
    told: dict[int, list[str]] = {}
    for row in events.select(["step", "kind"]).to_pylist() if events is not None else ():
        if row["kind"] in titles and titles[row["kind"]] not in told.setdefault(row["step"], []):
            told[row["step"]].append(titles[row["kind"]])
    return {step: ", ".join(words) for step, words in told.items() if words}


def _chosen(steps: np.ndarray, happened: set[int]) -> list[int]:
    """At most MOST_STEPS of the steps, evenly spread, and among them those at which something happened."""
    eventful = sorted(happened & set(steps.tolist()))
    places = np.unique(np.linspace(0, len(eventful) - 1, min(len(eventful), MOST_EVENTS)).round().astype(int))
    chosen = {eventful[place] for place in places} if eventful else set()
    spread = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_STEPS - len(chosen))).round().astype(int))
    return sorted(chosen | {int(steps[place]) for place in spread})


def _rows_read(chunk: Artifact, steps: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Step -> the rows that it read, in their order."""
    order = chunk.table("order").column("row")
    rows: dict[int, list[int]] = {}
    for entry in steps:
        read = order.slice(entry["pos_start"], entry["pos_end"] - entry["pos_start"]).to_pylist()
        rows.setdefault(entry["step"], []).extend(read)
    return rows


def _segments(chunk: Artifact, rows: set[int]) -> dict[int, list[dict[str, Any]]]:
    """Row -> its segments of documents; one pass over all spans."""
    wanted = pa.array(sorted(rows), pa.int64())
    found: dict[int, list[dict[str, Any]]] = {}
    for path in chunk.files("spans"):
        spans = read_table(path)
        for span in spans.filter(pc.is_in(spans.column("row"), value_set=wanted)).to_pylist():
            found.setdefault(span["row"], []).append(span)
    return found


def _look_up(decontaminate: Artifact, documents: list[dict[str, Any]]) -> None:
    """Write source, path and excerpt into `documents`; where there is too much text, they stay empty."""
    for document in documents:
        document |= {"source": "", "path": "", "excerpt": ""}
    sizes = (record.bytes for record in decontaminate.records if record.table == "documents")
    if sum(sizes) > MOST_BYTES:
        return
    ids = pa.array(sorted({document["doc_id"] for document in documents}), pa.binary(16))
    texts: dict[tuple[bytes, int], dict[str, Any]] = {}
    for path in decontaminate.files("documents"):
        table = read_table(path).select(["doc_id", "piece", "source", "origin", "text"])
        for row in table.filter(pc.is_in(table.column("doc_id"), value_set=ids)).to_pylist():
            texts[row["doc_id"], row["piece"]] = row
    for document in documents:
        row = texts.get((document["doc_id"], document["piece"]))
        if row is not None:
            read = row["text"].encode()[document["start"] : document["end"]].decode(errors="ignore")
            document |= {"source": row["source"], "path": row["origin"]["path"], "excerpt": clip(read, EXCERPT_CHARS)}
