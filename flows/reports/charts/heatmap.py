"""The activation map of a training, and its heat map as a Plotly figure: a panel for each group of segments.

The map has the ranges of activations by layer and step, as the network recorded them: METRICS' columns
`largest_activations`, `activation_lows` and `activation_highs`; `activation_ranges` of model.json are their names.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.reports.charts.figure import Figure, Trace, figure, label_axis, points, tokens_axis
from model.checkpoint.metrics import final_rows
from model.checkpoint.run_folder import DESCRIPTION
from tasks.artifacts.artifact import Artifact

MAX_DECADES = 8
"""Powers of ten that colours distinguish; smaller values have the colour of the lowest."""

STREAM, HEAD = "residual stream", "head"

_NAME = re.compile(r"(?P<stack>encoder |decoder )?(?P<segment>.*?)(?P<scores> (?:cross )?attention logits)?")


@dataclass(frozen=True)
class ActivationGroup:
    """Activations of one kind, in the order of the network."""

    title: str
    labels: tuple[str, ...]
    """Name of each, unique within the group."""
    rows: tuple[int, ...]
    """Row of each in the map."""


@dataclass(frozen=True)
class ActivationMap:
    """Ranges of P activations in C columns, each of which covers one step or several in a row."""

    groups: tuple[ActivationGroup, ...]
    edges: np.ndarray
    """f64[C + 1]: tokens read before the first column, and up to the end of each column."""
    largest: np.ndarray
    """f64[P, C]: largest absolute value; infinite where one was infinite or NaN."""
    bounds: np.ndarray
    """f64[2, P, C]: smallest and largest value."""

    @property
    def decades(self) -> tuple[int, int]:
        """Powers of ten between which the finite readings lie, MAX_DECADES apart at most."""
        drawn = self.largest[np.isfinite(self.largest) & (self.largest > 0)]
        if not drawn.size:
            return 0, 1
        low, high = (int(np.floor(np.log10(drawn.min()))), int(np.ceil(np.log10(drawn.max()))))
        return max(low, high - MAX_DECADES), max(high, low + 1)

    @property
    def powers(self) -> np.ndarray:
        """f64[P, C]: log10 of the largest absolute value, clipped to `decades`; NaN where not finite."""
        low, high = self.decades
        with np.errstate(divide="ignore"):
            powers = np.clip(np.log10(self.largest), low, high)
        return np.where(np.isfinite(self.largest), powers, np.nan)


def activations_figure(train: Artifact) -> Figure | None:
    """Return the heat map of a training's artifact, over the steps that led to its weights; None without recordings."""
    metrics = final_rows(train.table("metrics"), train.table("steps")) if train.rows("metrics") else None
    if metrics is None or not any(record.name == DESCRIPTION for record in train.records):
        return None
    names = json.loads(train.file(DESCRIPTION).read_text(encoding="utf-8")).get("activation_ranges", [])
    heat = activation_map(metrics, names, MAX_COLUMNS)
    return None if heat is None else heatmap_figure(heat)


def activation_map(metrics: pa.Table, names: Sequence[str], most_columns: int) -> ActivationMap | None:
    """Return the map of METRICS' rows, in the order of their steps; `names` are those of model.json.

    A column that covers several steps has their extremes, so that no spike is lost. None where nothing was recorded.
    """
    columns = ("largest_activations", "activation_lows", "activation_highs")
    readings = [pc.list_flatten(metrics.column(column)).to_numpy().astype(np.float64) for column in columns]
    if not readings[0].size:
        return None
    largest, lows, highs = (values.reshape(-1, len(names)) for values in readings)
    starts = np.unique(np.linspace(0, metrics.num_rows, min(metrics.num_rows, most_columns) + 1).astype(np.int64))[:-1]
    tokens = metrics.column("tokens").to_numpy()
    return ActivationMap(
        groups=_groups(names),
        edges=np.array([0.0, *tokens[starts[1:] - 1], tokens[-1]]),
        largest=np.maximum.reduceat(np.where(np.isnan(largest), np.inf, largest), starts).T,
        bounds=np.stack((np.minimum.reduceat(lows, starts).T, np.maximum.reduceat(highs, starts).T)),
    )


