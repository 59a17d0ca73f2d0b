"""Preview what a stage did to a few documents of a run, selected by a seed, from artifacts alone."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import NotRequired, TypedDict, TypeVar

import numpy as np

from flows.inspection.preview_rows import (
    InputSettings,
    Passage,
    Selection,
    documents,
    isolate_edit,
    ledger_rows,
    model_inputs,
    rules_of,
)
from flows.metrics.text_diff import EVEN_PIECE, ODD_PIECE, REMOVED, SAME, Segments, inline_difference, shared_passages
from flows.runs.lineage import need_stage
from flows.runs.run_documents import NamedDocument, documents_of, named, rows_at, segments_of, text_kinds
from model.data.row_format import RowFormat
from model.errors import InputError, RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.results import ChunkResult, RowFacts
from tasks.artifacts.tables.files import read_table
from tasks.artifacts.tables.ledger import CUT, DROP, EDIT
from tasks.artifacts.tables.rows import DocumentRow, ItemRow, LedgerRow, SequenceRow, SpanRow, Survivor, rows_of
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.open import open_tokenizer


class ShownItem(TypedDict):
    """An item of a benchmark."""

    context: str
    choices: list[str]
    answer: str
    match_text: str


class DocumentView(Passage, NamedDocument):
    """A document before and after a stage; of a row of LEDGER also its numbers."""

    record: int
    action: NotRequired[str]
    rule: NotRequired[str]
    value: NotRequired[float | None]
    limit: NotRequired[float | None]
    bytes_in: NotRequired[int]
    bytes_out: NotRequired[int]
    text_kind: NotRequired[str | None]
    survivor: "NotRequired[DocumentView]"
    """The document that was kept in its place."""
    item: NotRequired[ShownItem]
    """What was cut out of it."""
    pieces: NotRequired[list[str]]
    ids: NotRequired[list[int]]


class ShownSpan(TypedDict):
    """The tokens of a document in a row."""

    row: int
    tok_start: int
    tok_len: int
    doc_id: str
    piece: int
    start: int
    end: int


class RowView(Passage):
    """A row of SEQUENCES, its documents, and what the network reads and writes of it."""

    source: str
    spans: list[ShownSpan]
    as_read: list[Passage]


View = DocumentView | RowView

Artifacts = dict[str, Artifact]

SHOWN = {"clean": (DROP, EDIT), "dedup": (DROP,), "decontaminate": (DROP, CUT)}
"""Ledger actions that are shown, by stage."""

NOTHING = {
    "clean": "changed and dropped nothing",
    "dedup": "removed nothing",
    "decontaminate": "cut and dropped nothing",
}
"""What these stages did where there is no view."""

CONTEXT_CHARS = 200

VOCAB_CHARS = 1200


def peek(artifacts: Artifacts, stage: str, selection: Selection) -> Sequence[View]:
    """Return views of what the stage did to a few documents, none where it did nothing; raise InputError where no
    document matches the selection."""
    if stage not in VIEWS:
        raise RecipeError(f"peek {stage}: unknown stage; stages are {', '.join(VIEWS)}")
    if selection.rule is not None and stage not in SHOWN:
        raise RecipeError(f"peek {stage} --rule: only {', '.join(SHOWN)} have rules")
    views = VIEWS[stage](artifacts, selection)
    known = selection.source is None or selection.source in artifacts[stage].report.sources
    if not views and not (stage in SHOWN and selection.rule is None and known):
        raise _nothing_fits(artifacts, stage, selection)
    return views


def _sample(artifacts: Artifacts, selection: Selection) -> list[DocumentView]:
    rows = _documents_of(need_stage(artifacts, "sample"), selection)
    return [_view(row, "as read", [(SAME, row["text"])]) for row in rows]


def _clean(artifacts: Artifacts, selection: Selection) -> list[DocumentView]:
    sample, clean = need_stage(artifacts, "sample"), need_stage(artifacts, "clean")
    rows = _chosen(sample, clean, SHOWN["clean"], selection)
    before = documents_of(sample, [row["doc_id"] for row in rows])
    after = documents_of(clean, [row["doc_id"] for row in rows])
    kinds = text_kinds(clean, list(before.values()))
    views: list[DocumentView] = []
    for row in rows:
        document = before[row["doc_id"]]
        if row["action"] == DROP:
            views.append(_view(document, _dropped(row), [(REMOVED, document["text"])], row))
        else:
            cleaned = after[row["doc_id"]]["text"]
            alone = isolate_edit(clean, document, cleaned, selection.rule) if selection.rule is not None else None
            title = f"edited by {', '.join(rules_of(row))}"
            if alone is not None and len(rules_of(row)) > 1:
                title += f"; shown is {selection.rule} alone"
            views.append(_view(document, title, inline_difference(*(alone or (document["text"], cleaned))), row))
        views[-1]["text_kind"] = kinds[row["doc_id"]]
    return views


def _dropped(row: LedgerRow) -> str:
    value, limit = row["value"], row["limit"]
    measured = "" if value is None or limit is None else f", {value:.4g} against {limit:.4g}"
    return f"dropped by {row['rule']}{measured}"


def _dedup(artifacts: Artifacts, selection: Selection) -> list[DocumentView]:
    clean, dedup = need_stage(artifacts, "clean"), need_stage(artifacts, "dedup")
    rows = _chosen(clean, dedup, SHOWN["dedup"], selection)
    pairs = [(row, bytes.fromhex(evidence.survivor)) for row in rows if (evidence := Survivor.of(row["evidence"]))]
    texts = documents_of(clean, [one for row, survivor in pairs for one in (row["doc_id"], survivor)])
    views: list[DocumentView] = []
    for row, survivor in pairs:
        removed, kept = texts[row["doc_id"]], texts.get(survivor)
        if kept is None:
            title = f"{row['rule']}: its survivor {survivor.hex()} is of an earlier run"
            views.append(_view(removed, title, [(SAME, removed["text"])], row))
            continue
        view = _view(removed, f"{_dropped(row)} (true Jaccard)", shared_passages(removed["text"], kept["text"]), row)
        view["survivor"] = _view(kept, "stays", shared_passages(kept["text"], removed["text"]))
        views.append(view)
    return views


def _decontaminate(artifacts: Artifacts, selection: Selection) -> list[DocumentView]:
    dedup, decontaminate = need_stage(artifacts, "dedup"), need_stage(artifacts, "decontaminate")
    rows = _chosen(dedup, decontaminate, SHOWN["decontaminate"], selection)
    texts = documents_of(dedup, [row["doc_id"] for row in rows])
    all_items = rows_of(decontaminate.table("items"), ItemRow)
    items = {(item["benchmark"], item["item_id"]): item for item in all_items}
    views: list[DocumentView] = []
    for row in rows:
        document, evidence = texts[row["doc_id"]], json.loads(row["evidence"] or "{}")
        raw, start, end = document["text"].encode(), evidence.get("start", 0), evidence.get("end", 0)
        segments = [
            (SAME, raw[:start].decode(errors="ignore")[-CONTEXT_CHARS:]),
            (REMOVED, raw[start:end].decode(errors="ignore")),
            (SAME, raw[end:].decode(errors="ignore")[:CONTEXT_CHARS]),
        ]
        item = items.get((evidence.get("benchmark"), evidence.get("item_id")))
        verb = "document dropped" if row["action"] == DROP else "passage cut"
        of_item = f" for {evidence['benchmark']} {evidence['item_id']}" if item is not None else ""
        view = _view(document, f"{verb} by {row['rule']}{of_item}, bytes {start:,} to {end:,}", segments, row)
        if item is not None:
            view["item"] = {
                "context": item["context"],
                "choices": item["choices"],
                "answer": item["answer"],
                "match_text": item["match_text"],
            }
        views.append(view)
    return views


def _vocab(artifacts: Artifacts, selection: Selection) -> list[DocumentView]:
    source, tokenizer = need_stage(artifacts, "decontaminate"), open_tokenizer(need_stage(artifacts, "vocab"))
    views: list[DocumentView] = []
    for document in _documents_of(source, selection):
        ids = tokenizer.encode(document["text"][:VOCAB_CHARS])
        pieces = [tokenizer.decode_bytes([token]).decode(errors="backslashreplace") for token in ids]
        segments = [(ODD_PIECE if index % 2 else EVEN_PIECE, piece) for index, piece in enumerate(pieces)]
        length = len(document["text"][:VOCAB_CHARS].encode())
        title = f"{len(ids)} pieces for {length} bytes, {length / max(1, len(ids)):.2f} bytes each"
        views.append({**_view(document, title, segments), "pieces": pieces, "ids": list(map(int, ids))})
    return views


def _chunk(artifacts: Artifacts, selection: Selection) -> list[RowView]:
    chunk, tokenizer = need_stage(artifacts, "chunk"), open_tokenizer(need_stage(artifacts, "vocab"))
    layout = ChunkResult.of(chunk.report).rows
    columns = ["row", "source"]
    numbered = (row for path in chunk.files("sequences") for row in rows_of(read_table(path, columns), SequenceRow))
    chosen = selection.choose(
        _of_source(numbered, selection, itemgetter("source")), lambda row: row["row"].to_bytes(8, "big")
    )
    wanted = {row["row"] for row in chosen}
    by_number = {row["row"]: row for row in rows_at(chunk, SequenceRow, wanted, by="row")}
    rows = [by_number[row["row"]] for row in chosen]
    spans: dict[int, list[SpanRow]] = {}
    for span in segments_of(chunk, wanted):
        spans.setdefault(span["row"], []).append(span)
    views: list[RowView] = []
    for row, texts in zip(rows, _as_read(artifacts, rows, tokenizer), strict=True):
        mine = spans.get(row["row"], [])
        segments = [
            (ODD_PIECE if index % 2 else EVEN_PIECE, _text_of_span(tokenizer, row["tokens"], span))
            for index, span in enumerate(mine)
        ]
        documents_in: list[ShownSpan] = [{**span, "doc_id": span["doc_id"].hex()} for span in mine]
        length = _format_length(row, mine, tokenizer.pad)
        views.append(
            {
                "title": f"row {row['row']}: {length}, {_describe_row(row, len(mine), layout)}",
                "source": row["source"],
                "segments": _between_specials(segments) if "is_next" in row else segments,
                "spans": documents_in,
                "as_read": texts,
            }
        )
    return views


def _as_read(artifacts: Artifacts, rows: list[SequenceRow], tokenizer: Tokenizer) -> list[list[Passage]]:
    """Return the model inputs and targets of each row; nothing where the rows do not declare their objective."""
    row_format = RowFormat.of(read_table(artifacts["chunk"].files("sequences")[0]).schema)
    if row_format is None or not rows:
        return [[] for _ in rows]
    tokens_RL, row_R = np.array([row["tokens"] for row in rows]), np.array([row["row"] for row in rows])
    return model_inputs(tokens_RL, row_R, row_format, tokenizer, InputSettings.of(artifacts))


def _text_of_span(tokenizer: Tokenizer, tokens: list[int], span: SpanRow) -> str:
    ids = tokens[span["tok_start"] : span["tok_start"] + span["tok_len"]]
    return tokenizer.decode_following(ids) if span["start"] else tokenizer.decode(ids)


def _format_length(row: SequenceRow, spans: list[SpanRow], pad: int) -> str:
    """Return the length, such as `64 tokens, 26 of them padding`."""
    # Only tokens after the last document count, because some vocabularies pad with a token that has other uses.
    end = max((span["tok_start"] + span["tok_len"] for span in spans), default=0)
    padding = row["tokens"][end:].count(pad)
    return f"{len(row['tokens'])} tokens" + (f", {padding} of them padding" if padding else "")


def _describe_row(row: SequenceRow, count: int, layout: RowFacts) -> str:
    segments = f"{count} segment{'' if count == 1 else 's'}"
    if "is_next" in row:
        labels = {True: "B follows A in its document", False: "B comes from another document", None: "A alone"}
        return labels[row["is_next"]]
    if layout["objective"] == "span_corruption":
        return f"{segments}, raw: cut into inputs and targets while training reads"
    return f"{segments}, loss from token {row['loss_start']}"


def _between_specials(segments: Segments) -> Segments:
    """Return the segments as BERT reads them: [CLS] A [SEP] B [SEP]."""
    return [(SAME, "[CLS] "), *(part for segment in segments for part in (segment, (SAME, " [SEP] ")))]


VIEWS: dict[str, Callable[[Artifacts, Selection], Sequence[View]]] = {
    "sample": _sample,
    "clean": _clean,
    "dedup": _dedup,
    "decontaminate": _decontaminate,
    "vocab": _vocab,
    "chunk": _chunk,
}


def _nothing_fits(artifacts: Artifacts, stage: str, selection: Selection) -> InputError:
    """Return the error for a selection that matches no document, with the known rules and sources."""
    fits = [
        f"source {selection.source}" if selection.source else "",
        f"rule {selection.rule}" if selection.rule else "",
    ]
    choice = f" for {' and '.join(filter(None, fits))}" if any(fits) else ""
    known: list[str] = []
    if selection.rule is not None:
        counts = Counter(name for row in ledger_rows(artifacts[stage], SHOWN[stage], None) for name in rules_of(row))
        listed = ", ".join(f"{name} ({count:,})" for name, count in counts.most_common())
        known.append(f"rules and edits that did something: {listed or 'none'}")
    if selection.source is not None:
        known.append(f"sources: {', '.join(sorted(artifacts[stage].report.sources))}")
    return InputError("; ".join([f"peek {stage}: the run's artifact holds nothing of it{choice}", *known]))


def _chosen(parent: Artifact, artifact: Artifact, actions: tuple[str, ...], selection: Selection) -> list[LedgerRow]:
    rows = ledger_rows(artifact, actions, selection.rule)
    if selection.source is None:
        return selection.choose(rows, itemgetter("doc_id"))
    sources = {row["doc_id"]: row["source"] for row in documents(parent, ["doc_id", "source"])}
    return selection.choose(_of_source(rows, selection, lambda row: sources[row["doc_id"]]), itemgetter("doc_id"))


def _documents_of(artifact: Artifact, selection: Selection) -> list[DocumentRow]:
    rows = documents(artifact, ["doc_id", "source"])
    chosen = selection.choose(_of_source(rows, selection, itemgetter("source")), itemgetter("doc_id"))
    texts = documents_of(artifact, [row["doc_id"] for row in chosen])
    return [texts[row["doc_id"]] for row in chosen]


Row = TypeVar("Row")


def _of_source(rows: Iterable[Row], selection: Selection, source: Callable[[Row], str]) -> Iterable[Row]:
    return rows if selection.source is None else (row for row in rows if source(row) == selection.source)


def _view(document: DocumentRow, title: str, segments: Segments, row: LedgerRow | None = None) -> DocumentView:
    view: DocumentView = {
        **named(document),
        "record": document["origin"]["record"],
        "title": title,
        "segments": [segment for segment in segments if segment[1]],
    }
    if row is not None:
        view.update(
            action=row["action"],
            rule=row["rule"],
            value=row["value"],
            limit=row["limit"],
            bytes_in=row["bytes_in"],
            bytes_out=row["bytes_out"],
        )
    return view
