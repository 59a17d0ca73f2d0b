"""Tokens that a character of each language takes; of an extended base before and after."""

from typing import Any

from flows.page.plot_text import plot_text
from flows.wording import language_word


def token_figure(found: dict[str, Any]) -> dict[str, Any] | None:
    """`found` is language -> tokens a character, or -> [of the base, now]; None where it is empty."""
    if not found:
        return None
    ordered = list(reversed(found.items()))
    pairs = [value if isinstance(value, list) else [None, value] for _, value in ordered]
    data = []
    for place, role, title in ((0, "muted0", "the base"), (1, "accent", "now")):
        values = [pair[place] for pair in pairs]
        if any(value is not None for value in values):
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "y": [plot_text(language_word(language)) for language, _ in ordered],
                    "x": values,
                    "text": ["" if value is None else f"{value:.3f}" for value in values],
                    "textposition": "outside",
                    "cliponaxis": False,
                    "name": title,
                    "meta": {"role": role},
                    "hovertemplate": f"{title}: %{{x:.3f}} tokens a character<extra>%{{y}}</extra>",
                }
            )
    layout = {
        "height": 90 + (44 if len(data) > 1 else 30) * len(pairs),
        "barmode": "group",
        "bargap": 0.3,
        "showlegend": len(data) > 1,
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "reversed"},
        "xaxis": {
            "title": {"text": "tokens a character"},
            "range": [0, 1.2 * max(value for pair in pairs for value in pair if value is not None)],
        },
        "yaxis": {"automargin": True, "type": "category"},
    }
    return {"data": data, "layout": layout}
