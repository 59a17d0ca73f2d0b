"""The report of a comparison of two runs, for a page and a terminal, from what `comparison.compare` returns."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flows.metrics.formatting import format_shots, plot_labels, plot_text, shorten
from flows.metrics.stage_lines import open_artifacts
from flows.reports.charts.figure import (
    LEGEND,
    Figure,
    axis,
    figure,
    label_axis,
    plain,
    points,
    reach,
    thin,
    tokens_axis,
    upright,
)
from flows.reports.charts.training import curve
from flows.reports.comparison import HELDOUT_DIFFERS, PAIRED, SAME, ComparedScore, Comparison, Pair
from flows.reports.document import Chart, Document, Part, Section, Styled, Table
from flows.runs.record import RunData
from model.checkpoint.metrics import final_rows
from tasks.artifacts.artifact import Artifact

ROLES = ("series1", "accent")
"""Colour roles of the first and the second run."""

MAX_CHART_RULES = 14

MAX_SETTING_CHARS = 120

VERDICT_STYLES = {"better": "green", "worse": "red"}

UNPAIRED_NOTE = (
    "Where a run did not keep the score of every item, the test is unpaired, from standard errors, and has less power."
)


def comparison_document(found: Comparison, records: list[RunData]) -> Document:
    """Return the report on the runs of `records`."""
    artifacts = [open_artifacts(record) for record in records]
    names = [run["run_id"] for run in found["runs"]]
    named = (
        f"{place}: {run['recipe']} {run['run_id']} ({run['state']})"
        for place, run in zip(("first", "second"), found["runs"], strict=True)
    )
    removed = sorted(found["removed"], key=lambda pair: -max(value or 0 for value in pair["values"]))
    bits = found["bits_per_byte"]
    held_out: list[Part] = [Chart("bits", pairs_figure(bits, names, ".2f", "bits per byte", rangemode="normal"))]
    held_out += [HELDOUT_DIFFERS, *_pairs(found["heldout"], "figure")] if found["heldout"] is not None else []
    training: list[Part] = [Chart("loss", loss_figure(artifacts, names), "loss of both runs over tokens read")]
    shares: list[Part] = [Chart("mixture", pairs_figure(found["mixture"], names, ".1%", "share of the tokens read"))]
    shares += _pairs(found["mixture"], "source", _share)
    by_rule = Chart("removed", pairs_figure(removed[:MAX_CHART_RULES], names, ",d", "documents"))
    sections = (
        Section("What differs", [_stages(found), *_settings(found)]),
        Section("Training", [*training, *_pairs(found["training"], "")]),
        Section("Scores", _scores(found), "Second minus first, with 95% intervals."),
        Section("Held-out text", [*held_out, *_pairs(bits, "source")], "Bits per byte; lower is better."),
        Section("Mixture", shares, "Share of the tokens read in training."),
        Section("What was removed", [by_rule, *_pairs(removed, "rule")], "Documents dropped, by rule."),
        Section("Documents kept", _pairs(found["documents"], "source")),
        Section("Leaked items", _pairs(found["leaks"], "benchmark")),
    )
    return Document("Two runs compared", [one for one in sections if one.has_content], lead="; ".join(named))


def _stages(found: Comparison) -> Table:
    """Return which stages' artifacts differ, and the causes: settings, inputs, code or libraries."""
    rows = [
        (
            line["stage"],
            Styled(line["verdict"], "dim" if line["verdict"] == SAME else "yellow"),
            "; ".join(line["causes"]),
        )
        for line in found["stages"]
    ]
    return Table(("stage", "artifacts", "why"), rows, texts=("artifacts", "why"))


def _settings(found: Comparison) -> list[Part]:
    rows = [(line["path"], *map(_setting, line["values"])) for line in found["recipe"]]
    if not rows:
        return ["The recipes are the same."]
    return [Table(("setting", "first", "second"), rows, f"settings that differ ({len(rows)})", ("first", "second"))]


def _setting(value: Any) -> str | None:
    return None if value is None else shorten(str(value), MAX_SETTING_CHARS)


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:.4g}"


def _share(value: float) -> str:
    return f"{value:.1%}"


def _pairs(lines: Sequence[Pair], what: str, form: Callable[[float], str] = _number) -> list[Part]:
    """Return a table of the values of both runs and their differences; nothing without values."""
    rows = [
        (line["name"], *(None if one is None else form(one) for one in line["values"]), _difference(line, form))
        for line in lines
        if any(value is not None for value in line["values"])
    ]
    return [Table((what, "first", "second", "difference"), rows)] if rows else []


def _difference(line: Pair, form: Callable[[float], str]) -> str | None:
    first, second = line["values"]
    if first is None or second is None:
        return None
    apart = second - first
    shown = form(abs(apart))
    # What is rounded to nothing has no direction.
    return "0" if apart == 0 else shown if shown == form(0.0) else f"{'+' if apart > 0 else '-'}{shown}"


