"""Write the Markdown of Prefect artifacts, tables and a link to the run page: a run's summary, and what a stage did."""

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from flows.metrics.accounting import describe_conservation, format_energy
from flows.metrics.formatting import (
    count_outcomes,
    escape_markdown,
    format_bytes,
    format_count,
    format_duration,
    format_shots,
    markdown_code,
)
from flows.metrics.heldout import mean_words, summarize_heldout_metrics
from flows.metrics.lines import Cost
from flows.metrics.run_metrics import bits_per_byte, documents_by_rule, leaks, metrics_of, mixture, scores
from flows.reports.document import Table
from flows.reports.tables import (
    bits_table,
    funnel_table,
    language_table,
    leaks_table,
    recall_table,
    removed_table,
    scores_table,
    sources_table,
    stages_table,
)
from flows.runs.record import RunData
from model.checkpoint.metrics import final_rows
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.manifest import ParentEntry
from tasks.artifacts.results import ChunkResult, DecontaminateResult, DedupResult, SampleResult, VocabResult
from tasks.artifacts.tables.rows import GapRow
from tasks.execution.outcome import cause_of

PAGES_AT = "BESSEMER_PAGES_AT"
"""Environment variable of the service: the address at which run pages are served."""

MEASURES = (
    ("loss", "loss, nats", ".3f"),
    ("masked_loss", "loss, masked tokens", ".3f"),
    ("masked_accuracy", "accuracy, masked tokens", ".1%"),
    ("next_loss", "loss, sentence pairs", ".3f"),
    ("next_accuracy", "accuracy, sentence pairs", ".1%"),
    ("lr", "learning rate", ".1e"),
    ("grad_norm", "gradient norm", ".2g"),
    ("tokens_s", "tokens per second", ",.0f"),
    ("mfu", "model FLOPs utilisation", ".1%"),
)
"""Columns of METRICS and PERF, those that only a BERT has included: column, label, format."""


def run_markdown(record: RunData) -> str:
    """Return the summary of the run whose record is `record`."""
    findings = metrics_of(record)
    measures = summarize_heldout_metrics(findings["measures"])
    tables = (
        funnel_table(findings["funnel"]),
        sources_table(findings["mixture"], findings["bits_per_byte"]),
        leaks_table(findings["leaks"]),
        language_table(findings["tokens_per_character"]),
        scores_table(findings["scores"], findings["gaps"]),
    )
    parts = [
        f"**{escape_markdown(record['recipe_name'])}**, run {markdown_code(record['run_id'])}:"
        f" {count_outcomes(record['stages'])}",
        format_page_link(record.get("page")),
        stages_table(findings["stages"]).markdown(),
        escape_markdown(". ".join(findings["made"])),
        *(table.markdown() for table in tables if table is not None),
        f"Held-out text{mean_words(findings['measures'])}: {measures}" if measures else "",
        _gaps(findings["gaps"]),
        describe_conservation(findings["conservation"]),
        _cost(findings["cost"]),
        f"In a terminal: {markdown_code(_command('runs report', record))}; model card:"
        f" {markdown_code(_command('model card', record))}",
    ]
    return "\n\n".join(filter(None, parts))


def _gaps(gaps: list[GapRow]) -> str:
    """Return the benchmarks on which leaked items score significantly differently from clean ones."""
    significant = [
        f"{escape_markdown(gap['task'])} {format_shots(gap['shots'])} {100 * gap['difference']:+.1f}"
        for gap in gaps
        if gap["beyond_chance"]
    ]
    if not significant:
        return ""
    return f"Contamination gap (leaked minus clean items), significant: {', '.join(significant)} points."


def _cost(found: Cost) -> str:
    if not found:
        return ""
    time = f"Building all stages took {format_duration(found['seconds'])}"
    if found["watt_hours"] is None:
        return f"{time}."
    return f"{time} and an estimated {format_energy(found['watt_hours'])}, from {found['assumption']}."


def _command(name: str, record: RunData) -> str:
    return f"bessemer {name} {record['run_id']} --root {shlex.quote(record['root'])}"


def format_page_link(page: str | None) -> str:
    """Return where the run page is: a link where the service serves ROOT/runs (PAGES_AT), else a path."""
    if not page:
        return ""
    at = os.environ.get(PAGES_AT)
    if not at:
        return f"Run page, on the machine of the run: {markdown_code(page)}"
    path = Path(page)
    return f"[Run page]({at.rstrip('/')}/{quote(path.parent.name)}/{quote(path.name)})"


