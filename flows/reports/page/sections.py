"""Look up the duplicate pairs, the edited documents and the training steps that the run page shows.

Duplicates are shown as the text difference within pairs; a cluster is a kept document with the duplicates removed in
favour of it. Steps are those with events and an even selection of the others; `bessemer data step RUN N` shows any
step.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, NotRequired

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.metrics.text_diff import SAME, WORD, Segments, inline_difference
from flows.reports.charts.figure import thin
from flows.reports.charts.training import KINDS
from flows.reports.page.examples import SHOWN_OPEN, clip, is_too_large, masked
from flows.runs.run_documents import NamedDocument, documents_of, named, rows_at, rows_read, sample_parts
from model.checkpoint.metrics import final_rows, final_steps
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.tables.files import read_table
from tasks.artifacts.tables.ledger import EDIT
from tasks.artifacts.tables.rows import DocumentRow, LedgerRow, SpanRow, Survivor, rows_of
from tasks.clean.presets import PERSONAL

MAX_CLUSTERS, MAX_PAIRS = 4, 4
"""Pairs of the largest clusters, and pairs of the lowest similarity."""

MAX_WORDS = 260
"""Words of each text that are compared."""

CONTEXT_WORDS = 12
"""Words shown around a difference."""

OMITTED = "omitted"

EDIT_CONTEXT, EDIT_CHARS = 80, 20_000
"""Characters shown before the first difference, at least; and from a text's beginning, those in which it is sought."""

MAX_STEPS, MAX_EVENT_STEPS = 24, 12
"""Steps that are shown, and how many of them may be steps with events."""

MAX_DOCUMENTS_PER_STEP = 6

EXCERPT_CHARS = 140


@dataclass(frozen=True)
class DuplicatePair:
    """A removed document and the kept one of a cluster of `documents`; in `parts`, `removed` and `added` text is of one
    of the two, and `omitted` is in place of text that both have."""

    documents: int
    rule: str
    jaccard: float
    removed: NamedDocument
    kept: NamedDocument
    parts: Segments


class _Removal(NamedTuple):
    """A row of dedup's LEDGER; the least similar pair is the smallest."""

    jaccard: float
    doc_id: bytes
    rule: str
    survivor: str


def duplicate_pairs(artifacts: dict[str, Artifact]) -> list[DuplicatePair]:
    """Return pairs of the largest clusters, then the pairs of lowest similarity."""
    if "dedup" not in artifacts or "clean" not in artifacts:
        return []
    clusters: dict[str, list[_Removal]] = {}
    for _, path in sample_parts(artifacts["dedup"].files("ledger")):
        for row in _removals(read_table(path)):
            clusters.setdefault(row.survivor, []).append(row)
    ordered = sorted(clusters.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    least = [min(rows) for _, rows in ordered]
    near = sorted(row for row in least[MAX_CLUSTERS:] if row.jaccard < 1)
    chosen = [*least[:MAX_CLUSTERS], *near[:MAX_PAIRS]]
    wanted = {row.doc_id for row in chosen} | {bytes.fromhex(row.survivor) for row in chosen}
    columns = ["doc_id", "source", "origin", "text"]
    parts = [part for part, _ in sample_parts(artifacts["clean"].files("documents"))]
    texts = documents_of(artifacts["clean"], wanted, columns, parts=parts)
    found: list[DuplicatePair] = []
    for row in chosen:
        mine, other = texts.get(row.doc_id), texts.get(bytes.fromhex(row.survivor))
        if mine is not None and other is not None:
            found.append(
                DuplicatePair(
                    documents=len(clusters[row.survivor]) + 1,
                    rule=row.rule,
                    jaccard=row.jaccard,
                    removed=named(mine),
                    kept=named(other),
                    parts=difference(mine["text"], other["text"]),
                )
            )
    return found


@dataclass(frozen=True)
class EditedDocument:
    """A document's text before and after edits, from a little before the first place where they differ."""

    rule: str
    source: str
    parts: Segments


def edited_documents(artifacts: dict[str, Artifact]) -> list[EditedDocument]:
    """Return some documents that clean edited and kept, of different edits.

    Personal data are masked in both texts, so that edits which only replace these are left out.
    """
    if not {"sample", "clean"} <= artifacts.keys():
        return []
    chosen: dict[str, tuple[bytes, int, str]] = {}
    for part, path in sample_parts(artifacts["clean"].files("ledger")):
        ledger = read_table(path)
        edited = rows_of(ledger.filter(pc.equal(ledger.column("action"), EDIT)), LedgerRow)
        for row in edited:
            edits = [edit for edit in row["rule"].split("+") if edit not in PERSONAL]
            if edits and (edits[0] not in chosen or row["doc_id"] < chosen[edits[0]][0]):
                chosen[edits[0]] = row["doc_id"], part, ", ".join(edits)
    rows = sorted(chosen.values(), key=lambda row: row[0])[:SHOWN_OPEN]
    ids, places = {doc_id for doc_id, _, _ in rows}, {part for _, part, _ in rows}
    columns = ["doc_id", "source", "text"]
    before, after = (documents_of(artifacts[stage], ids, columns, parts=places) for stage in ("sample", "clean"))
    found: list[EditedDocument] = []
    for doc_id, _, rule in rows:
        if doc_id not in before or doc_id not in after:
            continue
        old, new = (masked(documents[doc_id]["text"][:EDIT_CHARS]) for documents in (before, after))
        differs = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None)
        if differs is not None:
            start = old.rfind("\n", 0, max(0, differs - EDIT_CONTEXT)) + 1
            found.append(EditedDocument(rule, before[doc_id]["source"], difference(old[start:], new[start:])))
    return found


