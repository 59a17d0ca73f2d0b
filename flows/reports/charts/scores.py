"""Plotly figures and tables of held-out text, benchmark scores, removals by rule, and near-duplicate recall."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flows.metrics.formatting import format_shots, plot_labels, plot_text
from flows.metrics.lines import BitsLine, Duplicates, Metrics
from flows.metrics.statistics import Interval, interval_of_score
from flows.reports.charts.figure import LEGEND, Figure, axis, bars, figure, points, reach, upright
from tasks.artifacts.tables.rows import GapRow, ScoreRow

PREDICTORS = (("model", "this model"), ("5gram", "5-gram"), ("unigram", "token unigram"), ("xz", "xz"))
"""Columns of bits per byte and their titles."""

MEAN = "all (mean)"
"""Label of the row over all held-out sources, which is their unweighted mean."""

MAX_RULES = 12

SUBSET_OFFSET = 0.22
"""Vertical distance between the subsets of one benchmark, in lines."""

RIGHT_ITEMS = ("acc", "exact")
"""Metrics that are the share of items answered right."""

MAIN_METRICS = (*RIGHT_ITEMS, "f1", "rouge_1", "rouge_2", "rouge_l")
"""Metrics from 0 to 1; the primary one of a benchmark, which comes first in SCORES, is drawn."""


def bits_figure(lines: list[BitsLine]) -> Figure | None:
    """Return bits per byte by held-out source, of the model and its baselines, lower is better; None without any."""
    if not lines:
        return None
    ordered = list(reversed(lines))
    names = plot_labels(MEAN if line["source"] == "all" else line["source"] for line in ordered)
    roles = ("muted1", "muted0", "series1", "accent")
    data = [
        points(
            role,
            [line.get(who) for line in ordered],
            names,
            f"{title}: %{{x:.3f}} bits per byte<extra>%{{y}}</extra>",
            name=title,
            marker={"symbol": "diamond", "size": 13} if who == "model" else {"symbol": "circle", "size": 10},
        )
        for role, (who, title) in zip(roles, reversed(PREDICTORS), strict=True)
        if any(line.get(who) is not None for line in ordered)
    ]
    rows = {"automargin": True, "type": "category", "range": [-0.6, len(names) - 0.4]}
    legend = {**LEGEND, "traceorder": "reversed"}
    return figure(
        data, 110 + 30 * len(names), legend=legend, hovermode="closest", xaxis=axis("bits per byte"), yaxis=rows
    )


def scores_figure(rows: list[ScoreRow]) -> Figure | None:
    """Return a line for each benchmark and number of shots: main metric on all, clean and leaked items, with 95%
    intervals, and a tick at chance; None without a benchmark."""
    mine = main_rows(rows)
    lines = list(dict.fromkeys((row["task"], row["shots"]) for row in mine))
    if not lines:
        return None
    places = {line: -place for place, line in enumerate(lines)}
    data = []
    for number, (subset, role) in enumerate((("all", "series0"), ("clean", "series1"), ("leaked", "series2"))):
        found = [row for row in mine if row["subset"] == subset]
        if found:
            ends = [_interval(row) or Interval(0.0, 0.0, 0.0) for row in found]
            data.append(
                points(
                    role,
                    [row["value"] for row in found],
                    [places[row["task"], row["shots"]] + SUBSET_OFFSET * (1 - number) for row in found],
                    f"{subset} items: %{{x:.1%}} of %{{customdata[1]:,}}<extra>%{{customdata[0]}}</extra>",
                    error_x=reach([one.high - one.value for one in ends], width=3)
                    | {"symmetric": False, "arrayminus": [one.value - one.low for one in ends]},
                    customdata=[[_line_name(row["task"], row["shots"]), row["n"]] for row in found],
                    name=f"{subset} items",
                )
            )
    chances = {
        place: chance_of(row for row in mine if (row["task"], row["shots"]) == line) for line, place in places.items()
    }
    known = {place: chance for place, chance in chances.items() if chance is not None}
    if known:
        marker = {"symbol": "line-ns-open", "size": 22}
        data.append(points("soft", [*known.values()], [*known], "chance: %{x:.1%}", marker=marker, name="chance"))
    named = {
        "automargin": True,
        "zeroline": False,
        "tickvals": list(places.values()),
        "ticktext": [_line_name(*line) for line in lines],
        "range": [0.6 - len(lines), 0.6],
    }
    shares = {"tickformat": ".0%", "rangemode": "tozero"}
    return figure(data, 110 + 40 * len(lines), legend=LEGEND, hovermode="closest", xaxis=shares, yaxis=named)


def _interval(row: ScoreRow) -> Interval | None:
    return interval_of_score(row["value"] or 0.0, row["stderr"], row["n"])


def score_error(row: ScoreRow) -> str:
    """Return the 95% interval of a score in percent: ` ± 2.0` or ` (0.0 to 56.1)`; empty without an error."""
    found = _interval(row)
    return "" if found is None else found.scaled(100).beside(".1f")


def _line_name(task: str, shots: int) -> str:
    return f"{plot_text(task)}, {format_shots(shots)}"


def removed_figure(findings: Metrics, colours: dict[str, int]) -> Figure | None:
    """Return the documents that the rules which removed most removed, by source; hover text shows their share of the
    source. None where no rule removed any. `colours` are the sources' colour numbers."""
    lines = sorted(findings["removed"], key=lambda line: -line["documents"])[:MAX_RULES]
    if not lines:
        return None
    read = {line["source"]: line.get("sample", 0) for line in findings["funnel"]}
    ordered = list(reversed(lines))
    names = plot_labels(line["rule"] for line in ordered)
    data = []
    for source in sorted({source for line in lines for source in line["by_source"]}):
        counts = [line["by_source"].get(source, 0) for line in ordered]
        shares = [count / max(1, read.get(source, 0)) for count in counts]
        hover = f"%{{x:,}} documents, %{{customdata:.2%}} of {source}"
        data.append(bars(f"s{colours.get(source, 11)}", counts, names, hover, customdata=shares, name=source))
    return figure(
        data,
        70 + 24 * len(names),
        barmode="stack",
        bargap=0.3,
        # The page has a legend of its own, which wraps better.
        showlegend=False,
        xaxis=axis("documents", tickformat=",d", rangemode="tozero"),
        yaxis={"automargin": True},
    )


