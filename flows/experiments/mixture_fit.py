"""Held-out loss by source as a function of the mixture, fitted on proxies and held against others that were kept back.

Shapes: P proxies, S sources.

Shares between bounds that add up to one: where they may lie, the nearest ones, and the best ones.

Shapes: S sources, P proxies.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from model.errors import InputError, RecipeError

RIDGE = 1e-6
"""Weight of the squared coefficients beside the squared error of a proxy: sources that always go together have no
coefficients of their own."""


@dataclass(frozen=True)
class Fit:
    """log of the held-out loss of source r at shares w = sum over s of `slopes[r, s]` w_s; shares add up to one, so
    that a constant is in the slopes."""

    slopes_SS: np.ndarray

    def losses(self, shares_PS: np.ndarray) -> np.ndarray:
        """Predicted held-out losses f64[P, S] of mixtures."""
        return np.exp(shares_PS @ self.slopes_SS.T)

    def mean_loss(self, shares_PS: np.ndarray) -> np.ndarray:
        """Their plain mean over sources f64[P]: what is minimised."""
        return self.losses(shares_PS).mean(axis=1)


def fit_losses(shares_PS: np.ndarray, losses_PS: np.ndarray) -> Fit:
    """Least squares on log losses; InputError for too few proxies."""
    proxies, sources = shares_PS.shape
    if proxies < sources:
        raise InputError(f"mix: {proxies} proxies cannot tell {sources} sources apart; train at least as many")
    gram_SS = shares_PS.T @ shares_PS + RIDGE * np.eye(sources)
    return Fit(np.linalg.solve(gram_SS, shares_PS.T @ np.log(losses_PS)).T)


def best_shares(fit: Fit, prior_S: np.ndarray, low_S: np.ndarray, high_S: np.ndarray) -> np.ndarray:
    """The shares f64[S] between the bounds with the lowest predicted mean loss. A mean of exponentials of linear
    functions is convex, so that there is one minimum."""

    def slope(share_S: np.ndarray) -> np.ndarray:
        return (fit.losses(share_S[None])[0][:, None] * fit.slopes_SS).mean(axis=0)

    # Between shares that add up to one no loss is above that of its worst source alone.
    largest_S = np.exp(fit.slopes_SS.max(axis=1))
    curvature = float((largest_S * (fit.slopes_SS**2).sum(axis=1)).mean())
    return minimize(slope, curvature, prior_S, low_S, high_S)


def clip_to_observed(low_S: np.ndarray, high_S: np.ndarray, shares_PS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bounds f64[S], drawn in to the shares that each source had in some mixture of a fit: a law that is linear in
    shares finds its minimum at an end, and says nothing of what lies beyond the mixtures that it was fitted to.

    Bounds between which nothing adds up to one are left as they were.
    """
    high = np.minimum(high_S, shares_PS.max(axis=0))
    low = np.minimum(np.maximum(low_S, shares_PS.min(axis=0)), high)
    return (low, high) if low.sum() <= 1.0 <= high.sum() else (low_S, high_S)


def r_squared(predicted_P: np.ndarray, measured_P: np.ndarray) -> float | None:
    """Share of the variance that is told; None where there is none."""
    around = ((measured_P - measured_P.mean()) ** 2).sum()
    return None if around == 0 else float(1 - ((measured_P - predicted_P) ** 2).sum() / around)


def rank_correlation(predicted_P: np.ndarray, measured_P: np.ndarray) -> float | None:
    """Spearman's; equal values share their ranks. None where all are equal."""
    ranks = [_ranks(values_P) for values_P in (predicted_P, measured_P)]
    spread = [float(rank_P.std()) for rank_P in ranks]
    if 0.0 in spread:
        return None
    first_P, second_P = (rank_P - rank_P.mean() for rank_P in ranks)
    return float((first_P * second_P).mean() / (spread[0] * spread[1]))


def _ranks(values_P: np.ndarray) -> np.ndarray:
    return np.array([(values_P < value).sum() + ((values_P == value).sum() - 1) / 2 for value in values_P])


ROUNDS = 20_000

STILL = 1e-12
"""Largest change of a share at which the minimum is taken for reached."""

BISECTIONS = 200


def check_bounds(low_S: np.ndarray, high_S: np.ndarray, names: list[str]) -> None:
    """RecipeError where no shares lie between the bounds."""
    for name, low, high in zip(names, low_S, high_S, strict=True):
        if low > high:
            raise RecipeError(
                f"mix: source `{name}` may be at most {high:.2%} of the tokens (max_epochs times what it has), and at"
                f" least {low:.2%} (mix.floor). Lower mix.floor, raise max_epochs, or leave the source out"
            )
    if low_S.sum() > 1:
        raise RecipeError(f"mix: mix.floor asks for {low_S.sum():.0%} of the tokens in all; lower it")
    if high_S.sum() < 1 - 1e-9:
        raise RecipeError(
            f"mix: the sources can give {high_S.sum():.0%} of budget_tokens in max_epochs passes; lower the budget,"
            f" raise max_epochs, or add text"
        )


def project(point_S: np.ndarray, low_S: np.ndarray, high_S: np.ndarray) -> np.ndarray:
    """The nearest shares f64[S] with low <= share <= high that add up to one: a point shifted by one number and
    clipped, which is found by halving (Duchi et al. 2008, for a simplex with bounds)."""
    below, above = (low_S - point_S).min(), (high_S - point_S).max()
    for _ in range(BISECTIONS):
        middle = (below + above) / 2
        if np.clip(point_S + middle, low_S, high_S).sum() < 1:
            below = middle
        else:
            above = middle
    return np.clip(point_S + (below + above) / 2, low_S, high_S)


def minimize(
    slope: Callable[[np.ndarray], np.ndarray],
    curvature: float,
    start_S: np.ndarray,
    low_S: np.ndarray,
    high_S: np.ndarray,
) -> np.ndarray:
    """The shares f64[S] between the bounds at which a convex function is least, by projected gradient steps.

    `slope` gives its gradient f64[S]; `curvature` is a bound of its second derivative in any direction, so that no step
    leads upwards.
    """
    share_S = project(start_S, low_S, high_S)
    for _ in range(ROUNDS):
        next_S = project(share_S - slope(share_S) / curvature, low_S, high_S)
        if np.abs(next_S - share_S).max() < STILL:
            return next_S
        share_S = next_S
    return share_S


def draw_mixtures(prior_S: np.ndarray, low_S: np.ndarray, high_S: np.ndarray, proxies: int, seed: int) -> np.ndarray:
    """Random mixtures f64[P, S] around the prior, within the bounds.

    Dirichlet, from mixtures near the prior to such as are nearly of one source: the concentration is drawn for each
    from a tenth to five times the number of sources, evenly in its logarithm (RegMix, section 3.1).
    """
    random = np.random.Generator(np.random.Philox(seed))
    sources = len(prior_S)
    found = np.empty((proxies, sources))
    for proxy in range(proxies):
        concentration = sources * np.exp(random.uniform(np.log(0.1), np.log(5.0)))
        # A gamma of a tiny shape is zero in floating point; no source may be out of the question.
        shapes_S = np.maximum(concentration * prior_S, 1e-2)
        found[proxy] = project(random.dirichlet(shapes_S), low_S, high_S)
    return found
