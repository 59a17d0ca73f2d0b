"""Plotly figures of a training: loss, gradient norm and learning rate with event markers, and training speed."""

import html
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.metrics.formatting import shorten
from flows.reports.charts.figure import LEGEND, Figure, Trace, axis, figure, plain, points, thin, tokens_axis
from model.checkpoint.metrics import final_rows
from tasks.artifacts.tables.rows import EventRow, rows_of

PANELS = (("loss", "y", "loss"), ("grad_norm", "y2", "gradient norm"), ("lr", "y3", "learning rate"))
"""Column of METRICS, axis, title; the n-th panel has the n-th colour."""

BERT_TERMS = (
    ("masked_loss", "y", "loss, masked tokens", "series1"),
    ("next_loss", "y", "loss, sentence pairs", "series2"),
    ("masked_accuracy", "y4", "accuracy, masked tokens", "series1"),
    ("next_accuracy", "y4", "accuracy, sentence pairs", "series2"),
)
"""Columns that only a BERT has, whose loss is a sum of two terms: column, axis, title, colour."""

DOMAINS = {"y": (0.5, 1.0), "y2": (0.25, 0.44), "y3": (0.0, 0.19)}

DOMAINS_WITH_TERMS = {"y": (0.62, 1.0), "y4": (0.4, 0.57), "y2": (0.2, 0.35), "y3": (0.0, 0.15)}

KINDS = (
    ("spike", "spike, skipped", "triangle-up", "series2"),
    ("rollback", "rollback", "triangle-left", "bad"),
    ("skipped_step", "non-finite step", "x", "bad"),
    ("overflow", "overflow", "triangle-down", "muted0"),
    ("intervention", "intervention", "star", "series2"),
    ("resume", "resumed", "circle-open", "series1"),
    ("fewer_ranks", "fewer ranks", "square-open", "series1"),
    ("damaged_checkpoint", "damaged checkpoint", "diamond", "bad"),
)
"""Kind of event, its title in the chart, symbol, colour."""

MAX_MARKS = 200
"""Markers of one kind; more would overlap."""

MAX_VALUE_CHARS = 160
"""Characters of a value in the hover text."""

HIDDEN_DETAILS = ("pid",)


def training_figure(
    metrics: pa.Table,
    steps: pa.Table,
    events: pa.Table,
    bytes_per_token: float | None = None,
    held_out: float | None = None,
    validation: pa.Table | None = None,
    baselines: Mapping[str, float] | None = None,
) -> Figure:
    """Return loss (nats), gradient norm and learning rate over tokens read, in three panels with one x axis.

    `bytes_per_token` of the training text adds an axis of bits per byte to the loss, which shows `held_out`, the bits
    per byte of the trained model on held-out text, and those of the table `validation` during training (unweighted mean
    of the sources), beside the `baselines`, name -> bits per byte of the same text, as level lines that the training
    crosses where it reads enough. For a BERT the first panel also has both terms of the loss, and a fourth panel the
    accuracies. Pale lines are attempts that the guard rolled back; markers on the loss are events (`event_marks`).
    """
    kept = final_rows(metrics, steps)
    traces = [(*panel, f"series{number}") for number, panel in enumerate(PANELS)]
    has_terms = metrics.column("masked_loss").null_count < metrics.num_rows
    traces += BERT_TERMS if has_terms else ()
    data = [
        _line(rows, name, axis, f"{title}, rolled back", "muted1")
        for rows in _rolled_back(metrics, kept)
        for name, axis, title in PANELS
    ]
    data += [_line(kept, name, axis, title, role) for name, axis, title, role in traces]
    marks = event_marks(events, metrics)
    scale = _bits_axis(data, bytes_per_token, held_out, _validation_bits(validation, kept), baselines or {})
    domains = DOMAINS_WITH_TERMS if has_terms else DOMAINS
    axes: dict[str, Any] = {
        "xaxis": tokens_axis("y3"),
        "yaxis": axis("loss, nats", domain=[*domains["y"]]),
        "yaxis2": axis("grad norm", domain=[*domains["y2"]], nticks=4),
        "yaxis3": axis("lr", domain=[*domains["y3"]], nticks=4, tickformat=".1~e", rangemode="tozero"),
    }
    if has_terms:
        axes["yaxis4"] = axis("accuracy", domain=[*domains["y4"]], nticks=4, tickformat=".0%")
    if scale is not None:
        held_out_traces, axes["yaxis5"], axes["yaxis"]["range"] = scale
        axes["yaxis5"]["domain"] = axes["yaxis"]["domain"]
        data += held_out_traces
    shown = bool(marks) or scale is not None
    return figure(data + marks, 580 if has_terms else 460, showlegend=shown, legend=LEGEND, hovermode="x", **axes)


