"""The rows of tables as types have the columns that the schemas declare."""

from typing import get_type_hints

import pyarrow as pa
import pytest

from model.data.schema import STEPS, sequences_schema
from tasks.artifacts.tables import rows, schema
from tasks.artifacts.tables.rows import Survivor
from tasks.evaluate.comparison import GAPS, ITEM_SCORES
from tasks.evaluate.samples import SAMPLES


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (rows.DocumentRow, schema.DOCUMENTS),
        (rows.LedgerRow, schema.LEDGER),
        (rows.RejectRow, schema.REJECTS),
        (rows.ItemRow, schema.ITEMS),
        (rows.LeakRow, schema.LEAKS),
        (rows.SpanRow, schema.SPANS),
        (rows.ScoreRow, schema.SCORES),
        (rows.StepRow, STEPS),
        (rows.ItemScoreRow, ITEM_SCORES),
        (rows.GapRow, GAPS),
        (rows.SampleRow, SAMPLES),
    ],
)
def test_a_row_has_the_columns_of_its_schema_and_none_where_they_may_be_null(kind: type, declared: pa.Schema) -> None:
    hints = get_type_hints(kind)
    assert list(hints) == declared.names
    assert {name for name in hints if type(None) in getattr(hints[name], "__args__", ())} == {
        field.name for field in declared if field.nullable
    }


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