def _removals(ledger: pa.Table) -> Iterator[_Removal]:
    for row in rows_of(ledger.filter(pc.equal(ledger.column("action"), "drop")), LedgerRow):
        kept = Survivor.of(row["evidence"])
        # A kept document of an earlier run is not among this run's documents.
        if kept is not None and kept.jaccard is not None and kept.earlier is None:
            yield _Removal(kept.jaccard, row["doc_id"], row["rule"], kept.survivor)


def difference(removed: str, kept: str) -> Segments:
    """Return the word difference of the first MAX_WORDS words of two texts as (kind, text).

    Long passages that are the same are shortened to the words around a difference.
    """
    mine, other = ("".join(WORD.findall(masked(text))[:MAX_WORDS]) for text in (removed, kept))
    segments = inline_difference(mine, other)
    parts: Segments = []
    for number, (kind, text) in enumerate(segments):
        if kind == SAME:
            parts += _shorten(WORD.findall(text), first=number == 0, last=number == len(segments) - 1)
        else:
            parts.append((kind, text))
    return parts


def _shorten(words: list[str], *, first: bool, last: bool) -> Segments:
    before = 0 if first else 2 * CONTEXT_WORDS
    after = 0 if last else 2 * CONTEXT_WORDS
    if first and last:
        # The compared texts are the same; their beginning is shown.
        before = 4 * CONTEXT_WORDS
    if len(words) <= before + after:
        return [(SAME, "".join(words))]
    end = len(words) - after
    count = sum(not word.isspace() for word in words[before:end])
    parts = [
        (SAME, "".join(words[:before])),
        (OMITTED, f"… {count:,} identical words …"),
        (SAME, "".join(words[end:])),
    ]
    return [part for part in parts if part[1]]


class ReadSpan(SpanRow):
    """The longest piece of a document in a step, with all tokens of the document there, and some of its text."""

    tokens: int
    source: NotRequired[str]
    path: NotRequired[str]
    excerpt: NotRequired[str]


@dataclass(frozen=True)
class ShownStep:
    """A training step: its sequences, its events in words, and the longest of the `count` documents that it read."""

    step: int
    loss: float | None
    applied: bool
    rows: int
    happened: str
    count: int
    documents: list[ReadSpan]


