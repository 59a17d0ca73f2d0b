"""The activation heat map of a training as SVG text."""

from itertools import groupby

import numpy as np

from flows.metrics.activation_stats import ActivationMap
from flows.reports.charts.svg import LABEL_WIDTH, PADDING, WIDTH, card, text

MAX_COLUMNS = 150

STRIP_WIDTH = 440

MAX_HEIGHT, MAX_ROW_HEIGHT, TITLE_HEIGHT = 560, 17, 24
"""Pixels: of all rows, of a row, of a group's title."""

LABEL_DISTANCE = 15
"""Pixels between labels."""

COLOURS = 7

SWATCH = 22


def heatmap_chart(title: str, heat: ActivationMap) -> str:
    """Return a strip for each segment, coloured by the power of ten of its largest magnitude, with the first and last
    value as text; non-finite values are red."""
    low, high = heat.decades
    shades = np.minimum((heat.powers - low) / (high - low) * COLOURS, COLOURS - 1)
    row_height = min(MAX_ROW_HEIGHT, MAX_HEIGHT / len(heat.largest))
    each = max(1, round(LABEL_DISTANCE / row_height))
    body = _legend(low, high, gaps=bool(np.isnan(shades).any()))
    y = float(PADDING + 52)
    for group in heat.groups:
        body.append(text(LABEL_WIDTH, y + TITLE_HEIGHT - 7, group.title, role="dim"))
        y += TITLE_HEIGHT
        for place, (label, row) in enumerate(zip(group.labels, group.rows, strict=True)):
            body += _strip(heat.edges, shades[row], y, row_height)
            if place % each == 0:
                body.append(text(LABEL_WIDTH - 10, y + 12, label, anchor="end"))
                ends = " → ".join(_format_value(heat.largest[row, column]) for column in (0, -1))
                body.append(text(LABEL_WIDTH + STRIP_WIDTH + 12, y + 12, ends, role="dim"))
            y += row_height
    body.append(text(LABEL_WIDTH, y + 16, f"{heat.edges[0]:,.0f}", role="dim"))
    end = LABEL_WIDTH + STRIP_WIDTH
    body.append(text(end, y + 16, f"{heat.edges[-1]:,.0f} tokens read", role="dim", anchor="end"))
    return card(title, y + 20, body)


def _legend(low: int, high: int, *, gaps: bool) -> list[str]:
    x, y = float(PADDING), PADDING + 25
    least, most = (f"{10.0**power:.3g}" for power in (low, high))
    parts = [text(x, y + 10, least, role="dim")]
    x += 60
    for shade in range(COLOURS):
        parts.append(f'<rect class="heat{shade}" x="{x:.0f}" y="{y}" width="{SWATCH}" height="11"/>')
        x += SWATCH
    parts.append(text(x + 8, y + 10, f"{most}, largest magnitude", role="dim"))
    if gaps:
        parts.append(f'<rect class="bad" x="{WIDTH - PADDING - 90}" y="{y}" width="11" height="11"/>')
        parts.append(text(WIDTH - PADDING - 72, y + 10, "not finite", role="dim"))
    return parts


def _strip(edges: np.ndarray, shades: np.ndarray, y: float, height: float) -> list[str]:
    """Return rectangles, one for each run of columns of the same colour."""
    scale = STRIP_WIDTH / ((edges[-1] - edges[0]) or 1.0)
    places = LABEL_WIDTH + (edges - edges[0]) * scale
    roles = ["bad" if np.isnan(shade) else f"heat{int(shade)}" for shade in shades]
    strips, begin = [], 0
    for role, run in groupby(roles):
        end = begin + len(list(run))
        width = places[end] - places[begin]
        size = f'width="{width:.1f}" height="{height - 0.5:.1f}"'
        strips.append(f'<rect class="{role}" x="{places[begin]:.1f}" y="{y:.1f}" {size}/>')
        begin = end
    return strips


def _format_value(value: float) -> str:
    return f"{value:.2g}" if np.isfinite(value) else "not finite"
