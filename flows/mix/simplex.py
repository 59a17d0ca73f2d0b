"""Shares between bounds that add up to one: where they may lie, the nearest ones, and the best ones.

Shapes: S sources, P proxies.
"""

from collections.abc import Callable

import numpy as np

from model.errors import RecipeError

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


def projected(point_S: np.ndarray, low_S: np.ndarray, high_S: np.ndarray) -> np.ndarray:
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


def minimum(
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
    share_S = projected(start_S, low_S, high_S)
    for _ in range(ROUNDS):
        next_S = projected(share_S - slope(share_S) / curvature, low_S, high_S)
        if np.abs(next_S - share_S).max() < STILL:
            return next_S
        share_S = next_S
    return share_S


def drawn(prior_S: np.ndarray, low_S: np.ndarray, high_S: np.ndarray, proxies: int, seed: int) -> np.ndarray:
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
        found[proxy] = projected(random.dirichlet(shapes_S), low_S, high_S)
    return found
