"""Shares of the training tokens by source: what the recipe wants, what was planned, what training read."""

from typing import Any

from flows.page.plot_text import plot_text

BARS = (
    ("weight", "muted1", "wanted"),
    ("planned_share", "muted0", "planned"),
    ("realised_share", "accent", "read, and how many times over"),
)
"""Column of the mixture, colour, title."""


def mixture_figure(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Three bars a source, and on the last how often its text was read; None without a mixture."""
    if not lines:
        return None
    ordered = list(reversed(lines))
    names = [plot_text(line["source"]) for line in ordered]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": names,
            "x": [line[column] for line in ordered],
            "name": title,
            "meta": {"role": role},
            "hovertemplate": f"{title}: %{{x:.2%}}<extra>%{{y}}</extra>",
        }
        for column, role, title in BARS
    ]
    data[-1] |= {
        "text": [f"{line['realised_share']:.1%}, {line['epochs']:.2f} ×" for line in ordered],
        "textposition": "outside",
        "cliponaxis": False,
    }
    widest = max(line[column] for line in lines for column, _, _ in BARS)
    layout = {
        "height": 96 + 54 * len(names),
        "barmode": "group",
        "bargap": 0.3,
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "reversed"},
        # Room for the words behind the longest bar.
        "xaxis": {"tickformat": ".0%", "range": [0, 1.5 * widest or 1]},
        "yaxis": {"automargin": True},
    }
    return {"data": data, "layout": layout}
