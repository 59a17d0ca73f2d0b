"""Plotly figures of the data: document flow, mixture, benchmark leaks, tokens per character, and artifact lineage."""

import math
from collections import Counter
from collections.abc import Mapping

from flows.metrics.accounting import empty_files
from flows.metrics.formatting import format_bytes, format_duration, format_language, plot_labels, plot_text
from flows.metrics.lines import BenchmarkLine, SourceLine
from flows.recipe.stages import STAGES
from flows.reports.charts.figure import LEGEND, Figure, Trace, axis, bars, figure, points
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.report import SourceCounts, StageReport

PASSED = {
    "sample": "sampled",
    "clean": "cleaned",
    "dedup": "unique",
    "decontaminate": "no leaks",
    "chunk": "packed",
}
"""Label of the documents that each stage kept."""

LOST = {
    "sample": "dropped",
    "clean": "filtered",
    "dedup": "duplicates",
    "decontaminate": "leaks",
    "chunk": "too short to pack",
}
"""Label of the documents that each stage dropped."""

UNREADABLE, EMPTY, HELD_OUT = "unreadable", "empty", "held out"

SOURCE_PREFIX = "source "
"""Prefix of a source's node, because a source may have the name of an outcome."""

TICKS = (("weight", "soft", "weight"), ("planned_share", "series1", "planned"))
"""Column of the mixture, colour, title."""

LEAK_STATES = (
    ("remains", "bad", "leaked, still in the text"),
    ("removed", "accent", "leaked and removed"),
    ("unmatchable", "muted1", "too short to match"),
    ("clean", "series1", "clean"),
)
"""State of a benchmark item, colour, title."""

ROW_HEIGHT = 46
"""Pixels between stages."""

ARC_POINTS = 24

Flows = Counter[tuple[str, str, str]]
"""Documents between nodes: where they begin and end, and their source."""

OUTSIDE = {"textposition": "outside", "cliponaxis": False}
"""Texts of bars beyond their ends."""


def funnel_figure(reports: dict[str, StageReport], colours: dict[str, int]) -> Figure | None:
    """Return a Sankey diagram of the documents of each source, with a node for each outcome; None without documents.

    Documents that sampling did not select are not shown, because they would dominate the diagram. `narrow` is the
    diagram for a phone, from source to outcome without the stages between. `colours` are the sources' colour numbers.
    """
    stages = [stage for stage in PASSED if stage in reports]
    if not stages or not reports[stages[0]].total().documents_out:
        return None
    wide, narrow = Flows(), Flows()
    kept = PASSED[stages[-1]]
    # A stage that kept every document has no node.
    shown = [stage for stage in stages if _removals(stage, reports[stage].total())] or stages[-1:]
    empty = empty_files(reports)
    for source in colours:
        node = begin = f"{SOURCE_PREFIX}{source}"
        for stage in shown:
            counts = reports[stage].sources.get(source, SourceCounts())
            end = kept if stage == shown[-1] else PASSED[stage]
            held_nothing = empty.get(source, 0) if stage == "sample" else 0
            for outcome, documents in _removals(stage, counts, held_nothing).items():
                wide[node, outcome, source] += documents
                narrow[begin, outcome, source] += documents
            wide[node, end, source] += counts.documents_out
            node = end
        narrow[begin, kept, source] += reports[shown[-1]].sources.get(source, SourceCounts()).documents_out
    return {
        **_sankey(+wide, colours, kept, height=300 + 24 * len(colours)),
        "narrow": _sankey(+narrow, colours, kept, height=240 + 24 * len(colours)),
    }


def _removals(stage: str, counts: SourceCounts, empty: int = 0) -> Counter[str]:
    """Return outcome -> documents that a stage did not pass on, without outcomes of none."""
    rejected = {UNREADABLE: counts.rejected - empty, EMPTY: empty}
    return +Counter({LOST[stage]: counts.dropped.total(), **rejected, HELD_OUT: counts.held_out})


