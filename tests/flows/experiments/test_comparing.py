"""Differences and their intervals: by hand, and as often right as they say."""

import math
import random

import numpy as np
import pytest

from flows.metrics.statistics import (
    Interval,
    bootstrap,
    compare_items_with_baseline,
    compare_with_baseline,
    interval_of_mean,
    t_975,
)


def test_quantiles_are_students() -> None:
    assert t_975(1) == pytest.approx(12.706, abs=1e-3)
    assert t_975(2) == pytest.approx(4.303, abs=1e-3)
    assert t_975(30) == pytest.approx(2.042, abs=1e-3)
    assert t_975(31) == pytest.approx(2.0395, abs=1e-4)
    assert t_975(120) == pytest.approx(1.9799, abs=1e-4)
    assert t_975(10**6) == pytest.approx(1.95996, abs=1e-4)


def test_a_difference_is_paired_by_seed() -> None:
    """1, 2 and 3 less than the base: the mean is -2, the deviation 1, and 4.303 / sqrt(3) of it the reach."""
    found = compare_with_baseline({1: 9.0, 2: 98.0, 3: 997.0}, {1: 10.0, 2: 100.0, 3: 1000.0}, higher_is_better=False)
    assert found is not None
    assert (found.n, found.difference, found.base) == (3, -2.0, 370.0)
    assert found.low == pytest.approx(-2 - 4.303 / math.sqrt(3), abs=1e-3)
    assert found.high == pytest.approx(-2 + 4.303 / math.sqrt(3), abs=1e-3)
    assert found.verdict == "no difference"


def test_the_verdict_depends_on_which_way_is_better() -> None:
    change, base = {1: 1.0, 2: 1.1, 3: 0.9}, {1: 2.0, 2: 2.1, 3: 1.9}
    assert [compare_with_baseline(change, base, higher_is_better=up).verdict for up in (False, True)] == [
        "better",
        "worse",
    ]


def test_only_seeds_that_both_have_count_and_one_gives_no_interval() -> None:
    found = compare_with_baseline({1: 1.0, 2: 5.0}, {2: 4.0, 3: 9.0}, higher_is_better=True)
    assert found is not None
    assert (found.n, found.difference, found.low, found.high, found.verdict) == (1, 1.0, None, None, "")
    assert compare_with_baseline({1: 1.0}, {2: 1.0}, higher_is_better=True) is None


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    draw = random.Random(3)
    held = 0
    for _ in range(2000):
        luck = [draw.gauss(0, 5) for _ in range(3)]
        base = {seed: luck[seed] + draw.gauss(0, 1) for seed in range(3)}
        change = {seed: luck[seed] + 0.7 + draw.gauss(0, 1) for seed in range(3)}
        found = compare_with_baseline(change, base, higher_is_better=True)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.7 <= found.high
    assert 0.935 < held / 2000 < 0.965


def test_over_items_scores_are_averaged_over_seeds_first() -> None:
    change = {1: {"a": 1.0, "b": 1.0, "c": 0.0}, 2: {"a": 1.0, "b": 0.0, "c": 0.0}}
    base = {1: {"a": 0.0, "b": 0.0}, 2: {"a": 0.0, "b": 0.0}, 3: {"c": 1.0}}
    found = compare_items_with_baseline(change, base)
    assert found is not None
    assert (found.n, found.mean) == (2, 0.75)


def test_seeds_may_draw_other_items() -> None:
    found = compare_items_with_baseline({1: {"a": 1.0}, 2: {"b": 1.0}}, {1: {"a": 0.0}, 2: {"b": 1.0, "a": 1.0}})
    assert found is not None
    assert (found.n, found.mean) == (2, 0.5)
    assert compare_items_with_baseline({1: {"a": 1.0}}, {1: {"b": 1.0}, 2: {"a": 1.0}}) is None


def test_repetitions_have_an_interval_and_one_has_none() -> None:
    """1 and 3: mean 2, deviation sqrt 2, over sqrt 2 times 12.706."""
    found = interval_of_mean([1.0, 3.0])
    assert found is not None
    assert (found.low, found.value, found.high) == pytest.approx((2 - 12.706, 2.0, 2 + 12.706), abs=1e-3)
    assert interval_of_mean([1.0]) is None


def test_resampled_rows_give_the_interval_of_a_mean() -> None:
    """Of 400 numbers of deviation 1 about 5 the mean has the standard error .05."""
    values = np.random.Generator(np.random.Philox(1)).normal(5.0, 1.0, 400)
    found = bootstrap(400, lambda rows: float(values[rows].mean()), seed=2)
    assert found.value == pytest.approx(values.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.05, rel=0.15)
    assert found == bootstrap(400, lambda rows: float(values[rows].mean()), seed=2)
    assert bootstrap(3, lambda rows: 7.0, seed=1) == Interval(7.0, 7.0, 7.0)
