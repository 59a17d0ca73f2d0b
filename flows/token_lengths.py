"""How many tokens a character of each language takes, measured on the text that was packed."""

import pyarrow as pa
import pyarrow.compute as pc

from flows.some_parts import some_parts
from tasks.artifact import Artifact
from tasks.tables import read_table
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