def _sankey(flows: Flows, colours: dict[str, int], kept: str, height: int) -> Figure:
    links = list(flows.items())
    nodes = list(dict.fromkeys(name for begin, end, _ in flows for name in (begin, end)))
    amounts: Counter[str] = Counter()
    for (begin, end, _), documents in links:
        amounts[end] += documents
        amounts[begin] += documents if begin.startswith(SOURCE_PREFIX) else 0
    trace = {
        "type": "sankey",
        "arrangement": "snap",
        "node": {
            "label": [f"{plot_text(name.removeprefix(SOURCE_PREFIX))} {amounts[name]:,}" for name in nodes],
            "align": "left",
            "pad": 14,
            "thickness": 12,
            "hovertemplate": "%{label} documents<extra></extra>",
        },
        "link": {
            "source": [nodes.index(begin) for (begin, _, _), _ in links],
            "target": [nodes.index(end) for (_, end, _), _ in links],
            "value": [documents for _, documents in links],
            "customdata": [f"{plot_text(source)}: {plot_text(end)}" for (_, end, source), _ in links],
            "hovertemplate": "%{customdata}, %{value:,} documents<extra></extra>",
        },
        "meta": {
            "node_roles": [
                f"s{colours[name.removeprefix(SOURCE_PREFIX)]}"
                if name.startswith(SOURCE_PREFIX)
                else "good"
                if name in (kept, HELD_OUT)
                else "muted0"
                for name in nodes
            ],
            "link_roles": [f"s{colours[source]}" for (_, _, source), _ in links],
        },
    }
    return figure([trace], height, margin={"l": 4, "r": 4, "t": 10, "b": 16})


def mixture_figure(lines: list[SourceLine]) -> Figure | None:
    """Return a bar for each source's share of the tokens read, with its epochs, and ticks for its weight and planned
    share; None without a mixture."""
    if not lines:
        return None
    ordered = list(reversed(lines))
    names = plot_labels(line["source"] for line in ordered)
    read = bars(
        "accent",
        [line["realised_share"] for line in ordered],
        names,
        "read: %{x:.2%}<extra>%{y}</extra>",
        text=[f"{line['realised_share']:.1%}, {line['epochs']:.2f} ×" for line in ordered],
        name="read, and epochs",
        **OUTSIDE,
    )
    marker = {"symbol": "line-ns-open", "size": 18, "line": {"width": 3}}
    ticks = [
        points(
            role,
            [line[column] for line in ordered],
            names,
            f"{title}: %{{x:.2%}}<extra>%{{y}}</extra>",
            name=title,
            marker=marker,
        )
        for column, role, title in TICKS
    ]
    widest = max(line[column] for line in lines for column in ("realised_share", "weight", "planned_share"))
    return figure(
        [read, *ticks],
        90 + 32 * len(names),
        bargap=0.45,
        legend=LEGEND,
        hovermode="closest",
        # Leaves space for the label of the longest bar.
        xaxis={"tickformat": ".0%", "range": [0, 1.5 * widest or 1]},
        yaxis={"automargin": True},
    )


def leak_figure(lines: list[BenchmarkLine]) -> Figure | None:
    """Return the shares of each benchmark's items by state; None without benchmarks."""
    ordered = [line for line in reversed(lines) if line["items"]]
    if not ordered:
        return None
    names = plot_labels(line["benchmark"] for line in ordered)
    data = []
    for key, role, title in LEAK_STATES:
        counts = [line["leaked"] - line["remains"] if key == "removed" else line[key] for line in ordered]
        if any(counts):
            shares = [count / line["items"] for count, line in zip(counts, ordered, strict=True)]
            hover = f"{title}: %{{customdata:,}} items, %{{x:.1%}}<extra>%{{y}}</extra>"
            data.append(bars(role, shares, names, hover, customdata=counts, name=title))
    return figure(
        data,
        96 + 27 * len(names),
        barmode="stack",
        bargap=0.3,
        legend={**LEGEND, "traceorder": "normal"},
        xaxis={"tickformat": ".0%", "range": [0, 1]},
        yaxis={"automargin": True},
    )


