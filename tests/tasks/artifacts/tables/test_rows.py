"""The tables that stages pass on: their columns on disk, and the types of their rows."""

from typing import get_type_hints

import pyarrow as pa
import pytest

from model.data.schema import STEPS, sequences_schema
from tasks.artifacts.tables import rows, schema
from tasks.artifacts.tables.rows import Survivor

SHORT = {
    "bytes16": pa.binary(16),
    "names": pa.dictionary(pa.int32(), pa.string()),
    "strings": pa.list_(pa.string()),
    "place": pa.struct(
        [pa.field("path", pa.string(), False), *(pa.field(name, pa.int64(), False) for name in ("record", "byte"))]
    ),
}
ON_DISK = {
    "DOCUMENTS": (
        "doc_id: bytes16; piece: int16; source: names; lang: names?; text: large_string; text_digest: "
        "bytes16; origin: place; meta: string?; text_kind: names?"
    ),
    "LEDGER": (
        "doc_id: bytes16; piece: int16; stage: string; action: string; rule: string; value: float?; limit: "
        "float?; bytes_in: int64; bytes_out: int64; evidence: string?"
    ),
    "REJECTS": "source: string; path: string; record: int64; byte: int64; reason: string; excerpt: string",
    "ITEMS": (
        "benchmark: string; item_id: string; lang: string?; context: string; choices: strings; answer: "
        "string; match_text: string; answers: strings?; ending: string?"
    ),
    "LEAKS": (
        "benchmark: string; item_id: string; state: string; form: string; doc_id: bytes16?; piece: int16?; "
        "start: int64?; end: int64?; matched: int32; total: int32; remains: int32"
    ),
    "SPANS": ("row: int64; tok_start: int32; tok_len: int32; doc_id: bytes16; piece: int16; start: int64; end: int64"),
    "SCORES": (
        "task: string; metric: string; shots: int32; subset: string; n: int64; value: double?; stderr: "
        "double?; note: string"
    ),
    "ITEM_SCORES": "task: string; item_id: string; shots: int32; state: string; metric: string; value: double",
    "GAPS": (
        "task: string; metric: string; shots: int32; leaked_n: int64; clean_n: int64; difference: double; "
        "stderr: double?; p: double; beyond_chance: bool"
    ),
    "DOCUMENT_SCORES": "source: string; doc_id: bytes16; piece: int16; metric: string; bits: double; bytes: int64",
    "SAMPLES": "prompt: string; text: string; temperature: double; seed: uint64; truth: string?",
}
"""Table -> its columns and their Arrow types; `?` where they may be null. Artifacts on disk have them."""


@pytest.mark.parametrize("table", ON_DISK)
def test_tables_keep_their_columns(table: str) -> None:
    fields: list[pa.Field[pa.DataType]] = []
    for column in ON_DISK[table].split("; "):
        name, kind = column.removesuffix("?").split(": ")
        fields.append(pa.field(name, SHORT.get(kind) or pa.type_for_alias(kind), column.endswith("?")))
    assert getattr(schema, table) == pa.schema(fields)


def test_rows_of_steps_have_their_columns() -> None:
    assert list(get_type_hints(rows.StepRow)) == STEPS.names


def test_rows_of_sequences_have_their_columns() -> None:
    assert rows.SequenceRow.__required_keys__ == set(sequences_schema(64, 512).names)


@pytest.mark.parametrize(
    ("evidence", "found"),
    [
        ('{"survivor": "0a", "jaccard": 0.9}', Survivor("0a", 0.9)),
        ('{"survivor": "0a", "jaccard": 1.0, "earlier": "f0"}', Survivor("0a", 1.0, "f0")),
        ('{"survivor": "0a", "passages": 2}', Survivor("0a")),
        ('{"benchmark": "quiz"}', None),
        ("cut in the mid", None),
        ("7", None),
        (None, None),
    ],
)
def test_the_survivor_is_read_from_evidence(evidence: str | None, found: Survivor | None) -> None:
    assert Survivor.of(evidence) == found