def stage_markdown(artifact: Artifact, page: str | None = None) -> str:
    """Return the Markdown of one stage: outcome and cause, its numbers, documents by source, path of the artifact."""
    manifest = manifest_of(artifact)
    built = (artifact.outcome, format_duration(manifest["timings"]["seconds"]), format_bytes(manifest["bytes"]))
    tables = [
        Table(("outcome", "time", "bytes", "identity"), [(*built, artifact.identity[:12])]),
        *STAGE_TABLES.get(artifact.stage, lambda _: [])(artifact),
        _parents(manifest["parents"]),
        _documents(artifact),
    ]
    parts = [
        f"**{escape_markdown(cause_of(artifact))}**",
        format_page_link(page),
        *(table.markdown() for table in tables if table is not None),
        f"Artifact: {markdown_code(artifact.path)}",
    ]
    return "\n\n".join(filter(None, parts))


def _parents(parents: Mapping[str, ParentEntry]) -> Table | None:
    rows = [
        (role, parent["stage"], parent["identity"][:12], parent["content"][:12])
        for role, parent in sorted(parents.items())
    ]
    columns = ("input", "stage", "identity", "content")
    return Table(columns, rows, texts=columns) if rows else None


def _documents(artifact: Artifact) -> Table | None:
    rows = [
        (
            name,
            counts.documents_in,
            counts.documents_out,
            counts.not_selected,
            counts.rejected,
            counts.dropped.total(),
            counts.held_out,
            format_bytes(counts.bytes_out),
        )
        for name, counts in sorted(artifact.report.sources.items(), key=lambda pair: -pair[1].documents_in)
    ]
    columns = ("source", "documents in", "out", "not selected", "rejected", "dropped", "held out", "bytes out")
    return Table(columns, rows) if rows else None


def _sample(artifact: Artifact) -> list[Table | None]:
    plan = SampleResult.of(artifact.report).mixture_plan
    rows = [
        (source, f"{line['weight']:.0%}", format_count(line["target_tokens"]), f"{line['epochs']:.2g}")
        for source, line in sorted(plan.items(), key=lambda pair: -pair[1]["weight"])
    ]
    return [Table(("source", "planned share", "tokens", "epochs"), rows) if rows else None]


def _removed(artifact: Artifact) -> list[Table | None]:
    return [removed_table(documents_by_rule({artifact.stage: artifact.report}, "dropped"))]


def _dedup(artifact: Artifact) -> list[Table | None]:
    found = DedupResult.of(artifact.report)
    clusters = Table(("clusters", "largest"), [(found.clusters["count"], found.clusters["largest"])])
    return [*_removed(artifact), clusters, recall_table(found.planted)]


def _vocab(artifact: Artifact) -> list[Table | None]:
    found = VocabResult.of(artifact.report).vocabulary
    rows = [(source, f"{value:.2f}") for source, value in found["bytes_per_token"].items()]
    return [Table(("source", "bytes per token"), rows) if rows else None]


def _chunk(artifact: Artifact) -> list[Table | None]:
    rows = [
        (line["source"], line["reads"], line["rows"], f"{line['epochs']:.2f}", f"{line['realised_share']:.1%}")
        for line in mixture(ChunkResult.of(artifact.report))
    ]
    return [Table(("source", "sequences read", "of", "epochs", "share"), rows) if rows else None]


def _train(artifact: Artifact) -> list[Table | None]:
    """Return the first and the last value of what training measured."""
    steps = artifact.table("steps")
    measured = [final_rows(artifact.table(name), steps) for name in ("metrics", "perf") if artifact.rows(name)]
    rows: list[tuple[str, str, str]] = []
    for column, label, form in MEASURES:
        for table in measured:
            found = table.column(column).drop_null().to_pylist() if column in table.column_names else []
            if found:
                rows.append((label, f"{found[0]:{form}}", f"{found[-1]:{form}}"))
    return [Table(("measure", "first step", "last step"), rows) if rows else None]


def _evaluate(artifact: Artifact) -> list[Table | None]:
    artifacts = {artifact.stage: artifact}
    return [bits_table(bits_per_byte(artifacts)), scores_table(scores(artifacts))]


STAGE_TABLES: dict[str, Callable[[Artifact], list[Table | None]]] = {
    "sample": _sample,
    "clean": _removed,
    "dedup": _dedup,
    "decontaminate": lambda artifact: [leaks_table(leaks(DecontaminateResult.of(artifact.report)))],
    "vocab": _vocab,
    "chunk": _chunk,
    "train": _train,
    "evaluate": _evaluate,
}
