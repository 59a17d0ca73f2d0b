"""Fit held-out losses as a function of the mixture, and find the shares of the sources that minimise them.

The fit is linear in the shares on log losses (RegMix, Liu et al. 2024) and judged on proxies that were kept back.
Shares lie between bounds and add up to one. Shapes: P proxies, S sources.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from model.errors import InputError, RecipeError

RIDGE = 1e-6
"""Weight of the squared coefficients relative to the squared error of a proxy, for sources whose shares always vary
together."""


@dataclass(frozen=True)
class Fit:
    """The log of the held-out loss of source r at shares w is the sum over s of `slopes[r, s]` w_s.

    Shares add up to one, so a constant term is contained in the slopes.
    """

    slopes_SS: np.ndarray

    def losses(self, shares_PS: np.ndarray) -> np.ndarray:
        """Return the predicted held-out losses f64[P, S] of mixtures."""
        return np.exp(shares_PS @ self.slopes_SS.T)

    def mean_loss(self, shares_PS: np.ndarray) -> np.ndarray:
        """Return their plain mean over sources f64[P], the objective that is minimised."""
        return self.losses(shares_PS).mean(axis=1)


def fit_losses(shares_PS: np.ndarray, losses_PS: np.ndarray) -> Fit:
    """Fit by least squares on log losses; InputError for too few proxies."""
    proxies, sources = shares_PS.shape
    if proxies < sources:
        raise InputError(f"mix: {proxies} proxies cannot determine {sources} sources; train at least as many")
    gram_SS = shares_PS.T @ shares_PS + RIDGE * np.eye(sources)
    return Fit(np.linalg.solve(gram_SS, shares_PS.T @ np.log(losses_PS)).T)


def best_shares(fit: Fit, prior_S: np.ndarray, low_S: np.ndarray, high_S: np.ndarray) -> np.ndarray:
    """Return the shares f64[S] between the bounds with the lowest predicted mean loss.

    A mean of exponentials of linear functions is convex, so there is one minimum.
    """

    def mean_loss(share_S: np.ndarray) -> float:
        return float(fit.mean_loss(share_S[None])[0])

    def slope(share_S: np.ndarray) -> np.ndarray:
        return (fit.losses(share_S[None])[0][:, None] * fit.slopes_SS).mean(axis=0)

    found = minimize(
        mean_loss,
        project(prior_S, low_S, high_S),
        jac=slope,
        bounds=list(zip(low_S, high_S, strict=True)),
        constraints={"type": "eq", "fun": lambda share_S: share_S.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": TOLERANCE, "maxiter": ROUNDS},
    )
    return project(found.x, low_S, high_S)


def clip_to_observed(low_S: np.ndarray, high_S: np.ndarray, shares_PS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds f64[S] narrowed to the shares that each source had in some mixture of the fit.

    A fit that is linear in shares has its minimum at a bound, and cannot extrapolate beyond its mixtures. Bounds
    between which no shares add up to one are returned unchanged.
    """
    high = np.minimum(high_S, shares_PS.max(axis=0))
    low = np.minimum(np.maximum(low_S, shares_PS.min(axis=0)), high)
    return (low, high) if low.sum() <= 1.0 <= high.sum() else (low_S, high_S)


def r_squared(predicted_P: np.ndarray, measured_P: np.ndarray) -> float | None:
    """Return the explained share of the variance; None where there is no variance."""
    around = ((measured_P - measured_P.mean()) ** 2).sum()
    return None if around == 0 else float(1 - ((measured_P - predicted_P) ** 2).sum() / around)


def rank_correlation(predicted_P: np.ndarray, measured_P: np.ndarray) -> float | None:
    """Return Spearman's rank correlation, with mean ranks for equal values; None where all are equal."""
    from scipy.stats import rankdata  # It takes a second to import.

    if np.ptp(predicted_P) == 0 or np.ptp(measured_P) == 0:
        return None
    return float(np.corrcoef(rankdata(predicted_P), rankdata(measured_P))[0, 1])


ROUNDS = 1000

TOLERANCE = 1e-15
"""Change of the mean loss at which the minimum counts as reached."""

BISECTIONS = 200


def check_bounds(low_S: np.ndarray, high_S: np.ndarray, names: list[str]) -> None:
    """Raise RecipeError where no shares lie between the bounds."""
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
    """Return the nearest shares f64[S] with low <= share <= high that add up to one.

    They are the point shifted by one number and clipped; bisection finds the number (Duchi et al. 2008, for a simplex
    with bounds).
    """
    below, above = (low_S - point_S).min(), (high_S - point_S).max()
    for _ in range(BISECTIONS):
        middle = (below + above) / 2
        if np.clip(point_S + middle, low_S, high_S).sum() < 1:
            below = middle
        else:
            above = middle
    return np.clip(point_S + (below + above) / 2, low_S, high_S)


def draw_mixtures(prior_S: np.ndarray, low_S: np.ndarray, high_S: np.ndarray, proxies: int, seed: int) -> np.ndarray:
    """Return random mixtures f64[P, S] around the prior, within the bounds.

    They are Dirichlet draws, from near the prior to nearly one source: the concentration of each is log-uniform between
    a tenth and five times the number of sources (RegMix, section 3.1).
    """
    random = np.random.Generator(np.random.Philox(seed))
    sources = len(prior_S)
    found = np.empty((proxies, sources))
    for proxy in range(proxies):
        concentration = sources * np.exp(random.uniform(np.log(0.1), np.log(5.0)))
        # A gamma of a tiny shape is zero in floating point, and no source may be excluded.
        shapes_S = np.maximum(concentration * prior_S, 1e-2)
        found[proxy] = project(random.dirichlet(shapes_S), low_S, high_S)
    return found