def duplicates_figure(duplicates: Duplicates) -> Figure | None:
    """Return the recall of near-duplicate search by similarity, expected of the LSH bands, and of injected copies; None
    where none were injected."""
    if not duplicates or not (planted := duplicates["planted"])["planted"]:
        return None
    bins = [entry for entry in planted["bins"] if entry[2]]
    similarities, expected = ([point[place] for point in duplicates["s_curve"]] for place in (0, 1))
    hover = "expected %{y:.1%} at %{x}"
    curve = points("muted0", similarities, expected, hover, mode="lines", name="expected")
    found = points(
        "accent",
        [(low + high) / 2 for low, high, *_ in bins],
        [hits / pairs for _, _, pairs, hits, *_ in bins],
        "found %{text}, %{y:.1%}",
        text=[f"{hits} of {pairs}" for _, _, pairs, hits, *_ in bins],
        name="injected copies found",
    )
    return figure(
        [curve, found],
        300,
        legend=LEGEND,
        shapes=[upright(planted["threshold"])],
        xaxis=axis("true Jaccard similarity", range=[0.49, 1.01]),
        yaxis=axis("recall", tickformat=".0%", range=[-0.03, 1.05]),
    )


def chance_of(rows: Iterable[ScoreRow]) -> float | None:
    """Return the score of random guessing, where the notes of the scores state it (`chance 0.250`)."""
    stated = (re.search(r"\bchance ([0-9.]*[0-9])", row["note"]) for row in rows if row["subset"] == "all")
    return next((float(match[1]) for match in stated if match), None)


def main_rows(rows: list[ScoreRow]) -> list[ScoreRow]:
    """Return the rows of each benchmark's main metric that have a value, benchmark by benchmark."""
    by_task: dict[str, list[ScoreRow]] = {}
    for row in rows:
        by_task.setdefault(row["task"], []).append(row)
    mine = [row for of_task in by_task.values() for row in of_task if row["metric"] == main_metric(of_task)]
    return [row for row in mine if row["value"] is not None]


def main_metric(rows: Sequence[ScoreRow]) -> str | None:
    """Return the main metric of a benchmark's rows, the first of them, preferring one with values; None where it has
    none of MAIN_METRICS."""
    ordered = sorted((row for row in rows if row["metric"] in MAIN_METRICS), key=lambda row: row["value"] is None)
    return ordered[0]["metric"] if ordered else None


@dataclass(frozen=True)
class ScoreTableLine:
    """The main metric at a number of shots: a cell for each subset, and the contamination gap."""

    shots: int
    cells: dict[str, ScoreRow]
    gap: GapRow | None


@dataclass(frozen=True)
class ScoreTable:
    """A benchmark: its main metric by number of shots, and the rows of all other metrics."""

    task: str
    metric: str | None
    lines: list[ScoreTableLine]
    notes: list[str]
    others: list[ScoreRow]


def score_tables(rows: Iterable[ScoreRow], gaps: Iterable[GapRow]) -> list[ScoreTable]:
    """Return a table for each benchmark."""
    rows, tested = list(rows), {(gap["task"], gap["metric"], gap["shots"]): gap for gap in gaps}
    tables: list[ScoreTable] = []
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        metric = main_metric(mine)
        main = [row for row in mine if row["metric"] == metric]
        lines: list[ScoreTableLine] = []
        for shots in sorted({row["shots"] for row in main}):
            cells = {row["subset"]: row for row in main if row["shots"] == shots}
            lines.append(ScoreTableLine(shots, cells, tested.get((task, metric or "", shots))))
        notes = list(dict.fromkeys(f"{format_shots(r['shots'])}: {r['note']}" for r in main if r["note"]))
        others = [row for row in mine if row["metric"] != metric]
        tables.append(ScoreTable(task, metric, lines, notes, others))
    return tables
