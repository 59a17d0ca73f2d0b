"""Largest remainder with limits: values to check in the head, and laws for any input."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.common.numeric import apportion

NAMES = st.sampled_from("abcdefgh")


def test_shares_follow_weights_and_the_largest_remainder_takes_what_is_left():
    assert apportion(10, {"a": 1, "b": 1, "c": 1}, {"a": 99, "b": 99, "c": 99}) == {"a": 4, "b": 3, "c": 3}
    assert apportion(10, {"a": 0.55, "b": 0.25, "c": 0.2}, dict.fromkeys("abc", 99)) == {"a": 6, "b": 2, "c": 2}


def test_what_a_small_source_cannot_give_goes_to_the_others_by_weight():
    shares = apportion(100, {"small": 2, "a": 1, "b": 1}, {"small": 10, "a": 1000, "b": 1000})
    assert shares == {"small": 10, "a": 45, "b": 45}


def test_surplus_that_fills_another_source_moves_on():
    shares = apportion(100, {"a": 8, "b": 1, "c": 1}, {"a": 10, "b": 20, "c": 1000})
    assert shares == {"a": 10, "b": 20, "c": 70}


def test_when_all_are_full_the_sum_is_less_than_asked():
    assert apportion(100, {"a": 1, "b": 1}, {"a": 3, "b": 4}) == {"a": 3, "b": 4}


def test_weight_zero_gets_nothing_even_when_text_is_short():
    assert apportion(100, {"a": 1, "b": 0}, {"a": 3, "b": 4}) == {"a": 3, "b": 0}


def test_a_negative_weight_is_refused():
    with pytest.raises(ValueError, match="negative"):
        apportion(1, {"a": -1.0}, {"a": 1})


@settings(deadline=None)
@given(
    total=st.integers(0, 10_000),
    weights=st.dictionaries(NAMES, st.floats(0, 1000, allow_subnormal=False), min_size=1),
    data=st.data(),
)
def test_sum_limits_and_proportions_hold(total: int, weights: dict[str, float], data: st.DataObject):
    limits = {name: data.draw(st.integers(0, 5000)) for name in weights}
    shares = apportion(total, weights, limits)
    able = sum(limits[name] for name in weights if weights[name] > 0)
    assert sum(shares.values()) == min(total, able)
    assert all(0 <= shares[name] <= limits[name] for name in weights)
    free = [name for name in weights if weights[name] > 0 and shares[name] < limits[name]]
    for one in free:
        for other in free:
            ratio = weights[one] / weights[other]
            if 1e-3 < ratio < 1e3:
                assert abs(shares[one] - shares[other] * ratio) <= 1 + ratio
