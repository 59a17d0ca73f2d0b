"""Write the Markdown of Prefect artifacts: the summary of a run, and what each finished stage did.

Charts are SVG pictures inside the Markdown, because the Prefect UI runs no scripts.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from flows.metrics.accounting import describe_conservation, format_energy
from flows.metrics.activation_stats import training_activation_map
from flows.metrics.formatting import (
    count_outcomes,
    escape_markdown,
    format_bytes,
    format_count,
    format_duration,
    format_language,
    format_shots,
    markdown_code,
    markdown_image,
    markdown_table,
)
from flows.metrics.heldout import mean_words, summarize_heldout_metrics
from flows.metrics.run_metrics import (
    bits_per_byte,
    collect_metrics,
    leaks,
    mixture,
    read_saved_metrics,
    removed,
    scores,
)
from flows.reports.charts.scores import chance_of
from flows.reports.charts.svg import Bar, Curve, Interval, bars, curves, intervals
from flows.reports.charts.svg_heatmap import MAX_COLUMNS, heatmap_chart
from flows.reports.charts.training import speed_figure
from model.checkpoint.metrics import final_rows
from tasks.artifacts.artifact import Artifact
from tasks.execution.outcome import cause_of, with_short_digests

PAGES_AT = "BESSEMER_PAGES_AT"
"""Environment variable of the service: the address at which run pages are served."""

FUNNEL = (
    ("read", "read"),
    ("sample", "sampled"),
    ("clean", "cleaned"),
    ("dedup", "unique"),
    ("decontaminate", "decontaminated"),
    ("chunk", "packed"),
)
"""Column of the funnel, and its label."""

MAX_RULES = 12

BERT_METRICS = (
    ("masked_loss", "loss, masked tokens", ".3f"),
    ("masked_accuracy", "accuracy, masked tokens", ".1%"),
    ("next_loss", "loss, sentence pairs", ".3f"),
    ("next_accuracy", "accuracy, sentence pairs", ".1%"),
)
"""Columns of METRICS that only a BERT has: column, label, format."""

KEPT_AND_REMOVED = (("main", "kept"), ("lost", "removed"))
"""Legend of the charts of removals."""


def run_markdown(record: dict[str, Any]) -> str:
    """Return the summary of the run whose record is `record`."""
    findings = collect_metrics(record, read_saved_metrics(record))
    stages = markdown_table(
        ("stage", "outcome", "time", "result", "why"),
        [
            (
                line["stage"],
                line["outcome"],
                format_duration(line["seconds"]) if "seconds" in line else "-",
                _result(line),
                line.get("error") or with_short_digests(line.get("cause", "")),
            )
            for line in findings["road"]
        ],
        texts=("outcome", "why"),
    )
    funnel = _funnel(findings["funnel"])
    bits, accuracy = bits_chart(findings["bits_per_byte"]), scores_chart(findings["scores"])
    mixed, leaked = mixture_chart(findings["mixture"]), leaks_chart(findings["leaks"])
    tokens = _tokens(findings["tokens_per_character"])
    measures = summarize_heldout_metrics(findings["measures"])
    parts = [
        f"**{escape_markdown(record['recipe_name'])}**, run {markdown_code(record['run_id'])}:"
        f" {count_outcomes(record['stages'])}",
        stages,
        escape_markdown(". ".join(findings["made"])),
        markdown_image(funnel, "documents from reading to packing") if funnel else "",
        markdown_image(mixed, "shares of the training tokens by source") if mixed else "",
        markdown_image(leaked, "benchmark items found in the text") if leaked else "",
        markdown_image(tokens, "tokens per character by language") if tokens else "",
        markdown_image(bits, "bits per byte against baselines") if bits else "",
        f"Held-out text{mean_words(findings['measures'])}: {measures}" if measures else "",
        markdown_image(accuracy, "scores with their 95% intervals") if accuracy else "",
        _gaps(findings["gaps"]),
        describe_conservation(findings["conservation"]),
        _cost(findings["cost"]),
        format_page_link(record.get("page"), os.environ.get(PAGES_AT)),
        f"In a terminal: {markdown_code(_command('runs report', record))}; model card:"
        f" {markdown_code(_command('model card', record))}",
    ]
    return "\n\n".join(filter(None, parts))


def _result(line: dict[str, Any]) -> str:
    return f"{format_count(line['result']['amount'])} {line['result']['unit']}" if "result" in line else ""


def _funnel(lines: list[dict[str, Any]]) -> str:
    if not lines:
        return ""
    read = sum(line["read"] for line in lines) or 1
    rows = []
    for key, label in FUNNEL:
        if key in lines[0]:
            count = sum(line[key] for line in lines)
            rows.append(
                Bar(label, ((count, "main"), (read - count, "pale")), f"{count:,} documents ({count / read:.0%})")
            )
    return bars("Documents by stage", rows)


def _tokens(found: dict[str, float]) -> str:
    """Return a chart of tokens per character by language."""
    rows = [Bar(format_language(language), ((value, "main"),), f"{value:.3f}") for language, value in found.items()]
    return bars("Tokens per character (lower is denser)", rows) if rows else ""


def _gaps(gaps: list[dict[str, Any]]) -> str:
    """Return the benchmarks on which leaked items score significantly differently from clean ones."""
    significant = [
        f"{escape_markdown(gap['task'])} {format_shots(gap['shots'])} {100 * gap['difference']:+.1f}"
        for gap in gaps
        if gap["beyond_chance"]
    ]
    if not significant:
        return ""
    return f"Contamination gap (leaked minus clean items), significant: {', '.join(significant)} points."


def _cost(found: dict[str, Any]) -> str:
    if not found:
        return ""
    time = f"Building all stages took {format_duration(found['seconds'])}"
    if found["watt_hours"] is None:
        return f"{time}."
    return f"{time} and an estimated {format_energy(found['watt_hours'])}, from {found['assumption']}."


def _command(name: str, record: dict[str, Any]) -> str:
    return f"bessemer {name} {record['run_id']} --root {record['root']}"


def format_page_link(page: str | None, at: str | None) -> str:
    """Return where the run page is: a link where `at` is the address at which ROOT/runs is served, else a path."""
    if not page:
        return ""
    if not at:
        return f"Run page, on the machine of the run: {markdown_code(page)}"
    path = Path(page)
    return f"[Run page]({at.rstrip('/')}/{quote(path.parent.name)}/{quote(path.name)})"


def stage_markdown(artifact: Artifact) -> str:
    """Return the Markdown of one stage: outcome and cause, charts, documents by source, path of the artifact."""
    timings = artifact.manifest["timings"]
    built = markdown_table(
        ("outcome", "time", "bytes", "identity"),
        [
            (
                artifact.outcome,
                format_duration(timings["seconds"]),
                format_bytes(artifact.manifest["bytes"]),
                artifact.identity[:12],
            )
        ],
    )
    charts = [markdown_image(svg, f"{artifact.stage}: {caption}") for caption, svg in stage_charts(artifact)]
    parts = [f"**{escape_markdown(cause_of(artifact))}**", *charts, built, _parents(artifact), _documents(artifact)]
    return "\n\n".join([*filter(None, parts), f"Artifact: {markdown_code(artifact.path)}"])


def _parents(artifact: Artifact) -> str:
    """Return a table of the artifact's inputs, by identity and content."""
    parents = artifact.manifest["parents"]
    rows = [
        (role, parent.get("stage", "-"), parent.get("identity", "-")[:12], parent["content"][:12])
        for role, parent in sorted(parents.items())
        if isinstance(parent, dict)
    ]
    columns = ("input", "stage", "identity", "content")
    return markdown_table(columns, rows, texts=columns) if rows else ""


