"""The law of losses by size: L(N) = E + A / N^alpha, fitted to runs that read tokens in proportion to their size.

Hoffmann et al. 2022, section 3.3, with one term, since tokens follow from parameters here: the irreducible part E, and
what a finite model (and, with it, finite text) misses. Fitted by least squares of the logarithms' differences with
Huber's loss, from many starts, as there. The interval of a prediction is that of a new run: the scatter of runs about
the law, and what that leaves open about E, A and alpha (the delta method, Student's t).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import t as student

HUBER = 0.01
"""Difference by share from which a run counts linearly. Hoffmann et al. take 0.001, of hundreds of runs."""
UNKNOWNS = 3
STARTS = [(share, alpha) for share in (0.2, 0.6, 0.9) for alpha in (0.1, 0.25, 0.5)]
"""Irreducible shares of the least loss, and exponents, from which the fit begins."""


@dataclass(frozen=True)
class Prediction:
    """The loss of a model that was not trained, and where it lies in 95 of 100 such cases."""

    loss: float
    low: float
    high: float


@dataclass(frozen=True)
class Law:
    """E + A / N^alpha."""

    irreducible: float
    factor: float
    exponent: float
    scatter: float
    """Standard deviation of a run about the law, by share of its loss."""
    runs: int
    _inverse: np.ndarray
    """f64[3, 3]: of the squared Jacobian of the logarithms, by (log E, log A, alpha)."""

    def at(self, parameters: float) -> float:
        """The loss of a model with so many parameters."""
        return self.irreducible + self.factor * parameters**-self.exponent

    def predict(self, parameters: float) -> Prediction:
        """The loss of one more run."""
        loss = self.at(parameters)
        slope = _slopes(np.log([self.irreducible, self.factor]), self.exponent, np.array([parameters]))[0]
        spread = self.scatter * math.sqrt(1 + float(slope @ self._inverse @ slope))
        reach = float(student.ppf(0.975, self.runs - UNKNOWNS)) * spread
        return Prediction(loss, loss * math.exp(-reach), loss * math.exp(reach))


def fit(runs: Sequence[tuple[float, float]]) -> Law:
    """The law through (parameters, loss) of runs; ValueError where there are too few runs or sizes to tell."""
    sizes, losses = np.array([size for size, _ in runs], dtype=float), np.array([loss for _, loss in runs], dtype=float)
    if len(runs) <= UNKNOWNS or len(set(sizes.tolist())) < UNKNOWNS:
        raise ValueError(
            f"{len(runs)} runs of {len(set(sizes.tolist()))} sizes cannot tell three unknowns and their scatter: take"
            f" three sizes or more, and at least four runs"
        )
    fits = [_fitted(sizes, losses, share, alpha) for share, alpha in STARTS]
    best = min(fits, key=lambda found: found.cost)
    log_parts, exponent = best.x[:2], float(best.x[2])
    residuals = _differences(best.x, sizes, losses)
    jacobian = _slopes(log_parts, exponent, sizes)
    # A small ridge keeps an unknown that the runs say nothing of from making all others infinite.
    inverse = np.linalg.inv(jacobian.T @ jacobian + 1e-9 * np.eye(UNKNOWNS))
    scatter = math.sqrt(float(residuals @ residuals) / (len(runs) - UNKNOWNS))
    irreducible, factor = (float(part) for part in np.exp(log_parts))
    return Law(irreducible, factor, exponent, scatter, len(runs), inverse)


def _fitted(sizes: np.ndarray, losses: np.ndarray, share: float, alpha: float):
    irreducible = share * losses.min()
    factor = float(np.median((losses - irreducible) * sizes**alpha))
    begin = np.array([math.log(irreducible), math.log(factor), alpha])
    bounds = ([-20.0, -20.0, 0.01], [math.log(losses.min()), 40.0, 3.0])
    begin = np.clip(begin, np.array(bounds[0]) + 1e-6, np.array(bounds[1]) - 1e-6)
    return least_squares(_differences, begin, bounds=bounds, loss="huber", f_scale=HUBER, args=(sizes, losses))


def _differences(unknowns: np.ndarray, sizes: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Logarithms of what the law gives over what was measured, f64[runs]."""
    log_irreducible, log_factor, alpha = unknowns
    return np.log(np.exp(log_irreducible) + np.exp(log_factor - alpha * np.log(sizes))) - np.log(losses)


def _slopes(log_parts: np.ndarray, alpha: float, sizes: np.ndarray) -> np.ndarray:
    """Derivatives of the law's logarithm by log E, log A and alpha, f64[sizes, 3]."""
    irreducible = np.full(len(sizes), math.exp(log_parts[0]))
    missed = np.exp(log_parts[1] - alpha * np.log(sizes))
    return np.stack([irreducible, missed, -missed * np.log(sizes)], axis=1) / (irreducible + missed)[:, None]
