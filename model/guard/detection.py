"""What is wrong with a step, and when a run has left its course.

Loss and gradient norm are held against the median and the median deviation of the last accepted steps: unlike mean and
variance these do not move when one value is far off, and what is left out never enters them. Gradients tell first: in
BLOOM's spike the norm rose from .24 to 960 over five steps before the loss did.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from model.guard.config import GuardConfig

Level = Literal["clean", "spike", "nonfinite"]
NORMAL_DEVIATION = 1.4826
"""Standard deviations of a normal distribution in its median deviation."""
EMA_WEIGHT = 0.2
"""Of the newest loss in a moving mean of nine steps: 2 / (9 + 1)."""
EMA_DEVIATION = math.sqrt(EMA_WEIGHT / (2 - EMA_WEIGHT))
"""Standard deviation of that mean, where losses do not depend on each other and have one of 1: a third."""
HALVINGS_WITHIN = 50
"""Steps over which halvings of the loss scale are counted."""


@dataclass(frozen=True)
class Divergence:
    """A run that will not come back by itself."""

    onset: int
    """The step at which trouble began."""
    step: int
    """The step at which it was told."""
    cause: str


class Detector:
    """Judges steps one after the other. A function of what it was told: a resumed run judges as an undisturbed one."""

    def __init__(
        self,
        config: GuardConfig,
        most_nonfinite: int,
        state: dict[str, Any] | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self._config = config
        self._names = names
        """Of the thermometers."""
        self._most_nonfinite = most_nonfinite
        self._losses: deque[float] = deque(maxlen=config.window)
        self._norms: deque[float] = deque(maxlen=config.window)
        """Logarithms."""
        self._heat: deque[np.ndarray] = deque(maxlen=config.window)
        self._mean: float | None = None
        self._unclean: list[int] = []
        """Steps that were left out, of the last `unclean_window` and, in a chain, before them."""
        self._streaks = {"nonfinite": 0, "loss_rise": 0, "loss_jump": 0}
        self._hot: list[int] = []
        """By thermometer, steps in a row above its limit."""
        self._halved: list[int] = []
        if state is not None:
            self._losses.extend(state["losses"])
            self._norms.extend(state["norms"])
            self._heat.extend(np.array(row) for row in state["heat"])
            self._mean, self._unclean = state["mean"], [*state["unclean"]]
            self._streaks, self._hot, self._halved = {**state["streaks"]}, [*state["hot"]], [*state["halved"]]

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON."""
        return {
            "losses": list(self._losses),
            "norms": list(self._norms),
            "heat": [row.tolist() for row in self._heat],
            "mean": self._mean,
            "unclean": [*self._unclean],
            "streaks": {**self._streaks},
            "hot": [*self._hot],
            "halved": [*self._halved],
        }

    def level(self, loss: float, grad_norm: float) -> Level:
        """What a step is by its loss (nats) and gradient norm, before the weights move."""
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            return "nonfinite"
        if not (self._judges and self._config.enabled):
            return "clean"
        far = _deviations(loss, self._losses, self._config.least_loss_deviation)
        far_norm = _deviations(_log(grad_norm), self._norms, self._config.least_norm_deviation)
        return "spike" if max(far, far_norm) > self._config.spike_deviations else "clean"

    def take(
        self, step: int, level: Level, loss: float, grad_norm: float, heat: Sequence[float], *, halved: bool
    ) -> Divergence | None:
        """Take in what became of a step; the divergence that it completes, if any.

        `heat` are the magnitudes of the thermometers, `halved` whether the loss scale was halved. An overflow that the
        loss scale answers is no trouble of its own, and is told as `clean` with `halved`.
        """
        judged = self._judges
        if level != "clean":
            self._unclean.append(step)
        self._forget(step)
        if halved:
            self._halved = [*(at for at in self._halved if at > step - HALVINGS_WITHIN), step]
        self._count("nonfinite", level == "nonfinite")
        accepted = level == "clean" and not halved
        if accepted:
            self._mean = loss if self._mean is None else self._mean + EMA_WEIGHT * (loss - self._mean)
        found = self._lost() or (self._drifted(step, heat) if judged and self._config.enabled else None)
        if accepted:
            self._losses.append(loss)
            self._norms.append(_log(grad_norm))
            self._heat.append(np.array(heat, dtype=np.float64))
        if found is None:
            return None
        cause, streak = found
        return Divergence(self._onset(step, streak), step, cause)

    @property
    def _judges(self) -> bool:
        return len(self._losses) >= self._config.least_steps

    def _forget(self, step: int) -> None:
        """Keep the unclean steps that still count: the last ones, and those that hang together with them."""
        horizon = step - self._config.unclean_window
        kept = [at for at in self._unclean if at > horizon]
        chain = [at for at in self._unclean if at <= horizon]
        while kept and chain and kept[0] - chain[-1] <= self._config.margin_steps:
            kept.insert(0, chain.pop())
        self._unclean = kept

    def _lost(self) -> tuple[str, int] | None:
        """Words and the steps of it, where numbers are none too often."""
        streak = self._streaks["nonfinite"]
        if streak < self._most_nonfinite:
            return None
        return f"loss or gradient was not finite in {streak} steps in a row", streak

    def _drifted(self, step: int, heat: Sequence[float]) -> tuple[str, int] | None:
        """Words and the steps of it, for a run whose numbers are far from those of its window."""
        config, median = self._config, _median(self._losses)
        mean = median if self._mean is None else self._mean
        chance = config.mean_deviations * EMA_DEVIATION * _deviation(self._losses, median)
        self._count("loss_rise", mean > median + max(config.loss_rise * median, chance))
        self._count("loss_jump", mean > median + max(config.loss_jump, chance))
        self._hot = self._hotter(heat)
        recent = [at for at in self._unclean if at > step - config.unclean_window]
        if len(recent) >= config.most_unclean:
            return f"{len(recent)} of the last {config.unclean_window} steps had to be left out", 1
        for name, limit in (("loss_jump", config.loss_jump_steps), ("loss_rise", config.loss_rise_steps)):
            if self._streaks[name] >= limit:
                told = f"the loss has been about {mean:.3f} for {limit} steps, far above its median of {median:.3f}"
                return told, limit
        if max(self._hot, default=0) >= config.heat_steps:
            hottest = self._hot.index(max(self._hot))
            name = self._names[hottest] if self._names else f"thermometer {hottest}"
            told = f"the magnitude of {name} has been over {config.heat_factor:g} times its median"
            return f"{told} for {config.heat_steps} steps", config.heat_steps
        if len(self._halved) >= config.most_halvings and self._halved[-1] == step:
            told = f"the loss scale was halved {len(self._halved)} times within {HALVINGS_WITHIN} steps"
            return told, step - self._halved[0] + 1
        return None

    def _count(self, name: str, holds: bool) -> None:
        self._streaks[name] = self._streaks[name] + 1 if holds else 0

    def _hotter(self, heat: Sequence[float]) -> list[int]:
        medians = np.median(np.stack(self._heat), axis=0)
        # An infinite reading is the highest there is.
        limits = np.maximum(self._config.heat_factor * medians, self._config.least_heat)
        above = np.nan_to_num(np.array(heat), nan=np.inf) > limits
        before = self._hot or [0] * len(heat)
        return [count + 1 if hot else 0 for count, hot in zip(before, above.tolist(), strict=True)]

    def _onset(self, step: int, streak: int) -> int:
        """The first sign: where a streak began, or the first of the steps left out that hang together with it."""
        first = step - streak + 1
        for unclean in reversed(self._unclean):
            if first - unclean <= self._config.margin_steps:
                first = min(first, unclean)
        return first


def _deviations(value: float, window: Sequence[float], least: float) -> float:
    median = _median(window)
    return (value - median) / max(_deviation(window, median), least)


def _deviation(window: Sequence[float], median: float) -> float:
    return NORMAL_DEVIATION * _median([abs(other - median) for other in window])


def _median(values: Sequence[float]) -> float:
    """As numpy's, in a third of its time for a window of 128."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _log(grad_norm: float) -> float:
    """A norm of zero is far below every other, and no error."""
    return math.log(grad_norm) if grad_norm > 0 else -745.0
