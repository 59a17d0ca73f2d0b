"""Print the end of a run: in words, or as tables of documents, mixture, loss, held-out text, scores and times.

The numbers come from `flows.metrics.run_metrics`, as do those of the run page.
"""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from flows.metrics.accounting import describe_conservation
from flows.metrics.formatting import format_count, format_duration, format_language, loss_unit
from flows.metrics.heldout import describe_few_shot_limits, describe_sampled_items, summarize_heldout_metrics
from flows.metrics.lines import Duplicates, Metrics, RuleLine
from flows.metrics.run_metrics import describe_base_model, metrics_of
from flows.metrics.stage_lines import SKIPPED, TO_COME, UNDER_WAY, missing_artifacts
from flows.reports import progress
from flows.reports.tables import funnel_table, scores_table, sources_table
from flows.reports.verdict import skipped_files, verdict
from flows.runs.guards import describe_gate
from flows.runs.record import PAGE, RunData, read_recipe
from tasks.artifacts.results import Vocabulary

OUTCOME_STYLES = {**progress.OUTCOME_STYLES, "failed": "bold red", SKIPPED: "dim", TO_COME: "dim", UNDER_WAY: "cyan"}

MAX_RULES = 6

MAX_ATTENTION, ATTENTION_CHARS = 2, 170


def print_outcome(run: RunData, root: Path, console: Console) -> None:
    """Print what came out of the run whose record is `run` and what to try next, in at most 30 lines of 80 columns."""
    words = verdict(run, metrics_of(run), root, name="latest")
    console.print()
    for text in filter(None, (words.made, words.quality, words.dropped)):
        console.print(escape(text))
    _print_failed_stages(run, console)
    for remark in words.attention[:MAX_ATTENTION]:
        short = textwrap.shorten(remark, ATTENTION_CHARS, placeholder=" …")
        console.print(f"[bold yellow]attention[/] {escape(short)}")
    if len(words.attention) > MAX_ATTENTION:
        console.print(f"          and {len(words.attention) - MAX_ATTENTION} more on the page")
    if words.next_steps:
        console.print("\n[bold]try next[/]")
    for step in words.next_steps:
        console.print(f"  {step.why + ':':<19}{escape(step.command)}", soft_wrap=True)
    console.print(f"[bold]page[/]  {escape(_page(run, root))}", soft_wrap=True)


def _print_failed_stages(run: RunData, console: Console) -> None:
    for entry in run["stages"]:
        if entry["outcome"] == "failed":
            console.print(f"[bold red]{entry['stage']} failed[/]  {escape(entry.get('error', ''))}")


def _page(run: RunData, root: Path) -> str:
    return str(run.get("page") or root / "runs" / run["run_id"] / PAGE)


def print_summary(run: RunData, root: Path, console: Console) -> None:
    """Print one screen about the run whose record is `run`; stages that did not run are left out."""
    findings = metrics_of(run)
    console.print()
    tables = (
        funnel_table(findings["funnel"]),
        sources_table(findings["mixture"], findings["bits_per_byte"]),
        scores_table(findings["scores"]),
    )
    for table in filter(None, tables):
        console.print(table.rich())
        console.print()
    for label, text in _sentences(findings, read_recipe(root / "runs" / run["run_id"])).items():
        if text:
            _print_line(label, text, console)
    _print_line("time", _times(findings), console)
    for sentence in findings["made"]:
        _print_line("made", escape(sentence), console)
    for remark in findings["remarks"]:
        _print_line("warning", escape(remark), console, "bold yellow")
    if conserved := describe_conservation(findings["conservation"]):
        style = "default" if findings["conservation"]["balanced"] else "bold red"
        _print_line("documents", f"[{style}]{conserved}[/]", console)
    _print_failed_stages(run, console)
    for stage, problem in missing_artifacts(run).items():
        _print_line("missing", escape(f"{stage}: {problem}"), console, "bold red")
    console.print(f"[bold]page[/]          {escape(_page(run, root))}", soft_wrap=True)


def _print_line(label: str, text: str, console: Console, style: str = "bold") -> None:
    """Print a label and a text as two columns, so that wrapped text stays in its column."""
    grid = RichTable.grid(padding=(0, 1))
    grid.add_column(min_width=13, no_wrap=True)
    grid.add_column()
    grid.add_row(f"[{style}]{label}[/]", text)
    console.print(grid)


