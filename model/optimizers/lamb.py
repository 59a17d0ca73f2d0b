"""LAMB: Adam's step, scaled for each tensor to the length of the tensor.

You et al. 2020, https://arxiv.org/abs/1904.00962, algorithm 2, with the identity as the scaling function. Made for
batches of 32K rows, where one rate does not suit all layers. As in the authors' own BERT, vectors (norms and biases)
take Adam's step as it is.
"""

from typing import Any

import torch
from torch import Tensor


class Lamb(torch.optim.Optimizer):
    """State of a parameter: `step` f32[], `exp_avg` and `exp_avg_sq` of its shape."""

    def __init__(self, groups: list[dict[str, Any]], betas: tuple[float, float], eps: float, lr: float = 0.0) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step; a closure is not provided for."""
        assert closure is None, "gradients are computed before the step"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, group)

    def _step(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        steps = int(state["step"])
        first = state["exp_avg"].lerp_(gradient, 1 - beta1)
        second = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (second / (1 - beta2**steps)).sqrt_().add_(group["eps"])
        update = (first / (1 - beta1**steps)).div_(root).add_(parameter, alpha=group["weight_decay"])
        if parameter.dim() >= 2:
            update.mul_(_trust(parameter.norm(), update.norm()))
        parameter.add_(update, alpha=-group["lr"])


def _trust(length: Tensor, step_length: Tensor) -> Tensor:
    """How much longer or shorter the step becomes: to the length of the tensor, and as it is where either is zero."""
    ratio = length / step_length
    return torch.where((length > 0) & (step_length > 0), ratio, torch.ones_like(ratio))