def _groups(names: Sequence[str]) -> tuple[ActivationGroup, ...]:
    found: dict[str, list[tuple[str, int]]] = {}
    for row, name in enumerate(names):
        match = _NAME.fullmatch(name)
        assert match is not None, "the pattern takes any name"
        kind = HEAD if name.endswith("logits") and not match["scores"] else (match["scores"] or STREAM).strip()
        title = f"{match['stack'] or ''}{kind}"
        found.setdefault(title, []).append((match["segment"], row))
    ordered = sorted(found.items(), key=lambda item: item[0] == HEAD)
    return tuple(
        ActivationGroup(title, tuple(label for label, _ in rows), tuple(row for _, row in rows))
        for title, rows in ordered
    )


MAX_COLUMNS = 240
"""Makes a column one or two pixels wide on a phone."""

MAX_HEIGHT, MAX_ROW_HEIGHT, TITLE_HEIGHT, MARGIN = 560, 18, 26, 130
"""Pixels: of all rows, of a row, of a panel's title, of colour bar and axis."""

LABEL_DISTANCE = 15
"""Pixels between labels."""


def heatmap_figure(heat: ActivationMap) -> Figure:
    """Return segments over tokens read, coloured by the power of ten of the largest magnitude."""
    count = len(heat.largest)
    row_height = min(MAX_ROW_HEIGHT, MAX_HEIGHT / count)
    inner = count * row_height + len(heat.groups) * TITLE_HEIGHT
    data: list[Trace] = []
    annotations: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    above_row = {"showarrow": False, "xref": "paper", "yref": "paper", "x": 0, "xanchor": "left", "yanchor": "bottom"}
    top = 1.0
    for number, group in enumerate(heat.groups, 1):
        suffix = "" if number == 1 else str(number)
        annotations.append({"text": group.title, "y": top - (TITLE_HEIGHT - 4) / inner, **above_row})
        upper = top - TITLE_HEIGHT / inner
        top = max(0.0, upper - len(group.rows) * row_height / inner)
        each = max(1, round(LABEL_DISTANCE / row_height))
        axes[f"yaxis{suffix}"] = {
            **label_axis(group.labels),
            "domain": [top, upper],
            "range": [len(group.labels) - 0.5, -0.5],
            "tickvals": [*group.labels[::each]],
            "showgrid": False,
        }
        data += _panel(heat, group, f"y{suffix}")
    last = f"y{len(heat.groups)}" if len(heat.groups) > 1 else "y"
    return figure(
        data,
        round(inner + MARGIN),
        showlegend=False,
        annotations=annotations,
        coloraxis=_colours(*heat.decades),
        xaxis={**tokens_axis(last), "showgrid": False},
        **axes,
    )


def _colours(low: int, high: int) -> dict[str, Any]:
    powers = range(low, high + 1)
    bar = {"orientation": "h", "y": 1, "yanchor": "bottom", "thickness": 10, "outlinewidth": 0}
    bar |= {"tickvals": [*powers], "ticktext": [f"{10.0**power:.12g}" for power in powers]}
    return {"cmin": low, "cmax": high, "colorbar": bar}


def _panel(heat: ActivationMap, group: ActivationGroup, y_axis: str) -> list[Trace]:
    rows = [*group.rows]
    powers = heat.powers[rows]
    shown = "%{customdata[0]} to %{customdata[1]}"
    cells = {
        "type": "heatmap",
        "x": heat.edges.tolist(),
        "y": [*group.labels],
        "z": [[None if np.isnan(power) else round(float(power), 3) for power in row] for row in powers],
        "customdata": _rounded(np.moveaxis(heat.bounds[:, rows], 0, -1)),
        "yaxis": y_axis,
        "coloraxis": "coloraxis",
        "hoverongaps": False,
        "meta": {"role": "heat"},
        "hovertemplate": f"{group.title}, %{{y}}: {shown} at %{{x:.3s}} tokens<extra></extra>",
    }
    row, column = np.nonzero(np.isnan(powers))
    if not row.size:
        return [cells]
    crosses = points(
        "series1",
        ((heat.edges[:-1] + heat.edges[1:]) / 2)[column].tolist(),
        [group.labels[place] for place in row],
        f"{group.title}, %{{y}}: not finite at %{{x:.3s}} tokens",
        yaxis=y_axis,
        marker={"symbol": "x", "size": 8, "line": {"width": 1}},
    )
    return [cells, crosses]


def _rounded(values: np.ndarray) -> list[Any]:
    """Return values rounded to four digits, as nested lists; None where not finite."""
    flat = [float(f"{value:.4g}") if np.isfinite(value) else None for value in values.flat]
    return np.array(flat, dtype=object).reshape(values.shape).tolist()
