"""Penalties on the size of weights: terms of the loss, unlike decay, which leaves the gradient alone.

L1 (Tibshirani 1996) pulls each weight to zero by the same force, L2 (Krogh and Hertz 1991) by a force as large as the
weight. Their gradients count in the norm, are clipped, and pass through the optimizer's moments, where Adam divides
large ones back down: what decay apart from the gradient was made to avoid (Loshchilov and Hutter 2019).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from model.config import OptimizerConfig


def penalty(matrices: Sequence[Tensor], config: OptimizerConfig) -> Tensor:
    """l1 sum |w| + l2 / 2 sum w^2, f32[], differentiable; `matrices` not empty."""
    terms = [config.l1 * matrix.abs().sum() + config.l2 / 2 * matrix.square().sum() for matrix in matrices]
    return torch.stack(terms).sum()


@torch.no_grad()
def add_penalty(matrices: Sequence[nn.Parameter], config: OptimizerConfig) -> None:
    """Add the penalty's gradient, l1 sign(w) + l2 w, to the gradients that are there."""
    for matrix in matrices:
        if matrix.grad is not None:
            if config.l2:
                matrix.grad.add_(matrix, alpha=config.l2)
            if config.l1:
                matrix.grad.add_(matrix.sign(), alpha=config.l1)
