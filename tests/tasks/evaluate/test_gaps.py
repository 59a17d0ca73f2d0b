"""Gaps between leaked and clean items: what chance gives is not flagged, what it does not is."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.evaluate.comparison import SIGNIFICANCE_LEVEL, measure_gap


def test_a_gap_of_all_against_none_has_the_probability_of_one_division() -> None:
    # Of the 70 ways to call four of eight items leaked, two have means as far apart.
    found = measure_gap([1.0] * 4, [0.0] * 4, seed=1)
    assert found is not None
    assert (found.difference, found.stderr) == (1.0, 0.0)
    assert found.p == pytest.approx(2 / 70, rel=0.15)
    assert not found.is_significant


def test_p_is_that_of_fishers_exact_test() -> None:
    # 9 of 10 right against 3 of 10: hypergeometric tails of tables at least as extreme on either side.
    ways = [math.comb(10, k) * math.comb(10, 12 - k) for k in range(2, 11)]
    exact = sum(way for k, way in zip(range(2, 11), ways, strict=True) if abs(k - 6) >= 3) / sum(ways)
    found = measure_gap([1.0] * 9 + [0.0], [1.0] * 3 + [0.0] * 7, seed=3)
    assert found is not None
    assert found.p == pytest.approx(exact, abs=0.004)


def test_the_same_sum_added_up_in_another_order_is_as_large() -> None:
    # The clean item is one of 31 without a point, and every division that calls one of them clean is as extreme.
    draw = np.random.Generator(np.random.Philox(7))
    found = measure_gap([0.0] * 30 + (40 + 50 * draw.random(900)).tolist(), [0.0], seed=1)
    assert found is not None
    assert found.p == pytest.approx(31 / 931, abs=0.005)


def test_a_gap_that_chance_would_hardly_give_is_flagged_on_either_side() -> None:
    high, low = [1.0] * 40, [1.0, 0.0, 0.0, 0.0] * 10
    for leaked, clean, difference in ((high, low, 0.75), (low, high, -0.75)):
        found = measure_gap(leaked, clean, seed=1)
        assert found is not None
        assert found.difference == pytest.approx(difference)
        assert found.p == 1 / 10_000
        assert found.is_significant


def test_the_standard_error_is_that_of_two_samples() -> None:
    found = measure_gap([1.0, 0.0] * 8, [1.0, 1.0, 1.0, 0.0] * 4, seed=1)
    assert found is not None
    assert found.stderr == pytest.approx(math.sqrt((0.25 + 0.1875) / 15))


def test_without_two_groups_there_is_no_gap() -> None:
    assert measure_gap([], [1.0], seed=1) is None
    assert measure_gap([1.0], [], seed=1) is None
    alone = measure_gap([1.0], [0.0, 1.0], seed=1)
    assert alone is not None
    assert alone.stderr is None


def test_groups_that_do_not_differ_are_flagged_as_often_as_the_level_says() -> None:
    # 600 pairs of groups from one coin: about six fall under .01 by chance, and twenty would be a fault.
    draw = np.random.Generator(np.random.Philox(5))
    flips = draw.random((600, 60)) < 0.4
    flagged = sum(
        found.is_significant
        for number, row in enumerate(flips.astype(float).tolist())
        if (found := measure_gap(row[:25], row[25:], seed=number)) is not None
    )
    assert flagged <= 600 * SIGNIFICANCE_LEVEL * 3


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=12),
    st.lists(st.floats(0, 1), min_size=1, max_size=12),
    st.integers(0, 2**32),
)
def test_p_is_a_probability_and_the_same_for_the_same_seed(leaked: list[float], clean: list[float], seed: int) -> None:
    found = measure_gap(leaked, clean, seed)
    assert found is not None
    assert 0 < found.p <= 1
    assert found == measure_gap(leaked, clean, seed)
