"""Print the end of a run: in words, or as tables of documents, mixture, loss, held-out text, scores and times.

The numbers come from `flows.metrics.run_metrics`, as do those of the run page.
"""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.metrics.accounting import describe_conservation
from flows.metrics.formatting import format_count, format_duration, format_language, format_shots, loss_unit
from flows.metrics.heldout import describe_few_shot_limits, describe_sampled_items, summarize_heldout_metrics
from flows.metrics.run_metrics import (
    SKIPPED,
    TO_COME,
    UNDER_WAY,
    collect_metrics,
    describe_base_model,
    missing_artifacts,
    read_saved_metrics,
)
from flows.reports import progress
from flows.reports.charts.scores import chance_of
from flows.reports.verdict import skipped_files, verdict
from flows.runs.guards import describe_gate
from flows.runs.record import PAGE

STAGE_RESULTS = {
    "sample": "sampled",
    "clean": "cleaned",
    "dedup": "unique",
    "decontaminate": "decontaminated",
    "chunk": "packed",
}

OUTCOME_STYLES = {**progress.OUTCOME_STYLES, "failed": "bold red", SKIPPED: "dim", TO_COME: "dim", UNDER_WAY: "cyan"}

MAX_RULES = 6


MAX_ATTENTION, ATTENTION_CHARS = 2, 170


def print_outcome(run: dict[str, Any], root: Path, console: Console) -> None:
    """Print what came out of the run whose record is `run` and what to try next, in at most 30 lines of 80 columns."""
    words = verdict(run, collect_metrics(run, read_saved_metrics(run)), root, name="latest")
    console.print()
    for text in filter(None, (words.made, words.quality, words.dropped)):
        console.print(escape(text))
    for entry in run["stages"]:
        if entry["outcome"] == "failed":
            console.print(f"[bold red]{entry['stage']} failed[/]  {escape(entry['error'])}")
    for remark in words.attention[:MAX_ATTENTION]:
        short = remark if len(remark) <= ATTENTION_CHARS else f"{remark[: ATTENTION_CHARS - 1]}…"
        console.print(f"[bold yellow]attention[/] {escape(short)}")
    if len(words.attention) > MAX_ATTENTION:
        console.print(f"          and {len(words.attention) - MAX_ATTENTION} more on the page")
    if words.next_steps:
        console.print("\n[bold]try next[/]")
    for step in words.next_steps:
        console.print(f"  {step.why + ':':<18}{escape(step.command)}", soft_wrap=True)
    page = run.get("page") or root / "runs" / run["run_id"] / PAGE
    console.print(f"[bold]page[/]  {escape(str(page))}", soft_wrap=True)


def print_summary(run: dict[str, Any], root: Path, console: Console) -> None:
    """Print one screen about the run whose record is `run`; stages that did not run are left out."""
    findings = collect_metrics(run, read_saved_metrics(run))
    console.print()
    for table in (_funnel(findings), _sources(findings), _scores(findings)):
        if table is not None:
            console.print(table)
            console.print()
    formatters = (
        _skipped_files,
        _removed,
        _recall,
        _leaks,
        _vocabulary,
        _no_scores,
        _evaluated_items,
        _shots,
        _base_model,
        _gate,
        _loss,
        _heldout_metrics,
        _times,
    )
    for line in filter(None, (format_line(findings) for format_line in formatters)):
        console.print(_hanging(line))
    for sentence in findings["made"]:
        console.print(_hanging(f"[bold]made[/]          {escape(sentence)}"))
    for remark in findings["remarks"]:
        console.print(_hanging(f"[bold yellow]warning[/]       {escape(remark)}"))
    conserved = describe_conservation(findings["conservation"])
    if conserved:
        style = "" if findings["conservation"]["balanced"] else "bold red"
        console.print(_hanging(f"[bold]documents[/]     [{style or 'default'}]{conserved}[/]"))
    for entry in run["stages"]:
        if entry["outcome"] == "failed":
            console.print(f"[bold red]{entry['stage']} failed[/]  {escape(entry['error'])}")
    for stage, problem in missing_artifacts(run).items():
        console.print(_hanging(f"[bold red]missing[/]       {stage}: {escape(problem)}"))
    page = run.get("page") or root / "runs" / run["run_id"] / PAGE
    console.print(f"[bold]page[/]          {escape(str(page))}", soft_wrap=True)