def _sentences(findings: Metrics, recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return what is said besides the tables, by label; empty where there is nothing to say."""
    skipped = skipped_files(findings)
    sentences = {
        "skipped": f"files: {skipped}" if skipped else "",
        "dropped by": _removed(findings["removed"]),
        "near-dups": _recall(findings["duplicates"]),
        "leaked": _leaks(findings),
        "vocabulary": _vocabulary(findings["vocabulary"]),
        "scores": _no_scores(findings, recipe),
        "evaluated": describe_sampled_items(findings["scores"]),
        "few-shot": describe_few_shot_limits(findings["scores"]),
        "base model": describe_base_model(findings["base_model"]),
        "gate": describe_gate(findings["gate"]),
        "loss": _loss(findings),
        "held out": summarize_heldout_metrics(findings["measures"]),
    }
    return {label: escape(text) for label, text in sentences.items()}


def _removed(removed: list[RuleLine]) -> str:
    rules = sorted(removed, key=lambda line: -line["documents"])
    shown = ", ".join(f"{line['rule']} {line['documents']:,}" for line in rules[:MAX_RULES])
    return f"{shown} and {len(rules) - MAX_RULES} more rules" if len(rules) > MAX_RULES else shown


def _recall(duplicates: Duplicates) -> str:
    """Return the recall of near-duplicate search, measured on injected copies, by similarity."""
    if not duplicates or not (planted := duplicates["planted"])["pairs"]:
        return ""
    bins = ", ".join(f"{low:g}-{high:g} {found}/{pairs}" for low, high, pairs, found, _ in planted["bins"])
    return (
        f"recall {planted['recall']:.3f} ({planted['low']:.3f} to {planted['high']:.3f}) at"
        f" similarity {planted['threshold']:g} and above; found of injected, by similarity: {bins}"
    )


def _leaks(findings: Metrics) -> str:
    leaked = ", ".join(
        f"{line['benchmark']} {line['leaked']:,} of {line['items']:,} items"
        + (f" ({line['remains']:,} still in the text)" if line["remains"] else "")
        for line in findings["leaks"]
    )
    if not leaked or not (planted := findings["leak_search"]["planted"])["planted"]:
        return leaked
    return (
        f"{leaked}; injected items found {planted['found']}/{planted['planted']}, recall {planted['recall']:.3f}"
        f" ({planted['low']:.3f} to {planted['high']:.3f})"
    )


def _vocabulary(vocabulary: Vocabulary) -> str:
    """Return what extending the base tokenizer did to each language's token counts."""
    if "base" not in vocabulary or "languages" not in vocabulary:
        return ""
    lines = vocabulary["languages"].items()
    changes = ", ".join(
        "{} {:.3f} to {:.3f}".format(format_language(language), *line["tokens_per_character"])
        for language, line in lines
        if line["characters"]
    )
    moved = sum(line["moved_lines"] for _, line in lines)
    sizes = f"{vocabulary['pieces']:,} tokens, extended from {vocabulary['base']['pieces']:,}"
    return f"{sizes}; tokens per character: {changes}; {moved:,} lines without a new script whose ids changed"


def _no_scores(findings: Metrics, recipe: Mapping[str, Any]) -> str:
    """Return why an evaluation has no numbers; empty where it has some."""
    evaluated = any(line["stage"] == "evaluate" and "result" in line for line in findings["stages"])
    # The figures of written texts are there without a value where no text was written.
    scored = any(row["value"] is not None for row in findings["scores"])
    if not evaluated or findings["bits_per_byte"] or findings["measures"] or scored:
        return ""
    if recipe.get("decontaminate", {}).get("heldout_share") == 0:
        return "none: decontaminate.heldout_share is 0, so that nothing was held out, and no benchmark"
    return "none: too few documents to hold any out (at most a fifth of a source), and no benchmark"


def _loss(findings: Metrics) -> str:
    training = findings["training"]
    if not training or training["last_loss"] is None:
        return ""
    speed = f", {format_count(training['tokens_s'])} tokens per second" if training["tokens_s"] else ""
    return (
        f"{training['first_loss']:.3f} -> {training['last_loss']:.3f} {loss_unit(findings['rows'])} in"
        f" {training['steps']:,} steps, {format_count(training['tokens'])} tokens{speed}"
    )


def _times(findings: Metrics) -> str:
    return ", ".join(
        f"{line['stage']} [{OUTCOME_STYLES.get(line['outcome'], 'default')}]"
        + (format_duration(line["seconds"]) if "seconds" in line else line["outcome"])
        + ("" if line["outcome"] == "built" or "seconds" not in line else f" {line['outcome']}")
        + "[/]"
        for line in findings["stages"]
    )
