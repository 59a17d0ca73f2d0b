"""The rows of tables as types have the columns that the schemas declare."""

from typing import get_type_hints

import pyarrow as pa
import pytest

from model.data.schema import STEPS, sequences_schema
from tasks.artifacts.tables import rows, schema
from tasks.artifacts.tables.rows import Survivor


def test_a_schema_has_the_columns_of_its_rows_and_null_where_they_may_be_none() -> None:
    id_and_piece = [("doc_id", pa.binary(16), False), ("piece", pa.int16(), False)]
    names = [("stage", pa.string(), False), ("action", pa.string(), False), ("rule", pa.string(), False)]
    values = [("value", pa.float32(), True), ("limit", pa.float32(), True)]
    sizes = [("bytes_in", pa.int64(), False), ("bytes_out", pa.int64(), False), ("evidence", pa.string(), True)]
    assert pa.schema([pa.field(*column) for column in (*id_and_piece, *names, *values, *sizes)]) == schema.LEDGER


def test_documents_keep_their_types_of_columns() -> None:
    kinds = dict(zip(schema.DOCUMENTS.names, schema.DOCUMENTS.types, strict=True))
    place = [("path", pa.string(), False), ("record", pa.int64(), False), ("byte", pa.int64(), False)]
    assert kinds["origin"] == pa.struct([pa.field(*column) for column in place])
    assert kinds["text"] == pa.large_string()
    assert kinds["source"] == kinds["lang"] == kinds["text_kind"] == pa.dictionary(pa.int32(), pa.string())


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