def token_figure(found: Mapping[str, float | list[float | None]]) -> Figure | None:
    """Return tokens per character by language; None without languages.

    `found` maps a language to its tokens per character, or to [base vocabulary, extended vocabulary].
    """
    if not found:
        return None
    ordered = [*found.items()][::-1]
    pairs = [value if isinstance(value, list) else [None, value] for _, value in ordered]
    names = plot_labels(format_language(language) for language, _ in ordered)
    data = []
    for place, role, title in ((0, "muted0", "base"), (1, "accent", "now")):
        values = [pair[place] for pair in pairs]
        if any(value is not None for value in values):
            text = ["" if value is None else f"{value:.3f}" for value in values]
            hover = f"{title}: %{{x:.3f}} tokens per character<extra>%{{y}}</extra>"
            data.append(bars(role, values, names, hover, text=text, name=title, **OUTSIDE))
    most = max(value for pair in pairs for value in pair if value is not None)
    return figure(
        data,
        90 + (44 if len(data) > 1 else 30) * len(pairs),
        barmode="group",
        bargap=0.3,
        showlegend=len(data) > 1,
        legend={**LEGEND, "traceorder": "reversed"},
        xaxis=axis("tokens per character", range=[0, 1.2 * most]),
        yaxis={"automargin": True, "type": "category"},
    )


def lineage_figure(artifacts: dict[str, Artifact], outcomes: dict[str, str]) -> Figure | None:
    """Return stages from top to bottom as dots, with an arc from each input to the artifact built from it.

    `outcomes` maps a stage to `built`, `reused` and so on. None without artifacts.
    """
    stages = [stage for stage in STAGES if stage in artifacts]
    if not stages:
        return None
    rows = {stage: -number for number, stage in enumerate(stages)}
    data = []
    for stage in stages:
        for role, parent in sorted(manifest_of(artifacts[stage])["parents"].items()):
            begin = parent["stage"]
            if begin in rows and rows[begin] > rows[stage]:
                data.append(_arc(rows[begin], rows[stage], f"{begin} to {stage}: {plot_text(role)}"))
    data.append(
        points(
            "accent",
            [0.0] * len(stages),
            [rows[stage] for stage in stages],
            "%{customdata}",
            mode="markers+text",
            text=[f"<b>{stage}</b> {artifacts[stage].identity[:8]}" for stage in stages],
            textposition="middle left",
            customdata=[_hover_text(artifacts[stage], outcomes.get(stage, "")) for stage in stages],
            marker={"size": 12, "symbol": "circle"},
            showlegend=False,
            cliponaxis=False,
        )
    )
    hidden = {"visible": False, "showgrid": False, "zeroline": False}
    across, down = {**hidden, "range": [-1.3, 1.4]}, {**hidden, "range": [0.6 - len(stages), 0.6]}
    return figure(data, 40 + ROW_HEIGHT * len(stages), showlegend=False, xaxis=across, yaxis=down)


def _arc(begin: int, end: int, label: str) -> Trace:
    """Return half an ellipse from one row to another, or a line between neighbours."""
    rows = begin - end
    bulge = 0.0 if rows == 1 else 0.16 * rows
    count = ARC_POINTS if bulge else 2
    angles = [math.pi * (0.5 - point / (count - 1)) for point in range(count)]
    middle, radius = (begin + end) / 2, rows / 2
    x = [round(bulge * math.cos(angle), 4) for angle in angles]
    y = [round(middle + radius * math.sin(angle), 4) for angle in angles]
    return points("muted0", x, y, label, mode="lines", line={"shape": "linear"}, name=label, showlegend=False)


def _hover_text(artifact: Artifact, outcome: str) -> str:
    manifest = manifest_of(artifact)
    lines = (
        f"<b>{artifact.stage}</b> {outcome}",
        f"identity {artifact.identity}",
        f"content {artifact.content}",
        f"{format_bytes(manifest['bytes'])}, built in {format_duration(manifest['timings']['seconds'])}",
    )
    return "<br>".join(lines)
