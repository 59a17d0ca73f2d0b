"""The summary of a run: what became of each stage and why, the funnel, the scores, where its page lies.

What a finished stage shows: how it came to be, a picture of what it did, and its counts by source.
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
from flows.metrics.heldout import summarize_heldout_metrics
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
from flows.reports.charts.svg_heatmap import MOST_COLUMNS, heat_picture
from flows.reports.charts.training import speed_figure
from model.checkpoint.metrics import final_rows
from tasks.artifacts.artifact import Artifact
from tasks.execution.outcome import cause_of, with_short_digests

PAGES_AT = "BESSEMER_PAGES_AT"
"""In the environment of the service: the address at which the pages of its runs are served."""

FUNNEL = (
    ("read", "read"),
    ("sample", "sampled"),
    ("clean", "cleaned"),
    ("dedup", "unique"),
    ("decontaminate", "unleaked"),
    ("chunk", "packed"),
)


def run_markdown(record: dict[str, Any]) -> str:
    """The summary of the run whose record is `record`."""
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
    bits, accuracy = bits_picture(findings["bits_per_byte"]), scores_picture(findings["scores"])
    mixed, leaked = mixture_picture(findings["mixture"]), leaks_picture(findings["leaks"])
    tokens = _tokens(findings["tokens_per_character"])
    measures = summarize_heldout_metrics(findings["measures"])
    parts = [
        f"**{escape_markdown(record['recipe_name'])}**, run {markdown_code(record['run_id'])}:"
        f" {count_outcomes(record['stages'])}",
        stages,
        markdown_image(funnel, "documents from reading to packing") if funnel else "",
        markdown_image(mixed, "shares of the training tokens by source") if mixed else "",
        markdown_image(leaked, "benchmark items found in the text") if leaked else "",
        markdown_image(tokens, "tokens a character by language") if tokens else "",
        markdown_image(bits, "bits per byte against baselines") if bits else "",
        f"Held-out text, mean of the sources: {measures}" if measures else "",
        markdown_image(accuracy, "scores with their 95% intervals") if accuracy else "",
        _gaps(findings["gaps"]),
        describe_conservation(findings["conservation"]),
        _cost(findings["cost"]),
        page_told(record.get("page"), os.environ.get(PAGES_AT)),
        f"In a terminal: {markdown_code(_command('report', record))}; its model card:"
        f" {markdown_code(_command('card', record))}",
    ]
    return "\n\n".join(filter(None, parts))


def page_told(page: str | None, at: str | None) -> str:
    """Where the page of a run is: as a link where `at` is the address at which somebody serves ROOT/runs."""
    if not page:
        return ""
    if not at:
        return f"Page of the run, on the machine that ran it: {markdown_code(page)}"
    path = Path(page)
    return f"[Page of the run]({at.rstrip('/')}/{quote(path.parent.name)}/{quote(path.name)})"


def _command(name: str, record: dict[str, Any]) -> str:
    return f"bessemer {name} {record['run_id']} --root {record['root']}"


def _cost(found: dict[str, Any]) -> str:
    if not found:
        return ""
    told = f"Building all stages took {format_duration(found['seconds'])}"
    if found["watt_hours"] is None:
        return f"{told}."
    return f"{told}, and about {format_energy(found['watt_hours'])} by estimate: {found['assumption']}."


def _gaps(gaps: list[dict[str, Any]]) -> str:
    """Benchmarks whose leaked items were answered otherwise than clean ones."""
    told = [
        f"{escape_markdown(gap['task'])} {format_shots(gap['shots'])} {100 * gap['difference']:+.1f}"
        for gap in gaps
        if gap["beyond_chance"]
    ]
    return f"Leaked less clean items, beyond chance: {', '.join(told)} points." if told else ""


def _tokens(found: dict[str, float]) -> str:
    """A picture of how many tokens a character of each language takes."""
    rows = [Bar(format_language(language), ((value, "main"),), f"{value:.3f}") for language, value in found.items()]
    return bars("Tokens a character (fewer is denser)", rows) if rows else ""


def _result(line: dict[str, Any]) -> str:
    return f"{format_count(line['result']['amount'])} {line['result']['unit']}" if "result" in line else ""


def _funnel(lines: list[dict[str, Any]]) -> str:
    if not lines:
        return ""
    read = sum(line["read"] for line in lines) or 1
    rows = []
    for key, words in FUNNEL:
        if key in lines[0]:
            count = sum(line[key] for line in lines)
            rows.append(
                Bar(words, ((count, "main"), (read - count, "pale")), f"{count:,} documents ({count / read:.0%})")
            )
    return bars("Documents on the road", rows)


MOST_RULES = 12

TERMS = (
    ("masked_loss", "of hidden tokens", ".3f"),
    ("masked_accuracy", "hidden tokens told", ".1%"),
    ("next_loss", "of sentence pairs", ".3f"),
    ("next_accuracy", "pairs told", ".1%"),
)
"""Columns of METRICS that a BERT fills: words, format."""

KEPT_AND_LOST = (("main", "kept"), ("lost", "removed"))


def stage_markdown(artifact: Artifact) -> str:
    """The page of one stage: outcome and cause, pictures, documents by source, where the artifact lies."""
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
    pictures = [markdown_image(svg, f"{artifact.stage}: {words}") for words, svg in stage_pictures(artifact)]
    parts = [f"**{escape_markdown(cause_of(artifact))}**", *pictures, built, _parents(artifact), _documents(artifact)]
    return "\n\n".join([*filter(None, parts), f"Artifact: {markdown_code(artifact.path)}"])


def stage_pictures(artifact: Artifact) -> list[tuple[str, str]]:
    """The pictures of a stage's artifact as (what it shows, SVG); none where there is nothing to show."""
    draw = PICTURES.get(artifact.stage)
    return [(words, svg) for words, svg in draw(artifact) if svg] if draw else []


