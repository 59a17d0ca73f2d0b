"""Optimizer states that are resharded for other numbers of ranks stay the same."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.engines.deepspeed import part_of_vector, whole_vector


def parts(whole: torch.Tensor, elements: list[int], ranks: int, *, by_parameter: bool) -> list[torch.Tensor]:
    # DeepSpeed pads a group to twice the ranks, so that parts begin where devices like them to.
    of_group = -(-len(whole) // (2 * ranks)) * 2
    size = sum(-(-each // ranks) for each in elements) if by_parameter else of_group
    return [part_of_vector(whole, elements, r, ranks, size, by_parameter=by_parameter) for r in range(ranks)]


def test_stage_2_cuts_the_padded_group_and_stage_3_each_padded_parameter() -> None:
    whole, elements = torch.arange(1.0, 9.0), [3, 5]
    of_2 = parts(whole, elements, 3, by_parameter=False)
    assert [part.tolist() for part in of_2] == [[1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 0, 0]]
    of_3 = parts(whole, elements, 2, by_parameter=True)
    assert [part.tolist() for part in of_3] == [[1, 2, 4, 5, 6], [3, 0, 7, 8, 0]]


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.booleans(),
)
def test_cut_again_and_again_it_stays_the_same(elements: list[int], ranks: list[int], by_parameter: bool) -> None:
    whole = torch.arange(1.0, sum(elements) + 1)
    now = whole
    for size in ranks:
        cut = parts(now, elements, size, by_parameter=by_parameter)
        now = whole_vector(cut, elements, by_parameter=by_parameter)
        assert torch.equal(now, whole)


def test_parts_of_another_network_are_refused() -> None:
    with pytest.raises(ValueError, match="and the group has 9"):
        whole_vector([torch.zeros(4), torch.zeros(4)], [9], by_parameter=False)
    with pytest.raises(ValueError, match="and each rank holds 5"):
        whole_vector([torch.zeros(4), torch.zeros(4)], [9], by_parameter=True)
    with pytest.raises(ValueError, match="do not fit into 8"):
        part_of_vector(torch.zeros(9), [9], 0, 2, 4, by_parameter=False)
    with pytest.raises(ValueError, match="and the rank holds 4"):
        part_of_vector(torch.zeros(9), [9], 0, 2, 4, by_parameter=True)
