"""What a finished stage shows: how it came to be, a picture of what it did, and its counts by source."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from flows.dashboard.heat_picture import MOST_COLUMNS, heat_picture
from flows.dashboard.markdown import code, picture, plain, table
from flows.dashboard.pictures import Bar, Curve, Interval, bars, curves, intervals
from flows.findings import bits_per_byte, leaks, mixture, removed, scores
from flows.heat import trained_heat
from flows.page.charts import chance_of
from flows.page.speed_chart import speed_figure
from flows.wording import compact, duration, shots_word, size
from model.kept_rows import kept_rows
from tasks.artifact import Artifact
from tasks.outcome import cause_of

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
    built = table(
        ("outcome", "time", "bytes", "identity"),
        [(artifact.outcome, duration(timings["seconds"]), size(artifact.manifest["bytes"]), artifact.identity[:12])],
    )
    pictures = [picture(svg, f"{artifact.stage}: {words}") for words, svg in stage_pictures(artifact)]
    parts = [f"**{plain(cause_of(artifact))}**", *pictures, built, _parents(artifact), _documents(artifact)]
    return "\n\n".join([*filter(None, parts), f"Artifact: {code(artifact.path)}"])


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
    return table(columns, rows, texts=columns) if rows else ""


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
            size(counts.bytes_out),
        )
        for name, counts in sorted(sources.items(), key=lambda pair: -pair[1].documents_in)
    ]
    columns = ("source", "documents in", "out", "not selected", "rejected", "dropped", "held out", "bytes out")
    return table(columns, rows)


def _sample(artifact: Artifact) -> list[tuple[str, str]]:
    plan = artifact.report.facts.get("mixture_plan", {})
    rows = [
        Bar(
            source,
            ((line["weight"], "main"),),
            f"{line['weight']:.0%}: {compact(line['target_tokens'])} tokens, {line['epochs']:.2g} epochs",
        )
        for source, line in sorted(plan.items(), key=lambda pair: -pair[1]["weight"])
    ]
    return [("the planned mixture by source", bars("Planned share of the training tokens", rows) if rows else "")]


def _funnel(artifact: Artifact) -> list[tuple[str, str]]:
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
    return [*_funnel(artifact), ("planted copies found by their similarity", bars(title, rows) if rows else "")]


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
    metrics = kept_rows(artifact.table("metrics"), artifact.table("steps"))
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
    heat = trained_heat(artifact, MOST_COLUMNS)
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
            f"{row['task']} {shots_word(row['shots'])}" if row["subset"] == "all" else f"{row['subset']} items",
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
    "clean": _funnel,
    "dedup": _dedup,
    "decontaminate": _decontaminate,
    "vocab": _vocab,
    "chunk": _chunk,
    "train": _train,
    "evaluate": _evaluate,
}
