"""Shares between bounds: the nearest ones, the best ones, and random ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.experiments.mixture_fit import Fit, best_shares, check_bounds, draw_mixtures, project
from model.errors import RecipeError


@st.composite
def bounded(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    sources = draw(st.integers(2, 6))
    numbers = st.lists(st.floats(-2, 2), min_size=sources, max_size=sources)
    low = np.array(draw(st.lists(st.floats(0, 1 / sources), min_size=sources, max_size=sources)))
    width = np.array(draw(st.lists(st.floats(0, 1), min_size=sources, max_size=sources)))
    high = np.minimum(1.0, low + width)
    # Space for what is missing to one.
    high[0] = max(high[0], min(1.0, 1 - high[1:].sum()))
    return np.array(draw(numbers)), low, high


@given(bounded())
def test_projected_shares_are_shares_and_none_are_nearer(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    point, low, high = case
    found = project(point, low, high)
    assert found.sum() == pytest.approx(1, abs=1e-9)
    assert (found >= low - 1e-12).all()
    assert (found <= high + 1e-12).all()
    random = np.random.default_rng(0)
    for _ in range(20):
        other = project(random.uniform(-2, 2, len(point)), low, high)
        assert ((point - found) ** 2).sum() <= ((point - other) ** 2).sum() + 1e-9


def test_shares_that_fit_stay() -> None:
    shares = np.array([0.2, 0.3, 0.5])
    assert project(shares, np.zeros(3), np.ones(3)) == pytest.approx(shares, abs=1e-12)


def test_the_least_of_a_linear_function_is_what_greed_finds() -> None:
    """The cheapest source to its cap, the dearest at its floor, and the rest between. All sources lose alike, so that
    the mean grows with the linear function."""
    alike, low, high = Fit(np.tile([3.0, 1.0, 2.0], (3, 1))), np.array([0.1, 0.1, 0.1]), np.array([1.0, 0.5, 1.0])
    found = best_shares(alike, np.ones(3) / 3, low, high)
    assert found == pytest.approx([0.1, 0.5, 0.4], abs=1e-9)


@pytest.mark.parametrize("sources", [2, 12])
def test_sources_that_learn_alike_from_themselves_share_alike(sources: int) -> None:
    """The mean of exp(1 - w) over the sources is convex and symmetric in them."""
    each, prior = Fit(np.ones((sources, sources)) - np.eye(sources)), np.arange(1, sources + 1) / 1.0
    found = best_shares(each, prior / prior.sum(), np.full(sources, 0.005), np.ones(sources))
    assert found == pytest.approx(np.full(sources, 1 / sources), abs=1e-7)


def test_no_share_between_the_bounds_can_be_exchanged_for_another() -> None:
    """The conditions of Karush, Kuhn and Tucker: one slope for all shares that are free, none lower for one that may
    grow, none higher for one that may shrink."""
    random, sources = np.random.default_rng(3), 14
    fit, prior = Fit(random.uniform(-1, 1.5, (sources, sources))), random.dirichlet(np.ones(sources))
    low, high = np.full(sources, 0.005), np.minimum(1, 3 * prior + 0.05)
    found = best_shares(fit, prior, low, high)
    slopes = (fit.losses(found[None])[0][:, None] * fit.slopes_SS).mean(axis=0)
    may_grow, may_shrink = found < high - 1e-9, found > low + 1e-9
    assert found.sum() == pytest.approx(1)
    assert slopes[may_grow].min() >= slopes[may_shrink].max() - 1e-5


def test_random_mixtures_keep_the_bounds_lie_around_the_prior_and_are_the_seeds() -> None:
    prior, low, high = np.array([0.6, 0.3, 0.1]), np.full(3, 0.01), np.array([1.0, 0.5, 1.0])
    found = draw_mixtures(prior, low, high, 2000, seed=5)
    assert found.sum(axis=1) == pytest.approx(np.ones(2000))
    assert (found >= low - 1e-12).all()
    assert (found <= high + 1e-12).all()
    assert np.array_equal(found[:100], draw_mixtures(prior, low, high, 100, seed=5))
    assert not np.array_equal(found[:100], draw_mixtures(prior, low, high, 100, seed=6))
    free = draw_mixtures(prior, np.zeros(3), np.ones(3), 2000, seed=5)
    assert free.mean(axis=0) == pytest.approx(prior, abs=0.03)


@pytest.mark.parametrize(
    ("low", "high", "reported"),
    [
        ([0.1, 0.1], [0.05, 1.0], "source `a` may be at most 5.00%"),
        ([0.6, 0.6], [1.0, 1.0], "asks for 120%"),
        ([0.0, 0.0], [0.3, 0.3], "can give 60% of budget_tokens"),
    ],
)
def test_bounds_that_leave_no_space_are_reported(low: list[float], high: list[float], reported: str) -> None:
    with pytest.raises(RecipeError, match=reported):
        check_bounds(np.array(low), np.array(high), ["a", "b"])