def _scores(found: Comparison) -> list[Part]:
    rows = []
    for line in found["scores"]:
        low, high = line["low"], line["high"]
        interval = "" if low is None or high is None else f" ({100 * low:+.1f} to {100 * high:+.1f})"
        rows.append(
            (
                f"{line['task']}, {format_shots(line['shots'])}",
                line["metric"],
                *(f"{value:.1%}" for value in line["values"]),
                f"{100 * line['mean']:+.1f}{interval}",
                line["n"],
                Styled(line["verdict"], VERDICT_STYLES.get(line["verdict"], "")),
                line["how"],
            )
        )
    columns = ("benchmark", "metric", "first", "second", "difference", "items", "second is", "tested")
    texts = ("metric", "second is", "tested")
    table = Table(columns, rows, note=UNPAIRED_NOTE, texts=texts)
    if all(line["how"] == PAIRED for line in found["scores"]):
        table = Table(columns[:-1], [row[:-1] for row in rows], texts=texts)
    return [Chart("scores", scores_figure(found["scores"])), table] if rows else []


def loss_figure(artifacts: list[dict[str, Artifact]], names: list[str]) -> Figure | None:
    """Return the loss curves of both runs over tokens read, with their difference (second minus first) below.

    None unless both runs trained.
    """
    if not all("train" in found and found["train"].rows("metrics") for found in artifacts):
        return None
    tables = [final_rows(found["train"].table("metrics"), found["train"].table("steps")) for found in artifacts]
    data = [
        curve(table, "loss", role, "%{y:.4g} at %{x:.3s} tokens", name=plot_text(name))
        for table, name, role in zip(tables, names, ROLES, strict=True)
    ]
    x, apart = _loss_difference(*tables)
    shown = {"mode": "lines", "yaxis": "y2", "name": "second minus first", "showlegend": False}
    data.append(points("series2", x.tolist(), plain(apart), "%{y:+.4f} at %{x:.3s} tokens", **shown))
    loss, below = axis("loss, nats", domain=[0.36, 1]), axis("difference", domain=[0, 0.28], nticks=4)
    return figure(data, 460, legend=LEGEND, hovermode="x", xaxis=tokens_axis("y2"), yaxis=loss, yaxis2=below)


def _loss_difference(first: pa.Table, second: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return (tokens, second loss minus first loss) at the first run's steps that lie within the second run.

    The second run's loss is interpolated linearly between its own steps.
    """
    x, y = (first.column(name).to_numpy() for name in ("tokens", "loss"))
    other_x, other_y = (second.column(name).to_numpy() for name in ("tokens", "loss"))
    both = (x >= other_x[0]) & (x <= other_x[-1])
    places = np.flatnonzero(both)
    places = places[thin(len(places))]
    return x[places], np.interp(x[places], other_x, other_y) - y[places]


def pairs_figure(
    pairs: list[Pair], names: list[str], form: str, title: str, rangemode: str = "tozero"
) -> Figure | None:
    """Return a dot plot with a line for each name: a ring is the first run, a dot the second. None without values."""
    ordered = [pair for pair in reversed(pairs) if any(value is not None for value in pair["values"])]
    if not ordered:
        return None
    labels = plot_labels(pair["name"] for pair in ordered)
    both = [(label, pair["values"]) for label, pair in zip(labels, ordered, strict=True) if None not in pair["values"]]
    x = [place for _, values in both for place in (*values, None)]
    y = [place for label, _ in both for place in (label, label, None)]
    data = [points("muted1", x, y, "", mode="lines", showlegend=False, hoverinfo="skip")]
    # Equal values show as a dot inside a ring.
    markers = {"size": 14, "symbol": "circle-open"}, {"size": 9, "symbol": "circle"}
    for number, (name, role, marker) in enumerate(zip(names, ROLES, markers, strict=True)):
        hover, values = f"%{{x:{form}}}<extra>{plot_text(name)}</extra>", [pair["values"][number] for pair in ordered]
        data.append(points(role, values, labels, hover, name=plot_text(name), marker=marker))
    across = axis(title, tickformat=form, rangemode=rangemode)
    height = 110 + 28 * len(ordered)
    return figure(data, height, legend=LEGEND, hovermode="closest", xaxis=across, yaxis=label_axis(labels))


def scores_figure(scores: list[ComparedScore]) -> Figure | None:
    """Return score differences (second minus first) with their 95% intervals; None without a common benchmark."""
    ordered = list(reversed(scores))
    if not ordered:
        return None
    labels = [f"{plot_text(line['task'])}, {format_shots(line['shots'])}" for line in ordered]
    data = []
    for verdict, role in (("better", "good"), ("worse", "bad"), ("no difference", "muted0")):
        mine = [(label, line) for label, line in zip(labels, ordered, strict=True) if line["verdict"] == verdict]
        if mine:
            above = [(line["high"] - line["mean"]) if line["high"] is not None else 0.0 for _, line in mine]
            below = [(line["mean"] - line["low"]) if line["low"] is not None else 0.0 for _, line in mine]
            means, rows = [line["mean"] for _, line in mine], [label for label, _ in mine]
            errors = reach(above) | {"symmetric": False, "arrayminus": below}
            shown = {"error_x": errors, "name": verdict, "marker": {"size": 10}}
            data.append(points(role, means, rows, "%{x:+.1%}<extra>%{y}</extra>", **shown))
    return figure(
        data,
        110 + 30 * len(ordered),
        legend=LEGEND,
        hovermode="closest",
        shapes=[upright(0)],
        xaxis=axis("second minus first", tickformat="+.0%"),
        yaxis=label_axis(labels),
    )
