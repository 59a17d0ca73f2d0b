"""Print documents, training steps, benchmark items and tokenizers of a run in a terminal.

`list_items` reads benchmark items (leaked, clean or unmatchable) from the LEAKS table.
"""

from collections import Counter
from pathlib import Path
from typing import NotRequired, TypedDict

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.markup import escape

from flows.metrics.escaping import escaped_line
from flows.metrics.lines import ComparedTokenizer
from flows.reports.document import Table
from flows.runs.document_history import DocumentHistory, KeptDocument, describe_event
from flows.runs.record import root_option
from flows.runs.run_documents import StepRead, documents_of
from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.results import DecontaminateResult
from tasks.artifacts.tables.rows import LeakRow, RejectRow, rows_of
from tasks.sample.formats import named_record

SHOWN_CHARS = 60
"""Characters of a document's text beside its name."""

STATES = ("leaked", "clean", "unmatchable")


class ItemLeak(TypedDict):
    """A leak: the document, with its place where dedup's table is there, the bytes that it shares with the item, and
    how many of the item's n-grams matched."""

    doc_id: str
    source: NotRequired[str]
    path: NotRequired[str]
    record: NotRequired[int]
    form: str
    matched: int
    total: int
    start: int | None
    end: int | None
    remains: int


class BenchmarkItem(TypedDict):
    """An item of a benchmark: leaked and where, clean or unmatchable."""

    benchmark: str
    item_id: str
    state: str
    leaks: list[ItemLeak]


def _place(path: str, record: int) -> str:
    """Return the name of a file and of a record in it for a line with markup."""
    return f"{escape(escaped_line(path))} {named_record(path, record)}"


def print_document_history(life: DocumentHistory, console: Console) -> None:
    """Print one document: its origin, what each stage did to it, and its outcome."""
    console.print(f"[bold]{life.doc_id}[/]  {escape(life.source)}: {_place(life.path, life.record)}, byte {life.byte}")
    console.print(f"  [dim]{escape(' '.join(life.excerpt.split()))}[/]")
    if life.text_kind is not None:
        console.print(f"  kind of text: {life.text_kind.replace('_', ' ')}")
    for event in life.events:
        console.print(f"  {event['stage']:<15}{escape(describe_event(event))}")
        if "survivor" in event:
            console.print(f"  {'':<15}{escape(_format_survivor(event['survivor']))}")
    console.print(f"  [bold]outcome:[/] {escape(life.outcome)}\n")


def _format_survivor(survivor: KeptDocument) -> str:
    """Return the document that was kept instead of a duplicate, and the artifact that contains it."""
    holder = f"the earlier dedup artifact {survivor['earlier']}" if "earlier" in survivor else "this run"
    if "path" not in survivor or "source" not in survivor or "record" not in survivor or "text" not in survivor:
        return f"kept: {survivor['doc_id']} of {holder}, which is not under this root"
    place = (
        f"{survivor['source']}: {escaped_line(survivor['path'])} {named_record(survivor['path'], survivor['record'])}"
    )
    return f"kept: {place}, in {holder}: {' '.join(survivor['text'].split())}"


def print_step(step: StepRead, run_id: str, root: Path, console: Console) -> None:
    """Print the documents that one training step read."""
    state = "applied" if step["applied"] else "skipped by the guard"
    loss = f", loss {step['loss']:.4f}" if step["loss"] is not None else ""
    console.print(f"[bold]step {step['step']}[/]: {step['rows']} sequences, {state}{loss}")
    rows = [
        (
            document["doc_id"][:12],
            document["source"],
            document["tokens"],
            escaped_line(document["path"]),
            " ".join(document["text"].split())[:SHOWN_CHARS],
        )
        for document in step["documents"]
    ]
    columns = ("document", "source", "tokens", "path", "text")
    console.print(Table(columns, rows, texts=("path", "text")).rich())
    console.print(
        f"history of one document: bessemer data history DOCUMENT --run {run_id}{root_option(root)}; sequences,"
        f" segments and byte ranges: --json",
        style="dim",
        markup=False,
        soft_wrap=True,
    )


