"""What the page and the last screen call things."""

from flows.metrics.formatting import describe_rows

ROWS = {"packing": "concat", "row_length": 63, "rows": 1200, "padding_share": 0.001}


def test_rows_are_reported_with_what_is_made_of_them():
    assert describe_rows({"objective": "causal_lm", **ROWS}) == (
        "causal_lm in 1,200 rows of 63 tokens, concat, 0.10% padding"
    )
    shuffled = describe_rows({"objective": "span_corruption", "denoising": "deshuffling", **ROWS})
    assert shuffled.startswith("span_corruption (deshuffling) in 1,200 rows")
    assert describe_rows({"objective": "masked_lm", "whole_words": True, **ROWS}).startswith(
        "masked_lm (whole words) in"
    )