def _parents(artifact: Artifact) -> str:
    """What the artifact was made from, by identity and content."""
    parents = artifact.manifest["parents"]
    rows = [
        (role, parent.get("stage", "-"), parent.get("identity", "-")[:12], parent["content"][:12])
        for role, parent in sorted(parents.items())
        if isinstance(parent, dict)
    ]
    columns = ("made from", "stage", "identity", "content")
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
    came = total.documents_in or 1
    rules = [(line["rule"], line["documents"]) for line in removed({artifact.stage: artifact.report})]
    if len(rules) > MOST_RULES:
        rest = rules[MOST_RULES - 1 :]
        rules = [*rules[: MOST_RULES - 1], (f"{len(rest)} more rules", sum(count for _, count in rest))]
    left = total.documents_in
    rows = [Bar("came in", ((left, "main"),), f"{left:,} documents")]
    for rule, count in rules:
        left -= count
        rows.append(Bar(rule, ((left, "main"), (count, "lost")), f"−{count:,} ({count / came:.1%})"))
    out = total.documents_out
    rows.append(Bar("went on", ((out, "main"),), f"{out:,} ({out / came:.1%})"))
    return [("documents removed by rule", bars("Documents, rule by rule", rows, KEPT_AND_LOST))]


def _dedup(artifact: Artifact) -> list[tuple[str, str]]:
    """What was removed, and how much of what was planted the search found."""
    planted = artifact.report.facts.get("planted", {})
    clusters = artifact.report.facts.get("clusters", {})
    rows = [
        Bar(
            f"{low:g} to {high:g}",
            ((found / pairs, "main"), (1 - found / pairs, "pale")),
            f"{found:,} of {pairs:,} planted copies found",
        )
        for low, high, pairs, found, _ in planted.get("bins", ())
        if pairs
    ]
    title = (
        f"Copies by similarity; {clusters.get('count', 0):,} clusters, the largest of {clusters.get('largest', 0):,}"
    )
    return [*_stage_funnel(artifact), ("planted copies found by their similarity", bars(title, rows) if rows else "")]


def _decontaminate(artifact: Artifact) -> list[tuple[str, str]]:
    return [("benchmark items found in the text", leaks_picture(leaks({artifact.stage: artifact.report})))]


