"""Charts as SVG text, for places that show images and run no script.

A chart has its own background, because the page around it may be light or dark whatever the browser prefers; every bar
and line has its number as text, so that no information depends on colour.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 860

PADDING = 18

LABEL_WIDTH = 225

ROW_HEIGHT = 26

BAR_WIDTH = 300

PANEL_HEIGHT = 120

SPARK_HEIGHT = 34

MAX_POINTS = 300

CHAR_WIDTH = 7.0
"""Pixels of an average character of a label; SVG text neither wraps nor measures itself."""

STYLE = """
text { font: 13px system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 15px }
.dim { fill: #59636e }
.card { fill: #ffffff; stroke: #d1d9e0 }
.rule { stroke: #d1d9e0; stroke-width: 1 }
.line { fill: none; stroke: #0969da; stroke-width: 1.8; stroke-linejoin: round }
.mark { stroke: #0969da; stroke-width: 2 }
.main { fill: #0969da }
.lost { fill: #cf5a1c }
.calm { fill: #8c959f }
.pale { fill: #c8d1da }
.bad { fill: #cf222e }
.heat0 { fill: #eef3f9 }
.heat1 { fill: #cfe0f4 }
.heat2 { fill: #a6c7ea }
.heat3 { fill: #76a8dc }
.heat4 { fill: #4787c8 }
.heat5 { fill: #2266a9 }
.heat6 { fill: #0d3f73 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.dim { fill: #9ba6b2 }
.card { fill: #151b23; stroke: #3d444d }
.rule { stroke: #3d444d }
.line, .mark { stroke: #58a6ff }
.main { fill: #58a6ff }
.lost { fill: #f0883e }
.calm { fill: #7d8590 }
.pale { fill: #444c56 }
.bad { fill: #ff7b72 }
.heat0 { fill: #1c2733 }
.heat1 { fill: #1e3f5f }
.heat2 { fill: #1f5a8c }
.heat3 { fill: #2c7abd }
.heat4 { fill: #569fe8 }
.heat5 { fill: #98c6f7 }
.heat6 { fill: #d9eafc }
}"""


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart: parts are (value, role), end to end; the note is shown to their right."""

    label: str
    parts: tuple[tuple[float, str], ...]
    note: str


@dataclass(frozen=True)
class Curve:
    """One panel of a curve chart; `format` is the format of its numbers; a spark is a low panel."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    format: str = ".3g"
    spark: bool = False


@dataclass(frozen=True)
class Interval:
    """A score (0 to 1) with its 95% interval, and the score of chance where it is known."""

    label: str
    value: float
    error: float
    chance: float | None = None
    note: str = ""


def bars(title: str, rows: Sequence[Bar], legend: Sequence[tuple[str, str]] = ()) -> str:
    """Return horizontal bars on one scale; `legend` has the roles of parts as (role, label)."""
    longest = max((sum(value for value, _ in row.parts) for row in rows), default=0) or 1.0
    top = _top(legend)
    body = [_legend(legend)]
    for number, row in enumerate(rows):
        y = top + number * ROW_HEIGHT
        body.append(text(LABEL_WIDTH - 10, y + 17, _shorten(row.label, LABEL_WIDTH - PADDING - 10), anchor="end"))
        x = float(LABEL_WIDTH)
        for value, role in row.parts:
            width = BAR_WIDTH * value / longest
            body.append(f'<rect class="{role}" x="{x:.1f}" y="{y + 5}" width="{width:.1f}" height="16" rx="2"/>')
            x += width
        body.append(text(x + 8, y + 17, _shorten(row.note, WIDTH - x - 8 - PADDING), role="dim"))
    return card(title, top + len(rows) * ROW_HEIGHT, body)


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    parts = []
    x = float(PADDING)
    for role, label in entries:
        parts.append(f'<rect class="{role}" x="{x:.0f}" y="{PADDING + 25}" width="11" height="11" rx="2"/>')
        parts.append(text(x + 17, PADDING + 35, label, role="dim"))
        x += 17 + len(label) * CHAR_WIDTH + 20
    return "\n".join(parts)


def _shorten(content: str, pixels: float) -> str:
    characters = max(3, int(pixels / CHAR_WIDTH))
    return content if len(content) <= characters else f"{content[: characters - 1]}…"


def curves(title: str, panels: Sequence[Curve], x_label: str) -> str:
    """Return curves in panels above each other over one x axis, each with its first and last value as text."""
    y = float(_top(()))
    body = []
    for panel in panels:
        height = SPARK_HEIGHT if panel.spark else PANEL_HEIGHT
        points = thinned(panel.x, panel.y)
        body.append(text(PADDING, y + 14, panel.label))
        if points:
            first, last = points[0][1], points[-1][1]
            body.append(text(PADDING, y + 32, f"{first:{panel.format}} → {last:{panel.format}}", role="dim"))
            low, high = min(value for _, value in points), max(value for _, value in points)
            if not panel.spark:
                for value, at in ((high, y + 10), (low, y + height)):
                    body.append(text(WIDTH - PADDING, at, f"{value:{panel.format}}", role="dim", anchor="end"))
            body.append(_path(points, y + 4, height - 8, low, high))
        body.append(_rule(LABEL_WIDTH, y + height + 2, WIDTH - PADDING - 60, y + height + 2))
        y += height + 16
    if panels and len(panels[0].x):
        body.append(text(LABEL_WIDTH, y + 4, f"{panels[0].x[0]:,.0f}", role="dim"))
        body.append(text(WIDTH - PADDING - 60, y + 4, f"{panels[0].x[-1]:,.0f} {x_label}", role="dim", anchor="end"))
    return card(title, y + 10, body)


def thinned(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
    """Return at most MAX_POINTS finite points, evenly spread, including the last."""
    finite = [(float(a), float(b)) for a, b in zip(x, y, strict=True) if abs(b) < float("inf")]
    if len(finite) <= MAX_POINTS:
        return finite
    step = (len(finite) - 1) / (MAX_POINTS - 1)
    return [finite[round(number * step)] for number in range(MAX_POINTS)]


def _path(points: Sequence[tuple[float, float]], y: float, height: float, low: float, high: float) -> str:
    start, end = points[0][0], points[-1][0]
    across = (WIDTH - PADDING - 60 - LABEL_WIDTH) / ((end - start) or 1.0)
    up = height / ((high - low) or 1.0)
    places = (f"{LABEL_WIDTH + (a - start) * across:.1f},{y + height - (b - low) * up:.1f}" for a, b in points)
    return f'<polyline class="line" points="{" ".join(places)}"/>'


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="rule" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def intervals(title: str, rows: Sequence[Interval]) -> str:
    """Return scores as points with their intervals on an axis from 0 to 100%; a grey tick marks chance."""
    top = _top(())
    body = []
    for number, row in enumerate(rows):
        y = top + number * ROW_HEIGHT
        middle = y + 13
        low, high = max(0.0, row.value - row.error), min(1.0, row.value + row.error)
        body.append(text(LABEL_WIDTH - 10, y + 17, _shorten(row.label, LABEL_WIDTH - PADDING - 10), anchor="end"))
        body.append(_rule(LABEL_WIDTH, middle, LABEL_WIDTH + BAR_WIDTH, middle))
        if row.chance is not None:
            x = LABEL_WIDTH + BAR_WIDTH * row.chance
            body.append(f'<rect class="calm" x="{x - 1.5:.1f}" y="{y + 3}" width="3" height="20"/>')
        ends = (LABEL_WIDTH + BAR_WIDTH * low, LABEL_WIDTH + BAR_WIDTH * high)
        body.append(f'<line class="mark" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{middle}" y2="{middle}"/>')
        body.append(f'<circle class="main" cx="{LABEL_WIDTH + BAR_WIDTH * row.value:.1f}" cy="{middle}" r="5"/>')
        value = f"{row.value:.0%} ± {row.error:.0%}"
        value += f", chance {row.chance:.0%}" if row.chance is not None else ""
        body.append(text(LABEL_WIDTH + BAR_WIDTH + 12, y + 17, f"{value}{row.note}", role="dim"))
    y = top + len(rows) * ROW_HEIGHT
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        body.append(text(LABEL_WIDTH + BAR_WIDTH * share, y + 14, f"{share:.0%}", role="dim", anchor=anchor))
    return card(title, y + 18, body)


def card(title: str, height: float, body: Sequence[str]) -> str:
    """Return a whole SVG: the elements of `body`, `height` pixels high, on a background below a title."""
    tall = round(height + PADDING)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{tall}" viewBox="0 0 {WIDTH} {tall}"'
            f' role="img" aria-label="{escape(title)}">',
            f"<style>{STYLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{tall - 1}" rx="8"/>',
            text(PADDING, PADDING + 12, title, role="title"),
            *(line for line in body if line),
            "</svg>",
        ]
    )


def text(x: float, y: float, content: str, role: str = "", anchor: str = "start") -> str:
    """Return one line of text with its baseline at `y`."""
    attribute = f' class="{role}"' if role else ""
    return f'<text{attribute} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'


def _top(legend: Sequence[tuple[str, str]]) -> int:
    return PADDING + (52 if legend else 28)