def _line(rows: pa.Table, name: str, y_axis: str, title: str, role: str) -> Trace:
    form = ".1%" if y_axis == "y4" else ".4g"
    hover = f"{title} %{{y:{form}}} in step %{{customdata}}, at %{{x:.3s}} tokens"
    steps = rows.column("step").to_numpy()[thin(rows.num_rows)].tolist()
    is_loss = (name, role) == ("loss", "series0")
    return curve(rows, name, role, hover, yaxis=y_axis, name=title, showlegend=is_loss, customdata=steps)


def curve(rows: pa.Table, column: str, role: str, hover: str, **more: Any) -> Trace:
    """Return a column of METRICS over tokens read as a line of at most MAX_POINTS points."""
    places = thin(rows.num_rows)
    x, y = (rows.column(name).to_numpy()[places] for name in ("tokens", column))
    return points(role, x.tolist(), plain(y), hover, mode="lines", **more)


def _rolled_back(metrics: pa.Table, kept: pa.Table) -> list[pa.Table]:
    """Return the rows of METRICS that are not in the weights, a table for each attempt."""
    last = dict(_rows(kept, "step", "attempt"))
    is_lost = [last.get(step) != attempt for step, attempt in _rows(metrics, "step", "attempt")]
    rest = metrics.filter(pa.array(is_lost, pa.bool_()))
    attempts = rest.column("attempt")
    return [rest.filter(pc.equal(attempts, attempt)) for attempt in sorted(set(attempts.to_pylist()))]


def _bits_axis(
    data: list[Trace],
    bytes_per_token: float | None,
    held_out: float | None,
    validation: list[tuple[int, float]],
    baselines: Mapping[str, float],
) -> tuple[list[Trace], dict[str, Any], list[float]] | None:
    """Return traces of held-out text, their axis, and the matching range of the loss axis.

    None without held-out text, because Plotly does not draw an axis without traces.
    """
    losses = [value for trace in data if trace["yaxis"] == "y" for value in trace["y"] if value is not None]
    found = [value for _, value in validation] + ([] if held_out is None else [held_out])
    if bytes_per_token is None or not found or not losses:
        return None
    bits = 1 / (math.log(2) * bytes_per_token)
    found += baselines.values()
    low, high = min(*losses, min(found) / bits), max(*losses, max(found) / bits)
    margin = 0.06 * (high - low) or 0.1
    span = [low - margin, high + margin]
    last = max(place for trace in data for place in trace["x"])
    traces: list[Trace] = [
        points(
            role,
            [0, last],
            [value, value],
            f"{name}: {value:.3f} bits per byte",
            mode="lines",
            yaxis="y5",
            showlegend=True,
            name=name,
            line={"dash": "dot", "width": 1.5},
        )
        for (name, value), role in zip(baselines.items(), ("series1", "muted0"), strict=False)
    ]
    hover, shared = "held-out text: %{y:.3f} bits per byte", {"yaxis": "y5", "showlegend": True}
    if validation:
        x, y = ([point[index] for point in validation] for index in (0, 1))
        traces.append(points("good", x, y, hover, mode="lines+markers", name="validation", **shared))
    if held_out is not None:
        marker = {"symbol": "diamond", "size": 11}
        traces.append(points("good", [last], [held_out], hover, marker=marker, name="held-out text", **shared))
    right = axis(
        "bits per byte",
        overlaying="y",
        # Ticks aligned with those of the loss would not be round numbers.
        tickmode="auto",
        side="right",
        range=[bits * edge for edge in span],
        showgrid=False,
        zeroline=False,
        nticks=6,
        tickformat=".2~f",
    )
    return traces, right, span


def _validation_bits(validation: pa.Table | None, kept: pa.Table) -> list[tuple[int, float]]:
    """Return (tokens read, bits per byte) of each validation whose step is in the weights."""
    if validation is None:
        return []
    tokens = {(step, attempt): read for step, attempt, read in _rows(kept, "step", "attempt", "tokens")}
    by_step: dict[tuple[int, int], list[float]] = {}
    for row in validation.to_pylist():
        if row["bits_per_byte"] is not None and (row["step"], row["attempt"]) in tokens:
            by_step.setdefault((row["step"], row["attempt"]), []).append(row["bits_per_byte"])
    return sorted((tokens[key], sum(values) / len(values)) for key, values in by_step.items())


