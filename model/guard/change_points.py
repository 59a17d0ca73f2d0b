"""Detect lasting rises of the loss, the gradient norm and activation magnitudes, and the step at which each began.

One-sided cumulative sums (Page 1954, https://doi.org/10.1093/biomet/41.1-2.100) of logarithms, each compared with a
baseline of its own. A sum grows while its signal is more than one deviation above the baseline, and falls otherwise;
the step after its last zero is the most likely one at which the mean rose. The baseline is frozen while the sum is
above zero, so that a rise does not become its own baseline before it is detected.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.checkpoint.state import ChangePointsState

NORMAL_DEVIATION = 1.4826
"""Ratio of a normal distribution's standard deviation to its median absolute deviation."""
LEAST_DEVIATIONS = (0.05, 0.6, 0.8)
"""Lower bounds of the deviations of the logarithms of loss, norm and magnitudes. Sums grow above 5% of the loss, 1.8
times the norm and 2.2 times a magnitude; docs/guard.md has what clean trainings reach."""
LEAST_MAGNITUDE, LEAST_SCORE = 8.0, 50.0
"""Lower bounds of magnitudes, the second for attention scores. In clean trainings scores grow from .02 to 30, threefold
within 30 steps, and other values below 8 may double as fast; softmax and bfloat16 tolerate both up to these bounds."""
LARGEST = float(np.finfo(np.float32).max)
"""Infinite magnitudes count as this."""
MOST = 4.0
"""Largest number of deviations that one step adds to a sum: no single step is a lasting rise."""
RISEN = 12.0
"""Sum at which a rise is detected: four steps far above the baseline, or twelve that are two deviations above it."""
CREDIBLE = RISEN / 4
"""Sum at which a rise may have begun: at least two steps, unless the sum was above zero before."""


@dataclass(frozen=True)
class Rise:
    """A lasting rise of one signal."""

    onset: int
    """The step at which it began."""
    name: str
    before: float
    """The baseline."""
    now: float
    """The value at the step at which the rise was detected."""


class ChangePoints:
    """Cumulative sums of the loss, the gradient norm and activation magnitudes, over a window of steps."""

    def __init__(
        self, window: int, least_steps: int, names: Sequence[str], state: ChangePointsState | None = None
    ) -> None:
        self._least_steps, self._names = least_steps, names
        self._rows: deque[np.ndarray] = deque(maxlen=window)
        """For each step, the logarithms of loss, norm and each magnitude."""
        self._sums = self._levels = self._slopes = self._deviations = np.zeros(0)
        self._onsets = np.zeros(0, dtype=np.int64)
        self._last = np.zeros(0)
        if state is not None:
            self._rows.extend(np.array(row) for row in state["rows"])
            self._sums, self._levels, self._slopes, self._deviations, self._last = (
                np.array(state[name], dtype=np.float64) for name in ("sums", "levels", "slopes", "deviations", "last")
            )
            self._onsets = np.array(state["onsets"], dtype=np.int64)

    @property
    def state(self) -> ChangePointsState:
        return {
            "rows": [row.tolist() for row in self._rows],
            "sums": self._sums.tolist(),
            "levels": self._levels.tolist(),
            "slopes": self._slopes.tolist(),
            "deviations": self._deviations.tolist(),
            "onsets": self._onsets.tolist(),
            "last": self._last.tolist(),
        }

    def update(self, step: int, loss: float, grad_norm: float, magnitudes: Sequence[float]) -> None:
        """Add a step's finite loss (nats), gradient norm and activation magnitudes."""
        self._last = row = self._logarithms(loss, grad_norm, magnitudes)
        if len(self._rows) >= self._least_steps:
            if not len(self._sums):
                self._sums = self._levels = self._slopes = self._deviations = np.zeros(len(row))
                self._onsets = np.zeros(len(row), dtype=np.int64)
            levels, slopes, deviations = self._baseline()
            begins = self._sums == 0
            self._levels = np.where(begins, levels, self._levels + self._slopes)
            self._slopes = np.where(begins, slopes, self._slopes)
            self._deviations = np.where(begins, deviations, self._deviations)
            self._onsets = np.where(begins, step, self._onsets)
            far = np.clip((row - self._levels) / self._deviations, -MOST, MOST)
            self._sums = np.maximum(0.0, self._sums + far - 1.0)
        self._rows.append(row)

    def risen(self, limit: float = RISEN) -> Rise | None:
        """Return the largest rise, if any sum reaches the limit."""
        if not len(self._sums) or self._sums.max() < limit:
            return None
        most = int(self._sums.argmax())
        before, now = math.exp(self._levels[most]), math.exp(self._last[most])
        return Rise(int(self._onsets[most]), self._name(most), before, now)

    def onsets(self) -> list[int]:
        """Return the first step of each rise that has been detected or may have begun."""
        return self._onsets[self._sums >= CREDIBLE].tolist()

    def _baseline(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return levels, their growth per step, and deviations.

        Levels are medians of the newer half of the window, which lag less behind a falling loss than those of the
        whole. Magnitudes that grew since the older half may go on growing as fast. Deviations are median absolute
        deviations of both halves from their own medians, so that a trend does not widen them.
        """
        rows = np.stack(self._rows)
        half = len(rows) // 2
        older, newer = np.median(rows[:half], axis=0), np.median(rows[half:], axis=0)
        slopes = np.maximum(0.0, newer - older) / half
        slopes[:2] = 0.0
        rows[:half] -= older
        rows[half:] -= newer
        deviations = NORMAL_DEVIATION * np.median(np.abs(rows), axis=0)
        loss, norm, activation = LEAST_DEVIATIONS
        least = [loss, norm, *[activation] * (len(newer) - 2)]
        return newer + slopes * half / 2, slopes, np.maximum(deviations, least)

    def _logarithms(self, loss: float, grad_norm: float, magnitudes: Sequence[float]) -> np.ndarray:
        finite = np.nan_to_num(np.array(magnitudes, dtype=np.float64), nan=LARGEST, posinf=LARGEST)
        least = [LEAST_SCORE if name.endswith("attention logits") else LEAST_MAGNITUDE for name in self._names]
        finite = np.maximum(finite, least or LEAST_MAGNITUDE)
        return np.array([logarithm(loss), logarithm(grad_norm), *map(math.log, finite.tolist())])

    def _name(self, signal: int) -> str:
        if signal < 2:
            return ("the loss", "the gradient norm")[signal]
        named = self._names[signal - 2] if self._names else f"activation range {signal - 2}"
        return f"the largest value of {named}"


def logarithm(value: float) -> float:
    """Return the logarithm of a value, and -745, below that of all positive floats, for zero and below."""
    return math.log(value) if value > 0 else -745.0
