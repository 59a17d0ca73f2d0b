"""Groups of neighbours, against loops."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tasks.common.groups import begins_group, begins_of, first_of_group, places_within


@given(st.lists(st.integers(0, 5)))
def test_places_count_from_the_beginning_of_each_group(sizes: list[int]) -> None:
    array = np.array(sizes, dtype=np.int64)
    assert begins_of(array).tolist() == [sum(sizes[:number]) for number in range(len(sizes))]
    assert places_within(array).tolist() == [place for size in sizes for place in range(size)]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1))))
def test_a_group_begins_where_any_column_changes(rows: list[tuple[int, int]]) -> None:
    one, other = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    begins = begins_group(one, other)
    expected = [number == 0 or rows[number] != rows[number - 1] for number in range(len(rows))]
    assert begins.tolist() == expected
    firsts = [max(first for first in range(number + 1) if expected[first]) for number in range(len(rows))]
    assert first_of_group(begins).tolist() == firsts
