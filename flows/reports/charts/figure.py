"""Plotly figures from their parts: traces, axes, and the whole, `{"data": [...], "layout": {...}}`.

A trace names a colour role in its `meta`; `draw.js` sets the colours, which depend on the page's light or dark mode.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

Figure = dict[str, Any]

Trace = dict[str, Any]

MAX_POINTS = 1500

LEGEND = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0}


def figure(data: list[Trace], height: int, **layout: Any) -> Figure:
    """Return a figure of `height` pixels; `layout` has its axes and what else differs from Plotly's defaults."""
    return {"data": data, "layout": {"height": height, **layout}}


def points(role: str, x: Sequence[Any], y: Sequence[Any], hover: str, *, mode: str = "markers", **more: Any) -> Trace:
    """Return a trace of markers, lines or both; `hover` is the text shown at a point, with Plotly's placeholders."""
    return {"type": "scatter", "mode": mode, "x": x, "y": y, **_shown(role, hover), **more}


def bars(role: str, lengths: Sequence[Any], labels: Sequence[str], hover: str, **more: Any) -> Trace:
    """Return a trace of horizontal bars."""
    return {"type": "bar", "orientation": "h", "x": lengths, "y": labels, **_shown(role, hover), **more}


def _shown(role: str, hover: str) -> dict[str, Any]:
    return {"meta": {"role": role}, "hovertemplate": hover if "<extra>" in hover else f"{hover}<extra></extra>"}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with a title."""
    return {"title": {"text": title}, **more}


def tokens_axis(anchor: str) -> dict[str, Any]:
    """Return the axis of tokens read, below the lowest panel."""
    return axis("tokens read", anchor=anchor, tickformat="~s", nticks=6)


def label_axis(labels: Sequence[str]) -> dict[str, Any]:
    """Return an axis with a row for each label, the first at the bottom."""
    order = {"categoryorder": "array", "categoryarray": [*labels]}
    return {"automargin": True, "type": "category", **order, "range": [-0.6, len(labels) - 0.4]}


def reach(lengths: Sequence[float], width: int = 4) -> dict[str, Any]:
    """Return error bars of these lengths on both sides."""
    return {"type": "data", "array": [*lengths], "thickness": 1.5, "width": width}


def upright(x: float) -> dict[str, Any]:
    """Return a dotted vertical line, for `shapes`."""
    return {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": x, "x1": x, "line": {"dash": "dot"}}


def thin(count: int, most: int = MAX_POINTS) -> np.ndarray:
    """Return at most `most` indices of `count`, evenly spread, including the first and the last."""
    return np.unique(np.linspace(0, max(0, count - 1), min(count, most)).round().astype(np.int64))


def plain(values: np.ndarray) -> list[float | None]:
    """Return values as JSON allows: a non-finite value becomes None, which is a gap in the line."""
    return [float(value) if np.isfinite(value) else None for value in values]
