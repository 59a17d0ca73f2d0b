"""Judge single steps, and detect that a run diverges.

Loss and gradient norm are compared with the median and the median absolute deviation of the last accepted steps: unlike
mean and variance these do not move when one value is far off, and rejected steps never enter them. Gradients react
first: in BLOOM's spike the norm rose from .24 to 960 over five steps before the loss did. `change_points.py` detects
what rises slowly, or stays high while the loss recovers, and dates the onset of a divergence.
"""

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from model.checkpoint.state import DetectorState
from model.config.options import GuardConfig
from model.engines.base import NO_LIMITS, Limits
from model.guard.change_points import NORMAL_DEVIATION, RISEN, ChangePoints, logarithm

Level = Literal["clean", "spike", "nonfinite"]
MOST_NONFINITE = 3
"""Consecutive steps with a non-finite loss or gradient that count as divergence."""
SPIKE_DEVIATIONS = 6.0
"""A step is a spike if its loss, or the logarithm of its gradient norm, is more than so many deviations (1.4826 times
the median absolute deviation) above the window's median."""
LEAST_NORM_DEVIATION = 0.4
"""Smallest deviation of the logarithm of the gradient norm: six of them are eleven times the norm. Healthy runs with
small batches reach six times the norm, and steady ones have deviations of 0.06."""
MOST_HALVINGS, HALVINGS_WITHIN = 4, 50
"""So many halvings of the loss scale of `float16` within so many steps count as divergence."""


@dataclass(frozen=True)
class Divergence:
    """A divergence from which a run does not recover by itself."""

    onset: int
    """The step at which it began."""
    step: int
    """The step at which it was detected."""
    cause: str
    """Why, for people to read."""


class Detector:
    """Judges steps one after the other, as a function of earlier steps alone: a resumed run judges as one that was not
    interrupted."""

    def __init__(
        self,
        config: GuardConfig,
        state: DetectorState | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self._config = config
        self._losses: deque[float] = deque(maxlen=config.window)
        self._norms: deque[float] = deque(maxlen=config.window)
        """Logarithms of gradient norms."""
        self._changes = ChangePoints(config.window, config.least_steps, names, state["changes"] if state else None)
        self._unclean: list[int] = []
        """Rejected steps of the last `unclean_window`, and earlier ones that form a chain with them."""
        self._nonfinite = 0
        """Non-finite steps in a row."""
        self._halved: list[int] = []
        if state is not None:
            self._losses.extend(state["losses"])
            self._norms.extend(state["norms"])
            self._unclean, self._nonfinite, self._halved = [*state["unclean"]], state["nonfinite"], [*state["halved"]]

    @property
    def state(self) -> DetectorState:
        return {
            "losses": list(self._losses),
            "norms": list(self._norms),
            "changes": self._changes.state,
            "unclean": [*self._unclean],
            "nonfinite": self._nonfinite,
            "halved": [*self._halved],
        }

    def limits(self) -> Limits:
        """Return the largest loss (nats) and gradient norm of a next step that is no spike."""
        if not (self._judges and self._config.enabled):
            return NO_LIMITS
        loss = _largest_near(self._losses, self._config.least_loss_deviation)
        return Limits(loss, _largest_near(self._norms, LEAST_NORM_DEVIATION, logarithm, _exponential))

    @property
    def suspects(self) -> bool:
        """Whether something may have begun to rise."""
        return bool(self._changes.onsets())

    def update(
        self,
        step: int,
        level: Level,
        loss: float,
        grad_norm: float,
        magnitudes: Sequence[float],
        *,
        halved: bool,
        limit: float = RISEN,
    ) -> Divergence | None:
        """Add the outcome of a step; return the divergence that it completes, if any.

        `magnitudes` are those of the activations, `halved` says whether the loss scale was halved, and `limit` is the
        sum at which a rise is detected. An overflow that halved the loss scale is passed as `clean` with `halved`.
        """
        judged = self._judges and self._config.enabled
        if level != "clean":
            self._unclean.append(step)
        self._forget(step)
        if halved:
            self._halved = [*(at for at in self._halved if at > step - HALVINGS_WITHIN), step]
        self._nonfinite = self._nonfinite + 1 if level == "nonfinite" else 0
        if level == "clean" and not halved:
            self._losses.append(loss)
            self._norms.append(logarithm(grad_norm))
            if self._config.enabled:
                self._changes.update(step, loss, grad_norm, magnitudes)
        found = self._find_nonfinite(step) or (self._find_drift(step, limit) if judged else None)
        if found is None:
            return None
        cause, first = found
        return Divergence(self._onset(first), step, cause)

    @property
    def _judges(self) -> bool:
        return len(self._losses) >= self._config.least_steps

    def _forget(self, step: int) -> None:
        """Keep the rejected steps that still count: those of the window, and those that form a chain with them."""
        horizon = step - self._config.unclean_window
        kept = [at for at in self._unclean if at > horizon]
        chain = [at for at in self._unclean if at <= horizon]
        while kept and chain and kept[0] - chain[-1] <= self._config.margin_steps:
            kept.insert(0, chain.pop())
        self._unclean = kept

    def _find_nonfinite(self, step: int) -> tuple[str, int] | None:
        """Return the cause and its first step where too many steps in a row were non-finite."""
        if self._nonfinite < MOST_NONFINITE:
            return None
        return f"loss or gradient was not finite in {self._nonfinite} steps in a row", step - self._nonfinite + 1

    def _find_drift(self, step: int, limit: float) -> tuple[str, int] | None:
        """Return the cause and its first step where the run's numbers have moved far from those of its window."""
        config = self._config
        recent = [at for at in self._unclean if at > step - config.unclean_window]
        if len(recent) >= config.most_unclean:
            return f"{len(recent)} of the last {config.unclean_window} steps were rejected", step
        rise = self._changes.risen(limit)
        if rise is not None:
            return f"{rise.name} has risen from {rise.before:.3g} to {rise.now:.3g} since step {rise.onset}", rise.onset
        if len(self._halved) >= MOST_HALVINGS and self._halved[-1] == step:
            cause = f"the loss scale was halved {len(self._halved)} times within {HALVINGS_WITHIN} steps"
            return cause, self._halved[0]
        return None

    def _onset(self, first: int) -> int:
        """Return the earliest rejected step or beginning of a rise that forms a chain with step `first`."""
        for sign in sorted((*self._unclean, *self._changes.onsets()), reverse=True):
            if first - sign <= self._config.margin_steps:
                first = min(first, sign)
        return first


def _largest_near(
    window: Sequence[float],
    least: float,
    measured: Callable[[float], float] = float,
    inverse: Callable[[float], float] = float,
) -> float:
    """Return the largest number whose measure is not more than SPIKE_DEVIATIONS above the window's median.

    It is found by bisection, since the rounding of a closed form would call its neighbours otherwise.
    """
    median = statistics.median(window)
    deviation = max(NORMAL_DEVIATION * statistics.median([abs(value - median) for value in window]), least)
    low, high = inverse(median), inverse(median + 2 * SPIKE_DEVIATIONS * deviation)
    while low < (middle := (low + high) / 2) < high:
        is_spike = (measured(middle) - median) / deviation > SPIKE_DEVIATIONS
        low, high = (low, middle) if is_spike else (middle, high)
    return low


def _exponential(value: float) -> float:
    # More overflows; the root of a sum in float64 is below 1e155.
    return math.exp(min(value, 709.0))
