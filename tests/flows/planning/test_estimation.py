"""Estimates from samples whose whole is known, and duplicates that a pilot cannot see."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.planning.estimate import (
    Interval,
    ObservedCopies,
    drawn_share,
    estimate_removal,
    group_sizes,
    ratio_total,
    total,
    wilson,
)


def pilot_of(groups: list[int], share: float, seed: int = 0) -> ObservedCopies:
    """What a pilot of that share sees of a source whose documents are in groups of copies of these sizes."""
    seen = np.random.default_rng(seed).binomial(groups, share)
    by_group = Counter({int(size): int(size * count) for size, count in Counter(seen.tolist()).items() if size})
    return ObservedCopies(by_group, removed=int(sum(size - 1 for size in seen if size)))


def removal(groups: list[int]) -> float:
    return 1 - len(groups) / sum(groups)


CORPORA = {
    "all different": [1] * 50_000,
    "all in pairs": [2] * 25_000,
    "a tenth in groups of a hundred": [1] * 45_000 + [100] * 50,
    "half in pairs, a tenth in groups of twenty": [1] * 20_000 + [2] * 12_500 + [20] * 250,
}


@pytest.mark.parametrize("name", CORPORA)
def test_duplicates_of_the_whole_are_foreseen_from_a_twentieth_of_it(name: str):
    groups = CORPORA[name]
    truth = removal(groups)
    seen = pilot_of(groups, 0.05)
    found = estimate_removal(seen, 0.05)
    assert found.low <= truth <= found.high
    pilot_alone = seen.removed / seen.documents
    assert pilot_alone <= truth
    assert abs(found.value - truth) <= 0.4 * (truth - pilot_alone) + 0.001


def test_a_pilot_of_everything_is_exact():
    assert estimate_removal(ObservedCopies({1: 90, 2: 10}, removed=5), 1.0) == Interval(0.05, 0.05, 0.05)


def test_a_source_that_always_loses_to_another_loses_all_of_its_pairs():
    """20% of the pilot's documents met a copy at a share of 20%, and each of them went: every document has a copy."""
    found = estimate_removal(ObservedCopies({1: 8000, 2: 2000}, removed=2000), 0.2)
    assert found.value == pytest.approx(1.0, abs=0.03)


def test_no_more_than_all_documents_are_removed():
    """Every document seen twice or more went: by their number in groups more than all of them would go."""
    found = estimate_removal(ObservedCopies({1: 2000, 2: 3000, 3: 3000, 4: 2000}, removed=8000), 0.2)
    assert found.value == found.high == 1.0


def test_an_interval_is_scaled_whole():
    assert Interval(1.0, 2.0, 4.0).scaled(3.0) == Interval(3.0, 6.0, 12.0)


def test_nothing_seen_leaves_doubt_that_shrinks_with_the_pilot():
    few = estimate_removal(ObservedCopies({1: 100}, removed=0), 0.05)
    many = estimate_removal(ObservedCopies({1: 100_000}, removed=0), 0.05)
    assert few.value == pytest.approx(0.0, abs=0.001)
    assert many.value == pytest.approx(0.0, abs=0.001)
    assert many.high < 0.002 < 0.3 < few.high <= 0.5


def test_group_sizes_are_recovered():
    sizes, shares = group_sizes(pilot_of([1] * 30_000 + [50] * 400, 0.1).documents_by_group, 0.1)
    assert shares[sizes == 1].sum() == pytest.approx(0.6, abs=0.05)
    assert shares[(sizes > 30) & (sizes < 80)].sum() == pytest.approx(0.4, abs=0.05)


def test_wilson_knows_the_textbook_case_and_the_whole():
    """8 of 10: 0.49 to 0.943 (Newcombe 1998, table I's method 3)."""
    found = wilson(8, 10, 0.0)
    assert (found.low, found.value, found.high) == (
        pytest.approx(0.490, abs=0.001),
        0.8,
        pytest.approx(0.943, abs=0.001),
    )
    assert wilson(8, 10, 1.0) == Interval(0.8, 0.8, 0.8)


@given(st.integers(0, 200), st.integers(1, 200), st.floats(0, 0.99))
def test_wilson_holds_its_share(successes: int, more: int, taken: float):
    found = wilson(successes, successes + more, taken)
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_documents_that_are_drawn_at_a_rate_are_known_to_a_binomial_deviation():
    """Of 400 at a half 200 are drawn, with a deviation of 10; where a third of them holds all the text, the text's is
    wider by the root of 3."""
    found = drawn_share(np.ones(3), 400, 0.5).scaled(200)
    assert (found.low, found.value, found.high) == (pytest.approx(180.4, abs=0.01), 200, pytest.approx(219.6, abs=0.01))
    uneven = drawn_share(np.array([3.0, 0.0, 0.0]), 400, 0.5)
    assert uneven.high - 1 == pytest.approx(np.sqrt(3) * (found.high / 200 - 1))
    assert drawn_share(np.ones(3), 400, 1.0) == drawn_share(np.ones(0), 0, 0.5) == Interval(1.0, 1.0, 1.0)


def test_drawing_and_estimating_together_cover_the_truth_19_times_in_20():
    """Half of 4,000 documents is drawn, and 1,800 of those are looked at; three in ten lose all they have."""
    rng = np.random.default_rng(5)
    before = rng.lognormal(8, 1, 4_000)
    after = before * (rng.random(4_000) < 0.7)
    covered = 0
    for _ in range(400):
        drawn = rng.random(4_000) < 0.5
        seen = rng.choice(np.flatnonzero(drawn), 1_800, replace=False)
        estimate = ratio_total(before[seen], after[seen], before.sum() * 0.5, 0.9)
        found = estimate.times_independent(drawn_share(before[seen], 4_000, 0.5))
        covered += found.low <= after[drawn].sum() <= found.high
    assert 0.92 <= covered / 400 <= 0.98


def test_errors_of_independent_factors_add_in_quadrature():
    found = Interval(7.0, 10.0, 13.0).times_independent(Interval(0.6, 1.0, 1.4))
    assert (found.low, found.value, found.high) == (5.0, 10.0, 15.0)


def test_ratio_total_covers_the_truth_19_times_in_20():
    rng = np.random.default_rng(3)
    before = rng.lognormal(8, 1, 20_000)
    after = before * (rng.random(20_000) < 0.7)
    covered = 0
    for _ in range(200):
        chosen = rng.permutation(20_000)[:1000]
        found = ratio_total(before[chosen], after[chosen], float(before.sum()), 0.05)
        covered += found.low <= after.sum() <= found.high
    assert 180 <= covered <= 200


def test_a_stage_that_halves_every_document_has_no_sampling_error():
    before = np.array([100.0, 300.0, 50.0])
    assert ratio_total(before, before / 2, 10_000, 0.01) == Interval(5000, 5000, 5000)


def test_errors_add_in_quadrature():
    assert total([Interval(97, 100, 104), Interval(196, 200, 203)]) == Interval(295, 300, 305)
