"""Benchmark items that also stood in the training text."""

from typing import Any

from flows.page.plot_text import plot_text

PARTS = (
    ("remains", "bad", "leaked, still in the text"),
    ("removed", "accent", "leaked and removed"),
    ("unmatchable", "muted1", "too short to look for"),
    ("clean", "series1", "clean"),
)


def leak_figure(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Shares of each benchmark's items by state; None without benchmarks."""
    ordered = [line for line in reversed(lines) if line["items"]]
    if not ordered:
        return None
    names = [plot_text(line["benchmark"]) for line in ordered]
    data = []
    for key, role, title in PARTS:
        counts = [line["leaked"] - line["remains"] if key == "removed" else line[key] for line in ordered]
        if any(counts):
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "y": names,
                    "x": [count / line["items"] for count, line in zip(counts, ordered, strict=True)],
                    "customdata": counts,
                    "name": title,
                    "meta": {"role": role},
                    "hovertemplate": f"{title}: %{{customdata:,}} items, %{{x:.1%}}<extra>%{{y}}</extra>",
                }
            )
    layout = {
        "height": 96 + 27 * len(names),
        "barmode": "stack",
        "bargap": 0.3,
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        "xaxis": {"tickformat": ".0%", "range": [0, 1]},
        "yaxis": {"automargin": True},
    }
    return {"data": data, "layout": layout}
