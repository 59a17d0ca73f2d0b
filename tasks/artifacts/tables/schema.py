"""Arrow schemas of the tables that stages pass on, by the types of their rows (`tasks.artifacts.tables.rows`).

Offsets are UTF-8 bytes into the parent's text, half-open. Columns may be added; none changes its meaning. Tables that
training writes, or reads by memory map (SEQUENCES, ORDER, STEPS, METRICS, PERF, EVENTS), are defined in
`model/data/schema.py`.
"""

from types import NoneType
from typing import get_args, get_type_hints, is_typeddict

import pyarrow as pa

from tasks.artifacts.tables.rows import (
    DOC_ID_BYTES,
    Digest,
    DocumentRow,
    DocumentScoreRow,
    Float32,
    GapRow,
    Int16,
    Int32,
    ItemRow,
    ItemScoreRow,
    LeakRow,
    LedgerRow,
    LongText,
    RejectRow,
    RepeatedName,
    SampleRow,
    ScoreRow,
    SpanRow,
    UInt64,
)

EVIDENCE_BYTES = 200

COLUMN_TYPES = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    list[str]: pa.list_(pa.string()),
    tuple[int, ...]: pa.list_(pa.int64()),
    tuple[float, ...]: pa.list_(pa.float64()),
    Int16: pa.int16(),
    Int32: pa.int32(),
    UInt64: pa.uint64(),
    Float32: pa.float32(),
    LongText: pa.large_string(),
    RepeatedName: pa.dictionary(pa.int32(), pa.string()),
    Digest: pa.binary(DOC_ID_BYTES),
}


def schema_of(kind: type) -> pa.Schema:
    """Return the schema of a table with rows of this kind; a column may be null where its type includes None."""
    fields = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        may_be_null = NoneType in get_args(hint)
        value = get_args(hint)[0] if may_be_null else hint
        column = pa.struct(schema_of(value)) if is_typeddict(value) else COLUMN_TYPES[value]
        fields.append(pa.field(name, column, may_be_null))
    return pa.schema(fields)


DOCUMENTS = schema_of(DocumentRow)
LEDGER = schema_of(LedgerRow)
REJECTS = schema_of(RejectRow)
ITEMS = schema_of(ItemRow)
LEAKS = schema_of(LeakRow)
SPANS = schema_of(SpanRow)
SCORES = schema_of(ScoreRow)
ITEM_SCORES = schema_of(ItemScoreRow)
GAPS = schema_of(GapRow)
DOCUMENT_SCORES = schema_of(DocumentScoreRow)
SAMPLES = schema_of(SampleRow)

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