def leaks_picture(lines: Sequence[dict[str, Any]]) -> str:
    """Items of each benchmark by state; empty without benchmarks."""
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


def mixture_picture(lines: Sequence[dict[str, Any]]) -> str:
    """Share of the training tokens of each source, wanted and read; empty without a mixture."""
    rows = [
        bar
        for line in lines
        for bar in (
            Bar(line["source"], ((line["weight"], "pale"),), f"{line['weight']:.1%} wanted"),
            Bar(
                "read",
                ((line["realised_share"], "main"),),
                f"{line['realised_share']:.1%}, {line['epochs']:.2f} times over",
            ),
        )
    ]
    return bars("Share of the training tokens", rows) if rows else ""


def _vocab(artifact: Artifact) -> list[tuple[str, str]]:
    found = artifact.report.facts.get("vocabulary", {}).get("bytes_per_token", {})
    rows = [Bar(source, ((value, "main"),), f"{value:.2f}") for source, value in found.items()]
    return [("bytes per token by source", bars("Bytes of text in a token (more is denser)", rows) if rows else "")]


def _chunk(artifact: Artifact) -> list[tuple[str, str]]:
    rows = [
        Bar(
            line["source"],
            ((line["reads"], "main"),),
            f"{line['reads']:,} of {line['rows']:,} rows, {line['epochs']:.2f} epochs, {line['realised_share']:.1%}",
        )
        for line in mixture({artifact.stage: artifact.report})
    ]
    return [("rows that training reads by source", bars("Rows that training reads", rows) if rows else "")]


def _train(artifact: Artifact) -> list[tuple[str, str]]:
    metrics = final_rows(artifact.table("metrics"), artifact.table("steps"))
    if not metrics.num_rows:
        return []
    tokens = metrics.column("tokens").to_pylist()
    panels = [
        Curve("loss, nats", tokens, metrics.column("loss").to_pylist(), ".3f"),
        *(
            Curve(words, tokens, metrics.column(name).to_pylist(), form, spark=True)
            for name, words, form in TERMS
            if name in metrics.column_names and not metrics.column(name).null_count
        ),
        Curve("learning rate", tokens, metrics.column("lr").to_pylist(), ".1e", spark=True),
        Curve("gradient norm", tokens, metrics.column("grad_norm").to_pylist(), ".2g", spark=True),
    ]
    heat = training_activation_map(artifact, MOST_COLUMNS)
    return [
        ("loss and learning rate over tokens", curves("Training", panels, "tokens read")),
        ("how fast it went", _speed(artifact, metrics)),
        ("what the thermometers read", heat_picture("Thermometers", heat) if heat else ""),
    ]


def _speed(artifact: Artifact, metrics: pa.Table) -> str:
    """Tokens a second, and the share of the machine's peak where it is known, over the tokens of `metrics`."""
    if not artifact.rows("perf"):
        return ""
    drawn = speed_figure(artifact.table("perf"), metrics)
    traces = [] if drawn is None else drawn["data"]
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
        ("bits per byte against baselines", bits_picture(bits_per_byte(artifacts))),
        ("scores with their 95% intervals", scores_picture(scores(artifacts))),
    ]


def bits_picture(lines: Sequence[dict[str, Any]]) -> str:
    """Bits per byte by held-out source beside the baselines; empty for a model without."""
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
    legend = [(role, words) for _, role, words in roles]
    return bars("Bits per byte of held-out text (fewer is better)", rows, legend) if rows else ""


def scores_picture(rows: Sequence[dict[str, Any]]) -> str:
    """Accuracy of each benchmark on all, clean and leaked items, with intervals and chance; empty without any."""
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


PICTURES: dict[str, Callable[[Artifact], list[tuple[str, str]]]] = {
    "sample": _sample,
    "clean": _stage_funnel,
    "dedup": _dedup,
    "decontaminate": _decontaminate,
    "vocab": _vocab,
    "chunk": _chunk,
    "train": _train,
    "evaluate": _evaluate,
}