def _documents(artifact: Artifact) -> str:
    sources = artifact.report.sources
    if not sources:
        return ""
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
        for name, counts in sorted(sources.items(), key=lambda pair: -pair[1].documents_in)
    ]
    columns = ("source", "documents in", "out", "not selected", "rejected", "dropped", "held out", "bytes out")
    return markdown_table(columns, rows)


def stage_charts(artifact: Artifact) -> list[tuple[str, str]]:
    """Return the charts of a stage's artifact as (caption, SVG)."""
    draw = STAGE_CHARTS.get(artifact.stage)
    return [(caption, svg) for caption, svg in draw(artifact) if svg] if draw else []


def _sample(artifact: Artifact) -> list[tuple[str, str]]:
    plan = artifact.report.facts.get("mixture_plan", {})
    rows = [
        Bar(
            source,
            ((line["weight"], "main"),),
            f"{line['weight']:.0%}: {format_count(line['target_tokens'])} tokens, {line['epochs']:.2g} epochs",
        )
        for source, line in sorted(plan.items(), key=lambda pair: -pair[1]["weight"])
    ]
    return [("the planned mixture by source", bars("Planned share of the training tokens", rows) if rows else "")]


def _stage_funnel(artifact: Artifact) -> list[tuple[str, str]]:
    total = artifact.report.total()
    documents_in = total.documents_in or 1
    rules = [(line["rule"], line["documents"]) for line in removed({artifact.stage: artifact.report})]
    if len(rules) > MAX_RULES:
        rest = rules[MAX_RULES - 1 :]
        rules = [*rules[: MAX_RULES - 1], (f"{len(rest)} more rules", sum(count for _, count in rest))]
    left = total.documents_in
    rows = [Bar("documents in", ((left, "main"),), f"{left:,} documents")]
    for rule, count in rules:
        left -= count
        rows.append(Bar(rule, ((left, "main"), (count, "lost")), f"−{count:,} ({count / documents_in:.1%})"))
    out = total.documents_out
    rows.append(Bar("documents out", ((out, "main"),), f"{out:,} ({out / documents_in:.1%})"))
    return [("documents removed by rule", bars("Documents removed by rule", rows, KEPT_AND_REMOVED))]


