"""Tokens that a character of each language takes; of an extended base before and after."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flows.page.plot_text import plot_text
from flows.page.some_parts import some_parts
from flows.wording import language_word
from tasks.artifact import Artifact, read_table
from tasks.vocab.comparison import UNTOLD

MOST_LANGUAGES, LEAST_SHARE = 12, 0.002
"""Languages that are told, and the share of all characters that one has at least: single documents whose language was
mistaken would be a long list."""


def tokens_per_character(artifacts: dict[str, Artifact]) -> dict[str, float]:
    """Language -> tokens of its packed text by characters (Unicode code points), from some parts of the documents;
    the language with most text first."""
    if "chunk" not in artifacts or "decontaminate" not in artifacts:
        return {}
    documents = [_sizes(read_table(path)) for _, path in some_parts(artifacts["decontaminate"].files("documents"))]
    spans = [_lengths(read_table(path)) for _, path in some_parts(artifacts["chunk"].files("spans"))]
    if not documents or not spans:
        return {}
    keys = ["doc_id", "piece"]
    together = pa.concat_tables(spans).group_by(keys).aggregate([("tok_len", "sum"), ("bytes", "sum")])
    joined = together.join(pa.concat_tables(documents), keys, join_type="inner")
    by_language = joined.group_by("lang").aggregate(
        [("tok_len_sum", "sum"), ("bytes_sum", "sum"), ("text_bytes", "sum"), ("characters", "sum")]
    )
    rows = sorted(by_language.to_pylist(), key=lambda row: (-row["characters_sum"], row["lang"]))
    least = LEAST_SHARE * sum(row["characters_sum"] for row in rows)
    return {
        # Of a document some rows may lie in parts that were not looked into: its packed bytes tell how much was.
        row["lang"]: row["tok_len_sum_sum"] / row["bytes_sum_sum"] * row["text_bytes_sum"] / row["characters_sum"]
        for row in rows[:MOST_LANGUAGES]
        if row["bytes_sum_sum"] and row["characters_sum"] and row["characters_sum"] >= least
    }


def _sizes(documents: pa.Table) -> pa.Table:
    text = documents.column("text")
    return pa.table(
        {
            "doc_id": documents.column("doc_id"),
            "piece": documents.column("piece"),
            "lang": pc.fill_null(documents.column("lang").cast(pa.string()), UNTOLD),
            "text_bytes": pc.binary_length(text),
            "characters": pc.utf8_length(text),
        }
    )


def _lengths(spans: pa.Table) -> pa.Table:
    return pa.table(
        {
            **{name: spans.column(name) for name in ("doc_id", "piece", "tok_len")},
            "bytes": pc.subtract(spans.column("end"), spans.column("start")),
        }
    )


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
