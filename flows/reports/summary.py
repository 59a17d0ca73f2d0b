"""The last screen of a run: funnel, mixture, loss, bits per byte, scores, time per stage, conservation, the page.

The numbers are those of `flows.metrics.run_metrics`, the same that the run page shows.
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
from flows.reports import progress as terminal
from flows.reports.charts.scores import chance_of
from flows.runs.guards import describe_gate
from flows.runs.record import PAGE

STAGE_WORDS = {
    "sample": "sampled",
    "clean": "cleaned",
    "dedup": "unique",
    "decontaminate": "unleaked",
    "chunk": "packed",
}

OUTCOME_STYLES = {**terminal.OUTCOME_STYLES, "failed": "bold red", SKIPPED: "dim", TO_COME: "dim", UNDER_WAY: "cyan"}

MOST_RULES = 6

ASKED_FOR = ("read", "excluded")
"""What became of files as their source asks; anything else is told."""


def print_summary(run: dict[str, Any], root: Path, console: Console) -> None:
    """Print one screen about the run whose record is `run`; what the run did not reach is left out."""
    findings = collect_metrics(run, read_saved_metrics(run))
    console.print()
    for table in (_funnel(findings), _sources(findings), _scores(findings)):
        if table is not None:
            console.print(table)
            console.print()
    tell = (
        _passed_over,
        _removed,
        _recall,
        _leaks,
        _vocabulary,
        _nothing_measured,
        _asked,
        _shots,
        _base_model,
        _gate,
        _loss,
        _measures,
        _times,
    )
    for line in filter(None, (told(findings) for told in tell)):
        console.print(_hanging(line))
    for remark in findings["remarks"]:
        console.print(_hanging(f"[bold yellow]warning[/]       {escape(remark)}"))
    conserved = describe_conservation(findings["conservation"])
    if conserved:
        style = "" if findings["conservation"]["balanced"] else "bold red"
        console.print(_hanging(f"[bold]conservation[/]  [{style or 'default'}]{conserved}[/]"))
    for entry in run["stages"]:
        if entry["outcome"] == "failed":
            console.print(f"[bold red]{entry['stage']} failed[/]  {escape(entry['error'])}")
    for stage, told in missing_artifacts(run).items():
        console.print(_hanging(f"[bold red]gone[/]          {stage}: {escape(told)}"))
    page = run.get("page") or root / "runs" / run["run_id"] / PAGE
    console.print(f"[bold]page[/]          {escape(str(page))}", soft_wrap=True)


def _hanging(line: str) -> Table:
    """`[bold]word[/]  text` with the text wrapped under itself."""
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


def _funnel(findings: dict[str, Any]) -> Table | None:
    lines = findings["funnel"]
    if not lines:
        return None
    stages = [stage for stage in STAGE_WORDS if stage in lines[0]]
    table = _table("documents", "source", "read", *(STAGE_WORDS[stage] for stage in stages), "held", "kept")
    for line in lines:
        kept = f"{line[stages[-1]] / line['read']:.0%}" if line["read"] else "-"
        numbers = [f"{line[key]:,}" for key in ("read", *stages, "held_out")]
        table.add_row(escape(line["source"]), *numbers, kept)
    return table


def _sources(findings: dict[str, Any]) -> Table | None:
    """Mixture and held-out bits per byte, which are both by source, in one table."""
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
                "all: the plain mean of the sources, whatever their sizes; bits a byte of held-out text, fewer are"
                " better (gain: fewer than the unigram's)"
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


def _nothing_measured(findings: dict[str, Any]) -> str:
    """Why an evaluation has no numbers, where it has none."""
    evaluated = any(line["stage"] == "evaluate" and "result" in line for line in findings["road"])
    if not evaluated or findings["bits_per_byte"] or findings["measures"] or findings["scores"]:
        return ""
    return (
        "[bold]scores[/]        none: too few documents to hold any out (a fifth of a source at most), and no benchmark"
    )


def _shots(findings: dict[str, Any]) -> str:
    told = describe_few_shot_limits(findings["scores"])
    return f"[bold]few shots[/]     {escape(told)}" if told else ""


def _asked(findings: dict[str, Any]) -> str:
    told = describe_sampled_items(findings["scores"])
    return f"[bold]asked[/]         {escape(told)}" if told else ""


def _passed_over(findings: dict[str, Any]) -> str:
    told = [
        f"{count:,} {escape(reason)} in {escape(source)}"
        for source, counts in findings["files"].items()
        for reason, count in counts.items()
        if reason not in ASKED_FOR and count
    ]
    return f"[bold]passed over[/]   files: {', '.join(told)}" if told else ""


def _removed(findings: dict[str, Any]) -> str:
    rules = sorted(findings["removed"], key=lambda line: -line["documents"])
    if not rules:
        return ""
    told = ", ".join(f"{escape(line['rule'])} {line['documents']:,}" for line in rules[:MOST_RULES])
    more = f" and {len(rules) - MOST_RULES} more rules" if len(rules) > MOST_RULES else ""
    return f"[bold]dropped by[/]    {told}{more}"


def _recall(findings: dict[str, Any]) -> str:
    """What the search for near-duplicates finds, measured on planted copies, by their similarity."""
    planted = findings["duplicates"].get("planted", {})
    if not planted.get("pairs"):
        return ""
    bins = ", ".join(f"{low:g}-{high:g} {found}/{pairs}" for low, high, pairs, found, _ in planted["bins"])
    return (
        f"[bold]near copies[/]   recall {planted['recall']:.3f} ({planted['low']:.3f} to {planted['high']:.3f}) at"
        f" similarity {planted['threshold']:g} and above; found of planted, by similarity: {bins}"
    )


def _leaks(findings: dict[str, Any]) -> str:
    told = ", ".join(
        f"{escape(line['benchmark'])} {line['leaked']:,} of {line['items']:,} items"
        + (f" ({line['remains']:,} still in the text)" if line["remains"] else "")
        for line in findings["leaks"]
    )
    planted = findings["leak_search"].get("planted", {})
    measured = (
        f"; planted items found {planted['found']}/{planted['planted']}, recall {planted['recall']:.3f}"
        f" ({planted['low']:.3f} to {planted['high']:.3f})"
        if planted.get("planted")
        else ""
    )
    return f"[bold]leaked[/]        {told}{measured}" if told else ""


def _vocabulary(findings: dict[str, Any]) -> str:
    """What extending a base did to each language's tokens."""
    vocabulary = findings["vocabulary"]
    if "base" not in vocabulary:
        return ""
    lines = vocabulary["languages"].items()
    told = ", ".join(
        "{} {:.3f} to {:.3f}".format(escape(format_language(language)), *line["tokens_per_character"])
        for language, line in lines
        if line["characters"]
    )
    moved = sum(line["moved_lines"] for _, line in lines)
    rows = f"{vocabulary['pieces']:,} pieces on a base of {vocabulary['base']['pieces']:,}"
    return f"[bold]vocabulary[/]    {rows}; tokens a character: {told}; {moved:,} lines of old text with other ids"


