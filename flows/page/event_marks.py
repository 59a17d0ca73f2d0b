"""What happened to a training, as marks on its loss."""

import html
import json
from typing import Any

import numpy as np
import pyarrow as pa

KINDS = (
    ("spike", "spike, left out", "triangle-up", "series2"),
    ("rollback", "rollback", "triangle-left", "bad"),
    ("skipped_step", "non-finite step", "x", "bad"),
    ("overflow", "overflow", "triangle-down", "muted0"),
    ("intervention", "intervention", "star", "series2"),
    ("resume", "resumed", "circle-open", "series1"),
    ("fewer_ranks", "fewer ranks", "square-open", "series1"),
    ("damaged_checkpoint", "damaged checkpoint", "diamond", "bad"),
)
"""Kind of EVENTS, how the chart names it, symbol, colour."""
MOST_MARKS = 200
"""Of each kind; more lie on each other."""
MOST_LETTERS = 160
"""Of a value that the hover text shows."""
UNTOLD = ("pid",)
"""Details that say nothing to a reader."""


def event_marks(events: pa.Table, metrics: pa.Table) -> list[dict[str, Any]]:
    """A trace for each kind of event that there was; its hover text tells step, attempt and details.

    An event stands where its step's loss is, or the last finite one before it; none where no loss is finite.
    """
    losses = metrics.column("loss").to_numpy()
    if not np.isfinite(losses).any():
        return []
    steps, tokens = (metrics.column(name).to_numpy() for name in ("step", "tokens"))
    attempts = metrics.column("attempt").to_numpy() if "attempt" in metrics.column_names else np.zeros_like(steps)
    told = events.to_pylist()
    traces = []
    for kind, title, symbol, role in KINDS:
        rows = [row for row in told if row["kind"] == kind]
        if not rows:
            continue
        shown = [rows[place] for place in np.linspace(0, len(rows) - 1, min(len(rows), MOST_MARKS)).astype(int)]
        x, y = [], []
        for row in shown:
            place = _row_of(row, steps, attempts)
            x.append(int(tokens[place]))
            y.append(_finite(losses, place))
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": x,
                "y": y,
                "text": [_told(row) for row in shown],
                "customdata": [row["step"] for row in shown],
                "name": title if len(rows) == 1 else f"{title} ({len(rows)})",
                "marker": {"symbol": symbol, "size": 9},
                "meta": {"role": role},
                "hovertemplate": f"{title}, %{{text}}<extra></extra>",
            }
        )
    return traces


def _row_of(event: dict[str, Any], steps: np.ndarray, attempts: np.ndarray) -> int:
    """The event's own row of METRICS, or the last of its attempt or an earlier one before it."""
    before = np.flatnonzero((steps <= event["step"]) & (attempts <= event["attempt"]))
    if not before.size:
        return 0
    return int(before[np.lexsort((steps[before], attempts[before] * (steps[before] == event["step"])))[-1]])


def _finite(losses: np.ndarray, place: int) -> float:
    finite = np.flatnonzero(np.isfinite(losses))
    earlier = finite[finite <= place]
    return float(losses[earlier[-1] if earlier.size else finite[0]])


def _told(event: dict[str, Any]) -> str:
    """Lines of text: plotly reads what looks like HTML in them as such."""
    where = f"step {event['step']:,}" + (f", attempt {event['attempt']}" if event["attempt"] else "")
    lines = [where]
    if event["positions"]:
        lines.append(f"positions {min(event['positions']):,} to {max(event['positions']) + 1:,} of ORDER")
    lines += [f"{name}: {_cut(value)}" for name, value in json.loads(event["detail"]).items() if name not in UNTOLD]
    return "<br>".join(html.escape(line, quote=False) for line in lines)


def _cut(value: Any) -> str:
    words = value if isinstance(value, str) else json.dumps(value)
    return words if len(words) <= MOST_LETTERS else f"{words[: MOST_LETTERS - 1]}…"