def event_marks(events: pa.Table, metrics: pa.Table) -> list[Trace]:
    """Return a trace of markers for each kind of event, with step, attempt and details as hover text.

    A marker is at the loss of its step, or at the last finite loss before. Empty where no loss is finite.
    """
    losses = metrics.column("loss").to_numpy()
    if not np.isfinite(losses).any():
        return []
    steps, attempts, tokens = (metrics.column(name).to_numpy() for name in ("step", "attempt", "tokens"))
    all_rows = rows_of(events, EventRow)
    traces = []
    for kind, title, symbol, role in KINDS:
        rows = [row for row in all_rows if row["kind"] == kind]
        if not rows:
            continue
        shown = [rows[index] for index in thin(len(rows), MAX_MARKS)]
        places = [_metrics_row(row, steps, attempts) for row in shown]
        x, y = tokens[places].tolist(), [_last_finite(losses, place) for place in places]
        named = title if len(rows) == 1 else f"{title} ({len(rows)})"
        texts, numbers = [_hover_text(row) for row in shown], [row["step"] for row in shown]
        marker = {"symbol": symbol, "size": 9}
        traces.append(
            points(role, x, y, f"{title}, %{{text}}", text=texts, customdata=numbers, name=named, marker=marker)
        )
    return traces


def _metrics_row(event: EventRow, steps: np.ndarray, attempts: np.ndarray) -> int:
    """Return the index of the event's row of METRICS, or of the last row before it in its or an earlier attempt."""
    before = np.flatnonzero((steps <= event["step"]) & (attempts <= event["attempt"]))
    if not before.size:
        return 0
    return int(before[np.lexsort((steps[before], attempts[before] * (steps[before] == event["step"])))[-1]])


def _last_finite(losses: np.ndarray, index: int) -> float:
    finite = np.flatnonzero(np.isfinite(losses))
    earlier = finite[finite <= index]
    return float(losses[earlier[-1] if earlier.size else finite[0]])


def _hover_text(event: EventRow) -> str:
    """Return the lines of the hover text, escaped because Plotly interprets HTML in them."""
    lines = [f"step {event['step']:,}" + (f", attempt {event['attempt']}" if event["attempt"] else "")]
    if event["positions"]:
        lines.append(f"positions {min(event['positions']):,} to {max(event['positions']) + 1:,} of ORDER")
    details = json.loads(event["detail"])
    shown = {name: value if isinstance(value, str) else json.dumps(value) for name, value in details.items()}
    lines += [f"{name}: {shorten(text, MAX_VALUE_CHARS)}" for name, text in shown.items() if name not in HIDDEN_DETAILS]
    return "<br>".join(html.escape(line, quote=False) for line in lines)


def speed_figure(perf: pa.Table, metrics: pa.Table) -> Figure | None:
    """Return tokens per second over tokens read, with model FLOPs utilisation below; None without a step.

    `metrics` has the tokens read at each step and attempt of `perf`.
    """
    places = {(step, attempt): tokens for step, attempt, tokens in _rows(metrics, "step", "attempt", "tokens")}
    rows = [(places[key], number) for number, key in enumerate(_rows(perf, "step", "attempt")) if key in places]
    if not rows:
        return None
    chosen = [rows[place] for place in thin(len(rows))]
    x = [tokens for tokens, _ in chosen]
    kept = perf.take(pa.array([number for _, number in chosen], pa.int64()))
    has_peak = kept.column("mfu").null_count < kept.num_rows
    panels = [("tokens_s", "y", "tokens per second", ".3s", "series1")]
    panels += [("mfu", "y2", "model FLOPs utilisation", ".1%", "accent")] if has_peak else []
    data = [
        points(
            role,
            x,
            plain(kept.column(name).to_numpy()),
            f"%{{y:{form}}} {title} at %{{x:.3s}} tokens",
            mode="lines",
            yaxis=y_axis,
            name=title,
            showlegend=False,
        )
        for name, y_axis, title, form, role in panels
    ]
    upper = [0.55, 1] if has_peak else [0, 1]
    axes = {
        "xaxis": tokens_axis("y2" if has_peak else "y"),
        "yaxis": axis("tokens per second", rangemode="tozero", tickformat="~s", domain=upper),
    }
    if has_peak:
        axes["yaxis2"] = axis("MFU", rangemode="tozero", tickformat=".0%", domain=[0, 0.42])
    return figure(data, 400 if has_peak else 240, hovermode="x", **axes)


def _rows(table: pa.Table, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values of some columns, row by row."""
    return zip(*(table.column(name).to_pylist() for name in columns), strict=True)
