"""Dynamic loss scaling: float16 cannot hold small gradients, so the loss is multiplied before the backward pass.

Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740, section 3.2. Scales are powers of two, so that to divide
gradients by them again loses no bit. The lower limit, below which a run is in trouble, is OPT-175B's.
"""

import math

from model.config import LossScaleConfig, TrainConfig
from model.engine import StepResult


class LossScale:
    """Doubled after many steps without overflow, halved by each. 1 for ever in types other than float16."""

    def __init__(self, config: TrainConfig, state: dict[str, float] | None = None) -> None:
        self._config: LossScaleConfig | None = config.loss_scale if config.dtype == "float16" else None
        self.value = self._config.start if self._config else 1.0
        self._clean_steps = 0
        if state:
            self.value, self._clean_steps = state["value"], int(state["clean_steps"])

    @property
    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"value": self.value, "clean_steps": self._clean_steps}

    def adapt(self, done: StepResult) -> bool:
        """Take in what became of a step; whether it was an overflow, which the next, lower scale may not have.

        An infinite gradient is one while the loss is finite and the scale above its floor; all else is for the rule on
        non-finite steps.
        """
        if self._config is None:
            return False
        if done.finite and not done.applied:
            # Left out for its numbers, which were some: the scale has no part in it.
            return False
        if done.applied:
            self._clean_steps += 1
            if self._clean_steps == self._config.growth_steps:
                self.value, self._clean_steps = self.value * 2.0, 0
            return False
        overflow = math.isfinite(done.loss) and self.value > self._config.floor
        self.value, self._clean_steps = max(self.value / 2.0, self._config.floor), 0
        return overflow
