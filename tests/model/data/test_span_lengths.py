"""Lengths of T5's objective, compared with the authors' program."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.data.span_lengths import corrupted_lengths, raw_length


@pytest.mark.parametrize(
    ("inputs", "raw", "targets", "spans"),
    [(128, 141, 29, 7), (256, 284, 58, 14), (512, 568, 114, 28), (1024, 1137, 229, 57), (2048, 2274, 456, 114)],
)
def test_raw_rows_fill_the_input_as_in_the_papers_program(inputs: int, raw: int, targets: int, spans: int) -> None:
    assert raw_length(inputs) == raw
    lengths = corrupted_lengths(raw)
    assert (lengths.inputs, lengths.targets, lengths.sentinels) == (inputs, targets, spans)


def test_a_hundred_tokens_in_the_head() -> None:
    lengths = corrupted_lengths(100)  # 15 tokens in 5 spans
    assert (lengths.noise, lengths.sentinels, lengths.inputs, lengths.targets) == (15, 5, 85 + 5 + 1, 15 + 5 + 1)


@given(
    inputs=st.integers(8, 3000), density=st.sampled_from([0.05, 0.15, 0.5]), mean_span=st.sampled_from([1.0, 3.0, 10.0])
)
def test_one_more_token_would_not_fit(inputs: int, density: float, mean_span: float) -> None:
    raw = raw_length(inputs, density, mean_span)
    assert corrupted_lengths(raw, density, mean_span).inputs <= inputs
    assert corrupted_lengths(raw + 1, density, mean_span).inputs > inputs