def _dedup(artifact: Artifact) -> list[tuple[str, str]]:
    """Return the removals, and the recall of injected copies."""
    planted = artifact.report.facts.get("planted", {})
    clusters = artifact.report.facts.get("clusters", {})
    rows = [
        Bar(
            f"{low:g} to {high:g}",
            ((found / pairs, "main"), (1 - found / pairs, "pale")),
            f"{found:,} of {pairs:,} injected copies found",
        )
        for low, high, pairs, found, _ in planted.get("bins", ())
        if pairs
    ]
    title = (
        f"Recall by similarity; {clusters.get('count', 0):,} clusters, the largest of {clusters.get('largest', 0):,}"
    )
    return [*_stage_funnel(artifact), ("recall of injected copies by similarity", bars(title, rows) if rows else "")]


def _decontaminate(artifact: Artifact) -> list[tuple[str, str]]:
    return [("benchmark items found in the text", leaks_chart(leaks({artifact.stage: artifact.report})))]


def _vocab(artifact: Artifact) -> list[tuple[str, str]]:
    found = artifact.report.facts.get("vocabulary", {}).get("bytes_per_token", {})
    rows = [Bar(source, ((value, "main"),), f"{value:.2f}") for source, value in found.items()]
    return [("bytes per token by source", bars("Bytes per token (higher is denser)", rows) if rows else "")]


def _chunk(artifact: Artifact) -> list[tuple[str, str]]:
    rows = [
        Bar(
            line["source"],
            ((line["reads"], "main"),),
            f"{line['reads']:,} of {line['rows']:,} sequences, {line['epochs']:.2f} epochs,"
            f" {line['realised_share']:.1%}",
        )
        for line in mixture({artifact.stage: artifact.report})
    ]
    return [("sequences read in training by source", bars("Sequences read in training", rows) if rows else "")]


def _train(artifact: Artifact) -> list[tuple[str, str]]:
    metrics = final_rows(artifact.table("metrics"), artifact.table("steps"))
    if not metrics.num_rows:
        return []
    tokens = metrics.column("tokens").to_pylist()
    panels = [
        Curve("loss, nats", tokens, metrics.column("loss").to_pylist(), ".3f"),
        *(
            Curve(label, tokens, metrics.column(name).to_pylist(), form, spark=True)
            for name, label, form in BERT_METRICS
            if name in metrics.column_names and not metrics.column(name).null_count
        ),
        Curve("learning rate", tokens, metrics.column("lr").to_pylist(), ".1e", spark=True),
        Curve("gradient norm", tokens, metrics.column("grad_norm").to_pylist(), ".2g", spark=True),
    ]
    heat = training_activation_map(artifact, MAX_COLUMNS)
    return [
        ("loss and learning rate over tokens", curves("Training", panels, "tokens read")),
        ("training speed", _speed(artifact, metrics)),
        ("activation heat map", heatmap_chart("Activation heat map", heat) if heat else ""),
    ]


