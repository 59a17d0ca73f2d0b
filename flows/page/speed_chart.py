"""How fast a training went: tokens a second and, where the machine's peak is known, the share of it that was used."""

from typing import Any

import numpy as np
import pyarrow as pa

from flows.page.training_chart import plain, thin


def speed_figure(perf: pa.Table, metrics: pa.Table) -> dict[str, Any] | None:
    """Tokens of text a second over tokens read, and model FLOPs utilisation below; None without a step.

    `metrics` gives the tokens that were read at each step and attempt of `perf`.
    """
    if not perf.num_rows or not metrics.num_rows:
        return None
    places = {(step, attempt): tokens for step, attempt, tokens in _rows(metrics, "tokens")}
    rows = [
        (places[step, attempt], number)
        for number, (step, attempt) in enumerate(_rows(perf))
        if (step, attempt) in places
    ]
    if not rows:
        return None
    chosen = [rows[place] for place in thin(len(rows))]
    x = [tokens for tokens, _ in chosen]
    kept = perf.take(pa.array([number for _, number in chosen], pa.int64()))
    has_peak = kept.column("mfu").null_count < kept.num_rows
    panels = [("tokens_s", "y", "tokens a second", ".3s", "series1")]
    panels += [("mfu", "y2", "model FLOPs utilisation", ".1%", "accent")] if has_peak else []
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": x,
            "y": plain(_floats(kept, name)),
            "yaxis": axis,
            "name": title,
            "showlegend": False,
            "meta": {"role": role},
            "hovertemplate": f"%{{y:{form}}} {title} at %{{x:.3s}} tokens<extra></extra>",
        }
        for name, axis, title, form, role in panels
    ]
    layout = {
        "height": 400 if has_peak else 240,
        "hovermode": "x",
        "xaxis": {
            "title": {"text": "tokens read"},
            "anchor": "y2" if has_peak else "y",
            "tickformat": "~s",
            "nticks": 6,
        },
        "yaxis": {
            "title": {"text": "tokens a second"},
            "rangemode": "tozero",
            "tickformat": "~s",
            "domain": [0.55, 1] if has_peak else [0, 1],
        },
    }
    if has_peak:
        layout["yaxis2"] = {"title": {"text": "MFU"}, "rangemode": "tozero", "tickformat": ".0%", "domain": [0, 0.42]}
    return {"data": data, "layout": layout}


def _rows(table: pa.Table, *more: str) -> list[tuple[int, ...]]:
    """(step, attempt, ...) of each row."""
    attempts = table.column("attempt").to_pylist() if "attempt" in table.column_names else [0] * table.num_rows
    return list(
        zip(table.column("step").to_pylist(), attempts, *(table.column(n).to_pylist() for n in more), strict=True)
    )


def _floats(table: pa.Table, name: str) -> np.ndarray:
    """f64 of a column; nulls are not-a-number."""
    return np.array([np.nan if value is None else value for value in table.column(name).to_pylist()], dtype=np.float64)