def print_benchmark_item(item: BenchmarkItem, console: Console) -> None:
    """Print one benchmark item: its state, and each document that contains it."""
    colour = "bold red" if item["leaks"] else "dim"
    console.print(f"[{colour}]{item['state']:<12}[/]{escape(item['benchmark'])}  {escape(item['item_id'])}")
    for leak in item["leaks"]:
        place = ""
        if "source" in leak and "path" in leak and "record" in leak:
            place = f"{escape(leak['source'])}: {_place(leak['path'], leak['record'])}  "
        stays = ", still in the text" if leak["remains"] else ""
        console.print(
            f"            [dim]{leak['doc_id'][:12]}[/]  {place}bytes {leak['start']:,} to {leak['end']:,},"
            f" {leak['form']}, {leak['matched']:,} of {leak['total']:,}{stays}"
        )


def print_rejected_record(reject: RejectRow, console: Console) -> None:
    """Print one record that could not be read."""
    console.print(
        f"[bold]rejected[/]  {escape(reject['source'])}: {_place(reject['path'], reject['record'])},"
        f" byte {reject['byte']}: {escape(reject['reason'])}"
    )
    console.print(f"  [dim]{escape(reject['excerpt'])}[/]\n")


def tokenizers_table(found: list[ComparedTokenizer]) -> Table:
    """Return a table of tokenizers by the tokens that a text takes; `changed lines` are lines that decoding changes."""
    scored = any(line["scored_bytes"] for line in found)
    names = ("kind", "vocabulary", "tokens", "per character", "per word", "bytes", "unknown", "changed lines")
    rows = [
        (
            line["path"],
            line["kind"],
            line["pieces"],
            line["tokens"],
            f"{line['tokens_per_character']:.3f}",
            f"{line['tokens_per_word'] or 0:.2f}",
            f"{line['byte_share']:.1%}",
            f"{line['unknown_share']:.1%}",
            f"{line['lost_lines']:,} of {line['lines']:,}",
            *([f"{line['bits_per_byte']:.3f}" if line["scored_bytes"] else ""] if scored else ()),
        )
        for line in found
    ]
    return Table(("tokenizer", *names, *(["bits per byte"] if scored else ())), rows, texts=("tokenizer", "kind"))


def list_items(artifacts: dict[str, Artifact], benchmarks: list[str], states: list[str]) -> list[BenchmarkItem]:
    """Return the items of the given benchmarks and states, in order; InputError for a benchmark that the run did not
    check."""
    artifact = artifacts["decontaminate"]
    known = DecontaminateResult.of(artifact.report).benchmarks
    for name in benchmarks:
        if name not in known:
            raise InputError(f"{name}: the run checked no benchmark of this name; it checked {', '.join(known)}")
    table = artifact.table("leaks")
    for column, wanted in (("benchmark", benchmarks), ("state", states)):
        table = table.filter(pc.is_in(table.column(column), pa.array(wanted, pa.string())))
    ids: set[bytes] = set(table.column("doc_id").drop_null().to_pylist())
    columns = ["doc_id", "source", "origin"]
    documents = documents_of(artifacts["dedup"], ids, columns) if "dedup" in artifacts else {}
    items: dict[tuple[str, str], BenchmarkItem] = {}
    for row in rows_of(table, LeakRow):
        benchmark, item_id = row["benchmark"], row["item_id"]
        new: BenchmarkItem = {"benchmark": benchmark, "item_id": item_id, "state": row["state"], "leaks": []}
        item = items.setdefault((benchmark, item_id), new)
        if row["doc_id"] is not None:
            leak: ItemLeak = {
                "doc_id": row["doc_id"].hex(),
                "form": row["form"],
                "matched": row["matched"],
                "total": row["total"],
                "start": row["start"],
                "end": row["end"],
                "remains": row["remains"],
            }
            if document := documents.get(row["doc_id"]):
                origin = document["origin"]
                leak.update(source=document["source"], path=origin["path"], record=origin["record"])
            item["leaks"].append(leak)
    return list(items.values())


def format_item_states(items: list[BenchmarkItem]) -> str:
    """Return the counts by state, such as `3 leaked, 3,957 clean, 40 unmatchable`."""
    counts = Counter(item["state"] for item in items)
    return ", ".join(f"{counts[state]:,} {state}" for state in STATES if counts[state]) or "no items"