def _speed(artifact: Artifact, metrics: pa.Table) -> str:
    """Return a chart of tokens per second over tokens read, with model FLOPs utilisation where the peak is known."""
    if not artifact.rows("perf"):
        return ""
    figure = speed_figure(artifact.table("perf"), metrics)
    traces = [] if figure is None else figure["data"]
    panels = [
        Curve(trace["name"], *_finite(trace), ".1%" if trace["yaxis"] == "y2" else ",.0f", spark=True)
        for trace in traces
    ]
    return curves("Speed", panels, "tokens read") if panels else ""


def _finite(trace: dict[str, Any]) -> tuple[list[float], list[float]]:
    pairs = [(x, y) for x, y in zip(trace["x"], trace["y"], strict=True) if y is not None]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _evaluate(artifact: Artifact) -> list[tuple[str, str]]:
    artifacts = {artifact.stage: artifact}
    return [
        ("bits per byte against baselines", bits_chart(bits_per_byte(artifacts))),
        ("scores with their 95% intervals", scores_chart(scores(artifacts))),
    ]


STAGE_CHARTS: dict[str, Callable[[Artifact], list[tuple[str, str]]]] = {
    "sample": _sample,
    "clean": _stage_funnel,
    "dedup": _dedup,
    "decontaminate": _decontaminate,
    "vocab": _vocab,
    "chunk": _chunk,
    "train": _train,
    "evaluate": _evaluate,
}


def leaks_chart(lines: Sequence[dict[str, Any]]) -> str:
    """Return a chart of benchmark items by state; empty without benchmarks."""
    rows = [
        Bar(
            line["benchmark"],
            ((line["clean"], "main"), (line["leaked"], "lost"), (line["unmatchable"], "calm")),
            f"{line['leaked']:,} of {line['items']:,} leaked, {line['remains']:,} remain in the text",
        )
        for line in lines
    ]
    legend = (("main", "clean"), ("lost", "leaked"), ("calm", "unmatchable"))
    return bars("Benchmark items", rows, legend) if rows else ""


def mixture_chart(lines: Sequence[dict[str, Any]]) -> str:
    """Return a chart of each source's weight and share of the training tokens; empty without a mixture."""
    rows = [
        bar
        for line in lines
        for bar in (
            Bar(line["source"], ((line["weight"], "pale"),), f"weight {line['weight']:.1%}"),
            Bar(
                "read",
                ((line["realised_share"], "main"),),
                f"{line['realised_share']:.1%}, {line['epochs']:.2f} epochs",
            ),
        )
    ]
    return bars("Share of the training tokens", rows) if rows else ""


def bits_chart(lines: Sequence[dict[str, Any]]) -> str:
    """Return a chart of bits per byte by held-out source, with baselines; empty for a model without them."""
    roles = (
        ("model", "main", "this model"),
        ("5gram", "lost", "5-gram"),
        ("unigram", "calm", "token unigram"),
        ("xz", "pale", "xz"),
    )
    rows = [
        Bar(line["source"] if who == "model" else who, ((line[who], role),), f"{line[who]:.3f}")
        for line in lines
        if line.get("model") is not None
        for who, role, _ in roles
        if line.get(who) is not None
    ]
    legend = [(role, name) for _, role, name in roles]
    return bars("Bits per byte on held-out text (lower is better)", rows, legend) if rows else ""


def scores_chart(rows: Sequence[dict[str, Any]]) -> str:
    """Return a chart of accuracies on all, clean and leaked items, with intervals and chance; empty without any."""
    found = [
        Interval(
            f"{row['task']} {format_shots(row['shots'])}" if row["subset"] == "all" else f"{row['subset']} items",
            row["value"],
            1.96 * (row["stderr"] or 0.0),
            chance_of([row]),
            f", {row['n']:,} items",
        )
        for row in rows
        if row["metric"] == "acc" and row["value"] is not None
    ]
    return intervals("Accuracy on all, clean and leaked items", found) if found else ""
