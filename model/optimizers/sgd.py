"""Stochastic gradient descent with momentum (Polyak 1964), Nesterov's variant, and decay apart from the gradient."""

from typing import Any

import torch


class SGDW(torch.optim.SGD):
    """PyTorch's SGD, whose `weight_decay` would be an L2 penalty, with the decay of AdamW instead.

    Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101, algorithm 1: weights shrink by rate times decay, and
    momentum does not see it. Each element goes its own way, so it also works on ZeRO's flat partitions.
    """

    def __init__(self, groups: list[dict[str, Any]], momentum: float, nesterov: bool, lr: float = 0.0) -> None:
        ours = [{**group, "weight_decay": 0.0, "decay": group["weight_decay"]} for group in groups]
        super().__init__(ours, lr=lr, momentum=momentum, nesterov=nesterov and momentum > 0, foreach=True)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One step; a closure is not provided for."""
        assert closure is None, "gradients are computed before the step"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1.0 - group["lr"] * group["decay"])
        super().step()
