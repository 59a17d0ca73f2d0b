"""What the page and the last screen call things."""

from flows.metrics.formatting import rows_told

ROWS = {"packing": "concat", "row_length": 63, "rows": 1200, "padding_share": 0.001}


def test_rows_are_told_with_what_is_made_of_them():
    assert rows_told({"objective": "causal_lm", **ROWS}) == (
        "causal_lm in 1,200 rows of 63 tokens, concat, 0.10% padding"
    )
    shuffled = rows_told({"objective": "span_corruption", "denoising": "deshuffling", **ROWS})
    assert shuffled.startswith("span_corruption (deshuffling) in 1,200 rows")
    assert rows_told({"objective": "masked_lm", "whole_words": True, **ROWS}).startswith("masked_lm (whole words) in")