def shown_steps(artifacts: dict[str, Artifact]) -> list[ShownStep]:
    """Return a selection of training steps, in order."""
    if not {"train", "chunk", "decontaminate"} <= artifacts.keys() or not artifacts["train"].rows("steps"):
        return []
    train = artifacts["train"]
    steps = final_steps(train.table("steps"))
    events = train.table("events") if train.rows("events") else None
    happened = _event_titles(events)
    chosen = _chosen(steps.column("step").to_numpy(), set(happened))
    mine = steps.filter(pc.is_in(steps.column("step"), value_set=pa.array(chosen, pa.int64()))).to_pylist()
    metrics = final_rows(train.table("metrics"), steps)
    losses = dict(zip(metrics.column("step").to_pylist(), metrics.column("loss").to_pylist(), strict=True))
    rows = rows_read(artifacts["chunk"], mine)
    segments: dict[int, list[SpanRow]] = {}
    for span in rows_at(artifacts["chunk"], SpanRow, {row for of_step in rows.values() for row in of_step}, by="row"):
        segments.setdefault(span["row"], []).append(span)
    found: list[ShownStep] = []
    for step in chosen:
        parts = [segment for row in rows[step] for segment in segments.get(row, ())]
        tokens: Counter[bytes] = Counter()
        for part in parts:
            tokens[part["doc_id"]] += part["tok_len"]
        largest = {part["doc_id"]: part for part in sorted(parts, key=lambda part: part["tok_len"])}
        shown = sorted(tokens, key=lambda doc_id: (-tokens[doc_id], doc_id))[:MAX_DOCUMENTS_PER_STEP]
        found.append(
            ShownStep(
                step=step,
                loss=losses.get(step),
                applied=any(entry["applied"] for entry in mine if entry["step"] == step),
                rows=len(rows[step]),
                happened=happened.get(step, ""),
                count=len(tokens),
                documents=[{**largest[doc_id], "tokens": tokens[doc_id]} for doc_id in shown],
            )
        )
    _look_up(artifacts["decontaminate"], [document for step in found for document in step.documents])
    return found


def _event_titles(events: pa.Table | None) -> dict[int, str]:
    """Return, by step, the titles of its events."""
    titles = {kind: title for kind, title, *_ in KINDS}
    found: dict[int, list[str]] = {}
    for row in events.select(["step", "kind"]).to_pylist() if events is not None else ():
        if row["kind"] in titles and titles[row["kind"]] not in found.setdefault(row["step"], []):
            found[row["step"]].append(titles[row["kind"]])
    return {step: ", ".join(of_step) for step, of_step in found.items() if of_step}


def _chosen(steps: np.ndarray, happened: set[int]) -> list[int]:
    """Return at most MAX_STEPS steps: up to MAX_EVENT_STEPS with events, and an even selection of the others."""
    eventful = sorted(happened & set(steps.tolist()))
    chosen = {eventful[index] for index in thin(len(eventful), MAX_EVENT_STEPS)}
    return sorted(chosen | {int(steps[index]) for index in thin(len(steps), MAX_STEPS - len(chosen))})


def _look_up(decontaminate: Artifact, documents: list[ReadSpan]) -> None:
    """Fill in source, path and excerpt of `documents`; they stay empty above MAX_DOCUMENT_BYTES of text."""
    for document in documents:
        document.update(source="", path="", excerpt="")
    if is_too_large(decontaminate):
        return
    columns = ["doc_id", "piece", "source", "origin", "text"]
    found = rows_at(decontaminate, DocumentRow, {document["doc_id"] for document in documents}, columns)
    texts = {(row["doc_id"], row["piece"]): row for row in found}
    for document in documents:
        row = texts.get((document["doc_id"], document["piece"]))
        if row is not None:
            read = row["text"].encode()[document["start"] : document["end"]].decode(errors="ignore")
            document.update(source=row["source"], path=row["origin"]["path"], excerpt=clip(read, EXCERPT_CHARS))
