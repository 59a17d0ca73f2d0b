"""The pictures of a comparison as plain Plotly figures, painted as those of the run page."""

from typing import Any

import numpy as np
import pyarrow as pa

from flows.page.plot_text import plot_text
from flows.page.training_chart import plain, thin
from flows.wording import shots_word
from model.kept_rows import kept_rows
from tasks.artifact import Artifact

ROLES = ("series1", "accent")
"""Colours of the first run and the second."""
MOST_RULES = 14


def figures(found: dict[str, Any], artifacts: list[dict[str, Artifact]]) -> dict[str, Any]:
    """The figures that there are, by name; `found` is what `compare` gives."""
    names = [run["run_id"] for run in found["runs"]]
    removed = sorted(found["removed"], key=lambda pair: -max(value or 0 for value in pair["values"]))[:MOST_RULES]
    made = {
        "loss": loss_figure(artifacts, names),
        "mixture": pairs_figure(found["mixture"], names, ".1%", "share of the tokens read"),
        "removed": pairs_figure(removed, names, ",d", "documents"),
        "bits": pairs_figure(found["bits_per_byte"], names, ".2f", "bits per byte", rangemode="normal"),
        "scores": scores_figure(found["scores"]),
    }
    return {name: figure for name, figure in made.items() if figure}


def loss_figure(artifacts: list[dict[str, Artifact]], names: list[str]) -> dict[str, Any] | None:
    """The losses of both trainings over the tokens that they read, and below the second's less the first's where both
    have one; None unless both trained."""
    if not all("train" in found and found["train"].rows("metrics") for found in artifacts):
        return None
    tables = [kept_rows(found["train"].table("metrics"), found["train"].table("steps")) for found in artifacts]
    data = [_line(table, name, role) for table, name, role in zip(tables, names, ROLES, strict=True)]
    x, apart = _differences(*tables)
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "x": x.tolist(),
            "y": plain(apart),
            "yaxis": "y2",
            "name": "second less first",
            "showlegend": False,
            "meta": {"role": "series2"},
            "hovertemplate": "%{y:+.4f} at %{x:.3s} tokens<extra></extra>",
        }
    )
    layout = {
        "height": 460,
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        "hovermode": "x",
        "xaxis": {"title": {"text": "tokens read"}, "anchor": "y2", "tickformat": "~s", "nticks": 6},
        "yaxis": {"title": {"text": "loss, nats"}, "domain": [0.36, 1]},
        "yaxis2": {"title": {"text": "difference"}, "domain": [0, 0.28], "nticks": 4},
    }
    return {"data": data, "layout": layout}


def _line(table: pa.Table, name: str, role: str) -> dict[str, Any]:
    places = thin(table.num_rows)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": table.column("tokens").to_numpy()[places].tolist(),
        "y": plain(table.column("loss").to_numpy()[places]),
        "name": plot_text(name),
        "meta": {"role": role},
        "hovertemplate": "%{y:.4g} at %{x:.3s} tokens<extra></extra>",
    }


def _differences(first: pa.Table, second: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of the first's steps up to where the second ends, and the second's loss there (between its own steps, on a
    line) less the first's."""
    x, y = (first.column(name).to_numpy() for name in ("tokens", "loss"))
    other_x, other_y = (second.column(name).to_numpy() for name in ("tokens", "loss"))
    both = (x >= other_x[0]) & (x <= other_x[-1])
    places = np.flatnonzero(both)
    places = places[thin(len(places))] if len(places) else places
    return x[places], np.interp(x[places], other_x, other_y) - y[places]


def pairs_figure(
    pairs: list[dict[str, Any]], names: list[str], form: str, title: str, rangemode: str = "tozero"
) -> dict[str, Any] | None:
    """A line for each name with a ring for the first run and a dot for the second; None without values."""
    ordered = [pair for pair in reversed(pairs) if any(value is not None for value in pair["values"])]
    if not ordered:
        return None
    labels = [plot_text(pair["name"]) for pair in ordered]
    joins: dict[str, list[Any]] = {"x": [], "y": []}
    for label, pair in zip(labels, ordered, strict=True):
        if None not in pair["values"]:
            joins["x"] += [*pair["values"], None]
            joins["y"] += [label, label, None]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            **joins,
            "showlegend": False,
            "hoverinfo": "skip",
            "meta": {"role": "muted1"},
        }
    ]
    for number, (name, role) in enumerate(zip(names, ROLES, strict=True)):
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [pair["values"][number] for pair in ordered],
                "y": labels,
                "name": plot_text(name),
                # Two that are the same are a dot in a ring.
                "marker": {"size": 9 if number else 14, "symbol": "circle" if number else "circle-open"},
                "meta": {"role": role},
                "hovertemplate": f"%{{x:{form}}}<extra>{plot_text(name)}</extra>",
            }
        )
    layout = {
        "height": 110 + 28 * len(ordered),
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
        "xaxis": {"title": {"text": title}, "tickformat": form, "rangemode": rangemode},
        "yaxis": {
            "automargin": True,
            "type": "category",
            "categoryorder": "array",
            "categoryarray": labels,
            "range": [-0.6, len(labels) - 0.4],
        },
    }
    return {"data": data, "layout": layout}


def scores_figure(scores: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The second run's scores less the first's, with their 95% intervals; None without a benchmark in both."""
    ordered = list(reversed(scores))
    if not ordered:
        return None
    labels = [f"{plot_text(line['task'])}, {shots_word(line['shots'])}" for line in ordered]
    data = []
    for verdict, role in (("better", "good"), ("worse", "bad"), ("no difference", "muted0")):
        mine = [(label, line) for label, line in zip(labels, ordered, strict=True) if line["verdict"] == verdict]
        if mine:
            reach = [(line["high"] - line["mean"]) if line["high"] is not None else 0.0 for _, line in mine]
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": [line["mean"] for _, line in mine],
                    "y": [label for label, _ in mine],
                    "error_x": {"type": "data", "array": reach, "thickness": 1.5, "width": 4},
                    "name": verdict,
                    "marker": {"size": 10},
                    "meta": {"role": role},
                    "hovertemplate": "%{x:+.1%}<extra>%{y}</extra>",
                }
            )
    zero = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": 0, "x1": 0, "line": {"dash": "dot"}}
    layout = {
        "height": 110 + 30 * len(ordered),
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
        "shapes": [zero],
        "xaxis": {"title": {"text": "second less first"}, "tickformat": "+.0%"},
        "yaxis": {
            "automargin": True,
            "type": "category",
            "categoryorder": "array",
            "categoryarray": labels,
            "range": [-0.6, len(labels) - 0.4],
        },
    }
    return {"data": data, "layout": layout}
