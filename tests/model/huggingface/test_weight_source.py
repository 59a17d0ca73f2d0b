"""Conversion of a weight and back is the identity; fused heads and shifted tables on small numbers."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.huggingface.base import WeightSource

# Two heads of size 1: queries 0 1, keys 2 3, values 4 5.
OURS = torch.arange(6.0)[:, None]


@settings(deadline=None)
@given(
    parts=st.sampled_from([1, 2, 3]),
    transposed=st.booleans(),
    fused_heads=st.sampled_from([0, 2]),
    leading_rows=st.integers(0, 3),
    reversed_rows=st.booleans(),
)
def test_given_and_taken_again_a_weight_is_the_same(
    parts: int, transposed: bool, fused_heads: int, leading_rows: int, reversed_rows: bool
) -> None:
    # Tables of positions alone are shifted, and they are not fused, cut up or stored the other way round.
    leading_rows = 0 if parts > 1 or transposed or fused_heads else leading_rows
    source = WeightSource(tuple("abc"[:parts]), transposed, fused_heads, leading_rows, reversed_rows)
    weight = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    published = source.to_published(weight)
    assert len(published) == parts
    assert torch.equal(source.to_native(published), weight)
    assert [tuple(tensor.shape) for tensor in published] == source.published_shapes(weight)


def test_fused_heads_stand_head_by_head() -> None:
    (published,) = WeightSource(("fused",), fused_heads=2).to_published(OURS)
    assert published.flatten().tolist() == [0, 2, 4, 1, 3, 5]


def test_published_rows_before_ours_are_dropped_and_given_back_as_zeros() -> None:
    source = WeightSource(("positions",), leading_rows=2)
    assert source.to_native([torch.arange(5.0)[:, None]]).flatten().tolist() == [2, 3, 4]
    assert source.to_published(torch.tensor([[2.0], [3.0]]))[0].flatten().tolist() == [0, 0, 2, 3]


def test_rows_that_only_we_have_are_zeros_and_not_given_back() -> None:
    source = WeightSource(("positions",), leading_rows=-1)
    assert source.to_native([torch.tensor([[7.0], [8.0]])]).flatten().tolist() == [0, 7, 8]
    assert source.to_published(torch.tensor([[0.0], [7.0], [8.0]]))[0].flatten().tolist() == [7, 8]
