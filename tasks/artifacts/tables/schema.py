"""Arrow schemas of the tables that stages pass on.

Offsets are UTF-8 bytes into the parent's text, half-open. Columns may be added; none changes its meaning. Tables that
training writes, or reads by memory map (SEQUENCES, ORDER, STEPS, METRICS, PERF, EVENTS), are defined in
`model/data/schema.py`.
"""

import pyarrow as pa

DOC_ID_BYTES = 16

EVIDENCE_BYTES = 200

_doc_id = pa.field("doc_id", pa.binary(DOC_ID_BYTES), nullable=False)

_piece = pa.field("piece", pa.int16(), nullable=False)

_source = pa.field("source", pa.dictionary(pa.int32(), pa.string()), nullable=False)

_origin = pa.struct(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("record", pa.int64(), nullable=False),
        pa.field("byte", pa.int64(), nullable=False),
    ]
)

DOCUMENTS = pa.schema(
    [
        _doc_id,
        _piece,
        _source,
        pa.field("lang", pa.dictionary(pa.int32(), pa.string())),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("text_digest", pa.binary(16), nullable=False),
        pa.field("origin", _origin, nullable=False),
        pa.field("meta", pa.string()),
        pa.field("text_kind", pa.dictionary(pa.int32(), pa.string())),
    ]
)
"""`meta` is JSON with the format and the URL where they are known; `text_kind` is one of `tasks.clean.document.KINDS`,
null before clean."""

LEDGER = pa.schema(
    [
        _doc_id,
        _piece,
        pa.field("stage", pa.string(), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        pa.field("rule", pa.string(), nullable=False),
        pa.field("value", pa.float32()),
        pa.field("limit", pa.float32()),
        pa.field("bytes_in", pa.int64(), nullable=False),
        pa.field("bytes_out", pa.int64(), nullable=False),
        pa.field("evidence", pa.string()),
    ]
)

REJECTS = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("record", pa.int64(), nullable=False),
        pa.field("byte", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("excerpt", pa.string(), nullable=False),
    ]
)

ITEMS = pa.schema(
    [
        pa.field("benchmark", pa.string(), nullable=False),
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("lang", pa.string()),
        pa.field("context", pa.string(), nullable=False),
        pa.field("choices", pa.list_(pa.string()), nullable=False),
        pa.field("answer", pa.string(), nullable=False),
        pa.field("match_text", pa.string(), nullable=False),
        pa.field("answers", pa.list_(pa.string())),
        pa.field("ending", pa.string()),
    ]
)

LEAKS = pa.schema(
    [
        pa.field("benchmark", pa.string(), nullable=False),
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("form", pa.string(), nullable=False),
        pa.field("doc_id", pa.binary(DOC_ID_BYTES)),
        pa.field("piece", pa.int16()),
        pa.field("start", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("matched", pa.int32(), nullable=False),
        pa.field("total", pa.int32(), nullable=False),
        pa.field("remains", pa.int32(), nullable=False),
    ]
)

VOCABULARY = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("piece", pa.string()),
        pa.field("bytes", pa.binary()),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("score", pa.float32()),
        pa.field("added", pa.bool_(), nullable=False),
    ]
)
"""`piece` is the token as spelled in the vocabulary's file (null for an id that it leaves out), `bytes` its text (null
for special tokens), `kind` is text, byte or special, `score` is SentencePiece's, and `added` is whether the token
extends a base vocabulary."""

SPANS = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("tok_start", pa.int32(), nullable=False),
        pa.field("tok_len", pa.int32(), nullable=False),
        _doc_id,
        _piece,
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
    ]
)

SCORES = pa.schema(
    [
        pa.field("task", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("shots", pa.int32(), nullable=False),
        pa.field("subset", pa.string(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
        pa.field("value", pa.float64()),
        pa.field("stderr", pa.float64()),
        pa.field("note", pa.string(), nullable=False),
    ]
)
