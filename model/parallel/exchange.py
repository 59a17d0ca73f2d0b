"""What ranks that cut the same matrices tell each other within forward and backward passes.

Megatron-LM's two conjugate operators (Shoeybi et al. 2019, section 3): where a product by columns begins, the backward
pass adds up; where a product by rows ends, the forward pass does.
"""

from typing import Any

import torch
from torch import Tensor

from model.ranks import Ranks


class _SumBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # A copy: the same gradient may be on its way to another branch.
        return ctx.ranks.sum_(gradients[0].clone(memory_format=torch.contiguous_format)), None


class _SumForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.mark_dirty(x)
        return ranks.sum_(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def read_by_all(x: Tensor, ranks: Ranks) -> Tensor:
    """`x`, the same on every rank, of which each rank computes something else: its gradients add up over the ranks."""
    return _SumBackward.apply(x, ranks)


def added_up_(x: Tensor, ranks: Ranks) -> Tensor:
    """The sum over the ranks of what each has in `x`, in place; all go on with it and get the same gradient."""
    return _SumForward.apply(x, ranks)
