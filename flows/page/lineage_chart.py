"""Which artifact was made from which: the stages from top to bottom, an arc from each parent to its child."""

import math
from typing import Any

from flows.page.plot_text import plot_text
from flows.road import STAGES
from flows.wording import duration, size
from tasks.artifact import Artifact

ROW = 46
"""Pixels from one stage to the next."""
POINTS = 24


def lineage_figure(artifacts: dict[str, Artifact], outcomes: dict[str, str]) -> dict[str, Any] | None:
    """Stages as dots with their digests, parents as arcs to the right; None without artifacts.

    `outcomes` say how each artifact came to stand in the run.
    """
    stages = [stage for stage in STAGES if stage in artifacts]
    if not stages:
        return None
    rows = {stage: -number for number, stage in enumerate(stages)}
    data = []
    for stage in stages:
        for role, parent in sorted(artifacts[stage].manifest["parents"].items()):
            begin = parent.get("stage")
            if begin in rows and rows[begin] > rows[stage]:
                data.append(_arc(rows[begin], rows[stage], f"{begin} to {stage}: {plot_text(role)}"))
    data.append(
        {
            "type": "scatter",
            "mode": "markers+text",
            "x": [0.0] * len(stages),
            "y": [rows[stage] for stage in stages],
            "text": [f"<b>{stage}</b> {artifacts[stage].identity[:8]}" for stage in stages],
            "textposition": "middle left",
            "customdata": [_told(artifacts[stage], outcomes.get(stage, "")) for stage in stages],
            "marker": {"size": 12, "symbol": "circle"},
            "showlegend": False,
            "cliponaxis": False,
            "meta": {"role": "accent"},
            "hovertemplate": "%{customdata}<extra></extra>",
        }
    )
    hidden = {"visible": False, "showgrid": False, "zeroline": False}
    layout = {
        "height": 40 + ROW * len(stages),
        "showlegend": False,
        "xaxis": {**hidden, "range": [-1.3, 1.4]},
        "yaxis": {**hidden, "range": [0.6 - len(stages), 0.6]},
    }
    return {"data": data, "layout": layout}


def _arc(begin: int, end: int, words: str) -> dict[str, Any]:
    """Half an ellipse from one row to another; neighbours are joined by a line."""
    rows = begin - end
    bulge = 0.0 if rows == 1 else 0.16 * rows
    angles = [math.pi * (0.5 - point / (POINTS - 1)) for point in range(POINTS if bulge else 2)]
    angles = angles if bulge else [math.pi / 2, -math.pi / 2]
    middle, radius = (begin + end) / 2, rows / 2
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [round(bulge * math.cos(angle), 4) for angle in angles],
        "y": [round(middle + radius * math.sin(angle), 4) for angle in angles],
        "line": {"shape": "linear"},
        "name": words,
        "showlegend": False,
        "meta": {"role": "muted0"},
        "hovertemplate": f"{words}<extra></extra>",
    }


def _told(artifact: Artifact, outcome: str) -> str:
    manifest = artifact.manifest
    lines = (
        f"<b>{artifact.stage}</b> {outcome}",
        f"identity {artifact.identity}",
        f"content {artifact.content}",
        f"{size(manifest['bytes'])}, built in {duration(manifest['timings']['seconds'])}",
    )
    return "<br>".join(lines)
