"""The fit gives back the law that made the losses, and its minimum is that of the law."""

import numpy as np
import pytest

from flows.experiments.mixture_fit import (
    best_shares,
    clip_to_observed,
    draw_mixtures,
    fit_losses,
    r_squared,
    rank_correlation,
)
from model.errors import InputError

SLOPES = np.array([[0.2, 0.9, 0.8], [0.7, 0.1, 0.6], [0.9, 0.8, 0.3]])
"""log loss of each source by the shares of three: each learns most from itself."""
PRIOR = np.array([0.5, 0.3, 0.2])


def proxies(count: int, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    shares = draw_mixtures(PRIOR, np.full(3, 0.005), np.ones(3), count, seed=1)
    random = np.random.default_rng(2)
    return shares, np.exp(shares @ SLOPES.T + noise * random.normal(size=(count, 3)))


def test_without_noise_the_law_comes_back() -> None:
    fit = fit_losses(*proxies(12))
    assert fit.slopes_SS == pytest.approx(SLOPES, abs=1e-4)
    shares, losses = proxies(5)
    assert fit.losses(shares) == pytest.approx(losses, rel=1e-4)
    assert fit.mean_loss(shares) == pytest.approx(losses.mean(axis=1), rel=1e-4)


def test_the_best_shares_are_better_than_any_others_between_the_bounds() -> None:
    fit, low, high = fit_losses(*proxies(32, noise=0.01)), np.full(3, 0.1), np.array([0.4, 0.5, 1.0])
    best = best_shares(fit, PRIOR, low, high)
    assert best.sum() == pytest.approx(1)
    assert (best >= low - 1e-9).all()
    assert (best <= high + 1e-9).all()
    others = draw_mixtures(PRIOR, low, high, 3000, seed=9)
    assert fit.mean_loss(best[None])[0] <= fit.mean_loss(others).min() + 1e-9


def test_with_noise_the_fit_ranks_mixtures_that_it_has_not_seen() -> None:
    shares, losses = proxies(32, noise=0.005)
    fit = fit_losses(shares[:24], losses[:24])
    predicted, measured = fit.mean_loss(shares[24:]), losses[24:].mean(axis=1)
    rank, reported = rank_correlation(predicted, measured), r_squared(predicted, measured)
    assert rank is not None
    assert reported is not None
    assert rank > 0.7
    assert reported > 0.7


def test_shares_stay_between_those_that_were_tried() -> None:
    tried = np.array([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])
    low, high = clip_to_observed(np.array([0.0, 0.25, 0.3]), np.array([0.4, 1.0, 1.0]), tried)
    assert low.tolist() == [0.2, 0.3, 0.3]
    assert high.tolist() == [0.4, 0.3, 0.5]
    narrow = np.array([0.1, 0.1, 0.1]), np.array([0.2, 0.2, 0.9])
    assert [bound.tolist() for bound in clip_to_observed(*narrow, np.array([[0.2, 0.2, 0.6]]))] == [[0.2, 0.2, 0.6]] * 2
    unmeetable = np.array([0.0, 0.0, 0.0]), np.array([0.3, 0.3, 0.4])
    assert clip_to_observed(*unmeetable, np.array([[0.5, 0.3, 0.2]]))[1].tolist() == [0.3, 0.3, 0.4]


def test_measures_of_the_fit_by_hand() -> None:
    assert r_squared(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0])) == 1
    assert r_squared(np.array([2.0, 2.0, 2.0]), np.array([1.0, 2.0, 3.0])) == 0
    assert r_squared(np.ones(2), np.ones(2)) is None
    assert rank_correlation(np.array([1.0, 5.0, 9.0]), np.array([0.1, 0.2, 0.3])) == pytest.approx(1)
    assert rank_correlation(np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(-1)
    assert rank_correlation(np.array([1.0, 1.0]), np.array([1.0, 2.0])) is None


def test_fewer_proxies_than_sources_are_refused() -> None:
    with pytest.raises(InputError, match="2 proxies cannot determine 3 sources"):
        fit_losses(*proxies(2))
