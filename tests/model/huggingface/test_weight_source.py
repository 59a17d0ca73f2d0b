"""Conversion of a weight and back is the identity; fused parts and shifted tables on small numbers."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.huggingface.base import WeightSource

# Two heads of size 1.
QUERIES, KEYS, VALUES = (torch.tensor([[first], [second]]) for first, second in ((0.0, 1.0), (2.0, 3.0), (4.0, 5.0)))


@settings(deadline=None)
@given(
    parts=st.sampled_from([1, 2, 3]),
    transposed=st.booleans(),
    heads=st.sampled_from([0, 2]),
    leading_rows=st.integers(0, 3),
    reversed_rows=st.booleans(),
)
def test_converted_there_and_back_a_weight_is_the_same(
    parts: int, transposed: bool, heads: int, leading_rows: int, reversed_rows: bool
) -> None:
    # Tables of positions alone are shifted, and they are not fused or stored the other way round.
    leading_rows = 0 if parts > 1 or transposed or heads else leading_rows
    reversed_rows = reversed_rows and parts == 1
    sources = [WeightSource("w", transposed, part, parts, heads, leading_rows, reversed_rows) for part in range(parts)]
    weights = list(torch.randn(parts, 12, 4, generator=torch.Generator().manual_seed(1)))
    published = sources[0].to_published(weights)
    assert sorted(published.shape) == sorted((12 * parts + leading_rows, 4))
    for source, weight in zip(sources, weights, strict=True):
        assert torch.equal(source.to_native(published), weight)


def test_parts_follow_each_other() -> None:
    published = WeightSource("fused", parts=3).to_published([QUERIES, KEYS, VALUES])
    assert published.flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert WeightSource("fused", part=1, parts=3).to_native(published).flatten().tolist() == [2, 3]


def test_parts_alternate_by_head() -> None:
    published = WeightSource("fused", parts=3, heads=2).to_published([QUERIES, KEYS, VALUES])
    assert published.flatten().tolist() == [0, 2, 4, 1, 3, 5]
    assert WeightSource("fused", part=1, parts=3, heads=2).to_native(published).flatten().tolist() == [2, 3]


def test_published_rows_before_ours_are_dropped_and_given_back_as_zeros() -> None:
    source = WeightSource("positions", leading_rows=2)
    assert source.to_native(torch.arange(5.0)[:, None]).flatten().tolist() == [2, 3, 4]
    assert source.to_published([torch.tensor([[2.0], [3.0]])]).flatten().tolist() == [0, 0, 2, 3]


def test_rows_that_only_we_have_are_zeros_and_not_given_back() -> None:
    source = WeightSource("positions", leading_rows=-1)
    assert source.to_native(torch.tensor([[7.0], [8.0]])).flatten().tolist() == [0, 7, 8]
    assert source.to_published([torch.tensor([[0.0], [7.0], [8.0]])]).flatten().tolist() == [7, 8]
