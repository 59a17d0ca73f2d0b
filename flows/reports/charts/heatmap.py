"""The activation heat map of a training as a Plotly figure: a panel for each group of segments, with one scale."""

from typing import Any

import numpy as np

from flows.metrics.activation_stats import ActivationGroup, ActivationMap
from flows.reports.charts.figure import Figure, Trace, figure, label_axis, points, tokens_axis

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
