"""Lives of documents and contents of steps, in words for a terminal."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.lives import Life
from flows.wording import compact

MOST_STEPS = 12


def stages_told(record: dict[str, Any]) -> str:
    """What a run did to its stages, in a few words: `6 reused, 2 built`, `2 built, failed in dedup`."""
    outcomes = Counter(entry["outcome"] for entry in record["stages"])
    ended = ("failed", "interrupted")
    words = [f"{count} {outcome}" for outcome, count in outcomes.items() if outcome not in ended]
    words += [
        f"[red]{entry['outcome']} in {entry['stage']}[/]" for entry in record["stages"] if entry["outcome"] in ended
    ]
    return ", ".join(words) or "-"


def model_told(model: Mapping[str, Any]) -> str:
    """`gpt 0.9M`; the architecture alone where no parameters stand."""
    parameters = "" if model["parameters"] is None else f" {compact(model['parameters'])}"
    return f"{model['architecture'] or '-'}{parameters}"


def tell_life(life: Life, console: Console) -> None:
    """One document: where it came from, what each stage did, how it ended."""
    console.print(
        f"[bold]{life.doc_id}[/]  {escape(life.source)}: {escape(life.path)} record {life.record}, byte {life.byte}"
    )
    console.print(f"  [dim]{escape(' '.join(life.excerpt.split()))}[/]")
    for event in life.events:
        console.print(f"  {event['stage']:<15}{escape(event_words(event))}")
        if "survivor" in event:
            console.print(f"  {'':<15}{escape(_survivor(event['survivor']))}")
    console.print(f"  [bold]fate:[/] {escape(life.fate)}\n")


def leak_counts_table(counts: list[dict[str, Any]]) -> Table:
    """By benchmark: items, and how many are leaked, clean, unmatchable; leaked ones that are still in the text."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("benchmark")
    for name in ("items", "leaked", "clean", "unmatchable", "remains"):
        table.add_column("still in the text" if name == "remains" else name, justify="right")
    for line in counts:
        table.add_row(escape(line["benchmark"]), *(f"{line[name]:,}" for name in list(line)[1:]))
    return table


def bases_table(found: list[dict[str, Any]]) -> Table:
    """Vocabularies by the tokens that a text takes; `not given back` are lines that decoding changes."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("vocabulary")
    names = ["kind", "pieces", "tokens", "a character", "a word", "bytes", "unknown", "lines not given back"]
    scored = any(line["scored_bytes"] for line in found)
    for name in [*names, *(["bits per byte"] if scored else [])]:
        table.add_column(name, justify="left" if name == "kind" else "right")
    for line in found:
        shares = (f"{line[name]:.1%}" for name in ("byte_share", "unknown_share"))
        lost = f"{line['lost_lines']:,} of {line['lines']:,}"
        each = (f"{line['tokens_per_character']:.3f}", f"{line['tokens_per_word'] or 0:.2f}")
        counts = (f"{line['pieces']:,}", f"{line['tokens']:,}")
        bits = f"{line['bits_per_byte']:.3f}" if line["scored_bytes"] else ""
        table.add_row(escape(line["path"]), line["kind"], *counts, *each, *shares, lost, *([bits] if scored else []))
    return table


def tell_item(item: dict[str, Any], console: Console) -> None:
    """One benchmark item: its state, and under it each document that holds it."""
    colour = "bold red" if item["leaks"] else "dim"
    console.print(f"[{colour}]{item['state']:<12}[/]{escape(item['benchmark'])}  {escape(item['item_id'])}")
    for leak in item["leaks"]:
        place = f"{escape(leak['source'])}: {escape(leak['path'])} record {leak['record']}  " if "path" in leak else ""
        stays = ", still in the text" if leak["remains"] else ""
        console.print(
            f"            [dim]{leak['doc_id'][:12]}[/]  {place}bytes {leak['start']:,} to {leak['end']:,},"
            f" {leak['form']}, {leak['matched']:,} of {leak['total']:,}{stays}"
        )


def _survivor(survivor: dict[str, Any]) -> str:
    """The document that stays in a duplicate's place, and the earlier run's artifact that holds it."""
    holder = f"the earlier dedup artifact {survivor['earlier']}" if "earlier" in survivor else "this run"
    if "path" not in survivor:
        return f"stays: {survivor['doc_id']} of {holder}, which does not stand under this root"
    place = f"{survivor['source']}: {survivor['path']} record {survivor['record']}"
    return f"stays: {place}, in {holder}: {' '.join(survivor['text'].split())}"


def event_words(event: dict[str, Any]) -> str:
    """One event of a life in words, without its stage."""
    what = event["what"]
    if what == "sampled":
        return f"sampled, {event['bytes']} bytes"
    if what == "packed":
        rows = event["rows"]
        where = f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} to {rows[-1]}" if rows else "no row"
        return f"packed as {event['tokens']} tokens in {where}"
    if what == "trained":
        steps = [str(step) for step in event["steps"][:MOST_STEPS]]
        more = f" and {len(event['steps']) - MOST_STEPS} more" if len(event["steps"]) > MOST_STEPS else ""
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


def tell_reject(reject: dict[str, Any], console: Console) -> None:
    """One record that could not be read."""
    console.print(
        f"[bold]rejected[/]  {escape(reject['source'])}: {escape(reject['path'])} record {reject['record']},"
        f" byte {reject['byte']}: {escape(reject['reason'])}"
    )
    console.print(f"  [dim]{escape(reject['excerpt'])}[/]\n")


def tell_step(told: dict[str, Any], run_id: str, console: Console) -> None:
    """The documents of one step as a table."""
    state = "applied" if told["applied"] else "skipped by the guard"
    loss = f", loss {told['loss']:.4f}" if told["loss"] is not None else ""
    console.print(f"[bold]step {told['step']}[/]: {told['rows']} rows, {state}{loss}")
    table = Table(box=None, header_style="bold", pad_edge=False, expand=True)
    table.add_column("document", no_wrap=True, min_width=12)
    table.add_column("source", no_wrap=True, max_width=14)
    table.add_column("tokens", no_wrap=True, min_width=6, justify="right")
    table.add_column("path", no_wrap=True, ratio=2)
    table.add_column("text", no_wrap=True, ratio=3)
    for document in told["documents"]:
        table.add_row(
            document["doc_id"][:12],
            escape(document["source"]),
            str(document["tokens"]),
            escape(document["path"]),
            escape(" ".join(document["text"].split())),
        )
    console.print(table)
    console.print(
        f"[dim]the life of one of them: bessemer why DOCUMENT --run {run_id}; rows, pieces, byte ranges: --json[/]"
    )