def _funnel(findings: dict[str, Any]) -> Table | None:
    lines = findings["funnel"]
    if not lines:
        return None
    stages = [stage for stage in STAGE_RESULTS if stage in lines[0]]
    table = _table("documents", "source", "read", *(STAGE_RESULTS[stage] for stage in stages), "held out", "kept")
    for line in lines:
        kept = f"{line[stages[-1]] / line['read']:.0%}" if line["read"] else "-"
        numbers = [f"{line[key]:,}" for key in ("read", *stages, "held_out")]
        table.add_row(escape(line["source"]), *numbers, kept)
    return table


def _sources(findings: dict[str, Any]) -> Table | None:
    """Return one table by source of the mixture and the held-out bits per byte."""
    mixed = {line["source"]: line for line in findings["mixture"]}
    bits = {line["source"]: line for line in findings["bits_per_byte"] if line.get("model") is not None}
    if not mixed:
        return None
    held_out = ("bits/B", "5-gram", "unigram", "xz", "gain") if bits else ()
    table = _table("mixture and held-out text", "source", "planned", "realised", "tokens", "epochs (plan)", *held_out)
    for source in [*mixed, *(source for source in bits if source not in mixed)]:
        cells = ["", "", "", ""]
        if source in mixed:
            line = mixed[source]
            cells = [f"{100 * line[key]:.2f}%" for key in ("planned_share", "realised_share")]
            planned = line.get("planned_epochs", line["epochs"])
            cells += [format_count(line["tokens"]), f"{line['epochs']:.2f} ({planned:.2f})"]
        style = "bold" if source == "all" else ""
        if source == "all":
            table.caption = (
                "all: unweighted mean of the sources; bits per byte on held-out text, lower is better (gain: reduction"
                " from the unigram)"
            )
            table.caption_justify = "left"
        table.add_row(escape(source), *cells, *(_bits(bits.get(source, {})) if bits else ()), style=style)
    return table


def _bits(line: dict[str, Any]) -> list[str]:
    values = [f"{line[who]:.3f}" if line.get(who) is not None else "-" for who in ("model", "5gram", "unigram", "xz")]
    return [*values, f"{1 - line['model'] / line['unigram']:.0%}" if line.get("unigram") else "-"]


def _scores(findings: dict[str, Any]) -> Table | None:
    cells: dict[tuple[str, int], dict[str, str]] = {}
    for row in findings["scores"]:
        if row["metric"] == "acc" and row["value"] is not None:
            error = f" ± {1.96 * row['stderr']:.0%}" if row["stderr"] is not None else ""
            cell = cells.setdefault((row["task"], row["shots"]), {})
            cell[row["subset"]] = f"{row['value']:.0%}{error} ({row['n']})"
            chance = chance_of([row])
            if chance is not None:
                cell["chance"] = f"{chance:.0%}"
    if not cells:
        return None
    table = _table("accuracy (95%, items)", "benchmark", "shots", "chance", "all", "clean", "leaked")
    for (task, shots), values in sorted(cells.items()):
        subsets = (values.get(key, "-") for key in ("chance", "all", "clean", "leaked"))
        table.add_row(escape(task), format_shots(shots), *subsets)
    return table


def _skipped_files(findings: dict[str, Any]) -> str:
    skipped = skipped_files(findings)
    return f"[bold]skipped[/]       files: {escape(skipped)}" if skipped else ""


def _removed(findings: dict[str, Any]) -> str:
    rules = sorted(findings["removed"], key=lambda line: -line["documents"])
    if not rules:
        return ""
    shown = ", ".join(f"{escape(line['rule'])} {line['documents']:,}" for line in rules[:MAX_RULES])
    more = f" and {len(rules) - MAX_RULES} more rules" if len(rules) > MAX_RULES else ""
    return f"[bold]dropped by[/]    {shown}{more}"


def _recall(findings: dict[str, Any]) -> str:
    """Return the recall of near-duplicate search, measured on injected copies, by similarity."""
    planted = findings["duplicates"].get("planted", {})
    if not planted.get("pairs"):
        return ""
    bins = ", ".join(f"{low:g}-{high:g} {found}/{pairs}" for low, high, pairs, found, _ in planted["bins"])
    return (
        f"[bold]near-dups[/]     recall {planted['recall']:.3f} ({planted['low']:.3f} to {planted['high']:.3f}) at"
        f" similarity {planted['threshold']:g} and above; found of injected, by similarity: {bins}"
    )


