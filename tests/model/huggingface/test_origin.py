"""What is given back and taken over again is what it was; fused heads and shifted tables on numbers to check by eye."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.huggingface.base import Origin

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
    origin = Origin(tuple("abc"[:parts]), transposed, fused_heads, leading_rows, reversed_rows)
    weight = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    published = origin.given(weight)
    assert len(published) == parts
    assert torch.equal(origin.taken(published), weight)
    assert [tuple(tensor.shape) for tensor in published] == origin.given_shapes(weight)


def test_fused_heads_stand_head_by_head() -> None:
    (published,) = Origin(("fused",), fused_heads=2).given(OURS)
    assert published.flatten().tolist() == [0, 2, 4, 1, 3, 5]


def test_published_rows_before_ours_are_dropped_and_given_back_as_zeros() -> None:
    origin = Origin(("positions",), leading_rows=2)
    assert origin.taken([torch.arange(5.0)[:, None]]).flatten().tolist() == [2, 3, 4]
    assert origin.given(torch.tensor([[2.0], [3.0]]))[0].flatten().tolist() == [0, 0, 2, 3]


def test_rows_that_only_we_have_are_zeros_and_not_given_back() -> None:
    origin = Origin(("positions",), leading_rows=-1)
    assert origin.taken([torch.tensor([[7.0], [8.0]])]).flatten().tolist() == [0, 7, 8]
    assert origin.given(torch.tensor([[0.0], [7.0], [8.0]]))[0].flatten().tolist() == [7, 8]
