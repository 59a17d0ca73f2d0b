"""A word before ZeRO moves the weights: DeepSpeed knows the gradient's norm only within its own step.

Between the norm and the update it calls `_update_scale`, in all stages, and looks behind it whether the step overflowed
(DeepSpeed 0.19.8, `stage_1_and_2.step`, `stage3._loss_scale_update_and_overflow_cleanup`).
"""

import math
from collections.abc import Callable
from typing import Any

from deepspeed.runtime.utils import combine_grad_norm_groups


class ZeroGate:
    """Asks `admits` with the norm of each finite gradient, and has the step left out where the answer is no."""

    def __init__(self, zero: Any) -> None:
        self.admits: Callable[[float], bool] = lambda grad_norm: True
        self.grad_norm = math.nan
        """Of the last step, before clipping; infinite where any element was not finite."""
        self._zero = zero
        self._scaled_norm: float | None = None
        self._update_scale = zero._update_scale
        zero._update_scale = self._judge
        if hasattr(zero, "scaled_global_norm"):
            self._measure = zero.scaled_global_norm
            zero.scaled_global_norm = self._measured
        else:
            self._groups = zero._get_norm_groups
            zero._get_norm_groups = self._measured_groups

    def _measured(self, *arguments: Any, **named: Any) -> Any:
        norm = self._measure(*arguments, **named)
        self._scaled_norm = float(norm)
        return norm

    def _measured_groups(self) -> Any:
        groups = self._groups()
        self._scaled_norm = float(combine_grad_norm_groups(groups))
        return groups

    def _judge(self, overflow: bool) -> None:
        scaled, self._scaled_norm = self._scaled_norm, None
        self.grad_norm = math.inf if overflow or scaled is None else scaled / self._zero.loss_scale
        self._update_scale(overflow)
        if not overflow and not self.admits(self.grad_norm):
            self._zero.overflow = True
