"""Shares of the training tokens by source: what the recipe wants, what was planned, what training read."""

from typing import Any

from flows.page.plot_text import plot_text

TICKS = (("weight", "soft", "wanted"), ("planned_share", "series1", "planned"))
"""Column of the mixture, colour, title."""


def mixture_figure(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """A bar a source of what training read and how many times over, with ticks where the recipe and the plan would
    have it; None without a mixture."""
    if not lines:
        return None
    ordered = list(reversed(lines))
    names = [plot_text(line["source"]) for line in ordered]
    read = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": [line["realised_share"] for line in ordered],
        "text": [f"{line['realised_share']:.1%}, {line['epochs']:.2f} ×" for line in ordered],
        "textposition": "outside",
        "cliponaxis": False,
        "name": "read, and how many times over",
        "meta": {"role": "accent"},
        "hovertemplate": "read: %{x:.2%}<extra>%{y}</extra>",
    }
    ticks = [
        {
            "type": "scatter",
            "mode": "markers",
            "y": names,
            "x": [line[column] for line in ordered],
            "name": title,
            "marker": {"symbol": "line-ns-open", "size": 18, "line": {"width": 3}},
            "meta": {"role": role},
            "hovertemplate": f"{title}: %{{x:.2%}}<extra>%{{y}}</extra>",
        }
        for column, role, title in TICKS
    ]
    widest = max(line[column] for line in lines for column in ("realised_share", "weight", "planned_share"))
    layout = {
        "height": 90 + 32 * len(names),
        "bargap": 0.45,
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
        # Room for the words behind the longest bar.
        "xaxis": {"tickformat": ".0%", "range": [0, 1.5 * widest or 1]},
        "yaxis": {"automargin": True},
    }
    return {"data": [read, *ticks], "layout": layout}
