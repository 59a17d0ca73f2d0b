"""The events of a document's history in words."""

import pytest

from flows.runs.document_history import Trained, describe_event


@pytest.mark.parametrize(
    ("rows", "words"),
    [([], "no row"), ([7], "row 7"), ([3, 4, 5], "rows 3 to 5"), ([17043, 17044, 17207], "3 rows from 17043 to 17207")],
)
def test_rows_of_others_between_are_not_counted_as_the_documents(rows: list[int], words: str) -> None:
    assert describe_event({"stage": "chunk", "what": "packed", "tokens": 390, "rows": rows}) == (
        f"packed as 390 tokens in {words}"
    )


def test_each_row_that_was_read_is_called_a_reading():
    trained: Trained = {"stage": "train", "what": "trained", "steps": [3, 8], "reads": 4}
    assert describe_event(trained) == "4 readings of its rows, in steps 3, 8"
    assert describe_event({**trained, "steps": [], "reads": 0}) == "never reached"