def _base_model(findings: dict[str, Any]) -> str:
    told = describe_base_model(findings["base_model"])
    return f"[bold]base model[/]    {escape(told)}" if told else ""


def _gate(findings: dict[str, Any]) -> str:
    told = describe_gate(findings["gate"])
    return f"[bold]gate[/]          {escape(told)}" if told else ""


def _loss(findings: dict[str, Any]) -> str:
    training = findings["training"]
    if training.get("last_loss") is None:
        return ""
    speed = f", {format_count(training['tokens_s'])} tokens a second" if training.get("tokens_s") else ""
    return (
        f"[bold]loss[/]          {training['first_loss']:.3f} -> {training['last_loss']:.3f}"
        f" {loss_unit(findings['rows'])} in {training['steps']:,} steps,"
        f" {format_count(training['tokens'])} tokens{speed}"
    )


def _measures(findings: dict[str, Any]) -> str:
    """What a BERT or a T5 is measured by, as means of the sources."""
    told = summarize_heldout_metrics(findings["measures"])
    return f"[bold]held out[/]      {told}" if told else ""


def _times(findings: dict[str, Any]) -> str:
    told = [
        f"{line['stage']} [{OUTCOME_STYLES.get(line['outcome'], 'default')}]"
        + (format_duration(line["seconds"]) if "seconds" in line else line["outcome"])
        + ("" if line["outcome"] == "built" or "seconds" not in line else f" {line['outcome']}")
        + "[/]"
        for line in findings["road"]
    ]
    return f"[bold]time[/]          {', '.join(told)}"