def _leaks(findings: dict[str, Any]) -> str:
    leaked = ", ".join(
        f"{escape(line['benchmark'])} {line['leaked']:,} of {line['items']:,} items"
        + (f" ({line['remains']:,} still in the text)" if line["remains"] else "")
        for line in findings["leaks"]
    )
    planted = findings["leak_search"].get("planted", {})
    measured = (
        f"; injected items found {planted['found']}/{planted['planted']}, recall {planted['recall']:.3f}"
        f" ({planted['low']:.3f} to {planted['high']:.3f})"
        if planted.get("planted")
        else ""
    )
    return f"[bold]leaked[/]        {leaked}{measured}" if leaked else ""


def _vocabulary(findings: dict[str, Any]) -> str:
    """Return what extending the base tokenizer did to each language's token counts."""
    vocabulary = findings["vocabulary"]
    if "base" not in vocabulary:
        return ""
    lines = vocabulary["languages"].items()
    changes = ", ".join(
        "{} {:.3f} to {:.3f}".format(escape(format_language(language)), *line["tokens_per_character"])
        for language, line in lines
        if line["characters"]
    )
    moved = sum(line["moved_lines"] for _, line in lines)
    sizes = f"{vocabulary['pieces']:,} tokens, extended from {vocabulary['base']['pieces']:,}"
    return (
        f"[bold]vocabulary[/]    {sizes}; tokens per character: {changes}; {moved:,} lines without a new script whose"
        f" ids changed"
    )


def _no_scores(findings: dict[str, Any]) -> str:
    """Return why an evaluation has no numbers; empty where it has some."""
    evaluated = any(line["stage"] == "evaluate" and "result" in line for line in findings["road"])
    if not evaluated or findings["bits_per_byte"] or findings["measures"] or findings["scores"]:
        return ""
    return (
        "[bold]scores[/]        none: too few documents to hold any out (at most a fifth of a source), and no benchmark"
    )


def _evaluated_items(findings: dict[str, Any]) -> str:
    text = describe_sampled_items(findings["scores"])
    return f"[bold]evaluated[/]     {escape(text)}" if text else ""


def _shots(findings: dict[str, Any]) -> str:
    text = describe_few_shot_limits(findings["scores"])
    return f"[bold]few-shot[/]      {escape(text)}" if text else ""


def _base_model(findings: dict[str, Any]) -> str:
    text = describe_base_model(findings["base_model"])
    return f"[bold]base model[/]    {escape(text)}" if text else ""


def _gate(findings: dict[str, Any]) -> str:
    text = describe_gate(findings["gate"])
    return f"[bold]gate[/]          {escape(text)}" if text else ""


def _loss(findings: dict[str, Any]) -> str:
    training = findings["training"]
    if training.get("last_loss") is None:
        return ""
    speed = f", {format_count(training['tokens_s'])} tokens per second" if training.get("tokens_s") else ""
    return (
        f"[bold]loss[/]          {training['first_loss']:.3f} -> {training['last_loss']:.3f}"
        f" {loss_unit(findings['rows'])} in {training['steps']:,} steps,"
        f" {format_count(training['tokens'])} tokens{speed}"
    )


def _heldout_metrics(findings: dict[str, Any]) -> str:
    """Return the held-out metrics of a BERT or T5, as means of the sources."""
    text = summarize_heldout_metrics(findings["measures"])
    return f"[bold]held out[/]      {text}" if text else ""


def _times(findings: dict[str, Any]) -> str:
    times = [
        f"{line['stage']} [{OUTCOME_STYLES.get(line['outcome'], 'default')}]"
        + (format_duration(line["seconds"]) if "seconds" in line else line["outcome"])
        + ("" if line["outcome"] == "built" or "seconds" not in line else f" {line['outcome']}")
        + "[/]"
        for line in findings["road"]
    ]
    return f"[bold]time[/]          {', '.join(times)}"


def _hanging(line: str) -> Table:
    """Lay out `[bold]label[/]  text` as two columns, so that wrapped text stays in its column."""
    head, _, text = line.partition("[/]")
    grid = Table.grid(padding=(0, 1))
    grid.add_column(min_width=13, no_wrap=True)
    grid.add_column()
    grid.add_row(f"{head}[/]", text.strip())
    return grid


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    return table
