"""What a loss needs of the logits of many predictions: sums, and the range of the logits.

On a CUDA device with compiled blocks one kernel reads the logits once for all of it, and one writes their gradient.
Kernel by kernel they are converted, read and written ten times, in float32: of a step of GPT-2 small on an H100, 184 ms
long, that took 60 ms.

Shapes: N predictions, V vocabulary.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from model.data.row_format import NO_LOSS
from model.nn.activation_stats import activation_range
from model.nn.vocab_layers import Vocabulary


@dataclass(frozen=True)
class LogitSums:
    """Sums over the predictions that carry loss, and the range of all logits."""

    nats: Tensor
    """f32[], differentiable: -ln p of the targets."""
    squared_normalisers: Tensor
    """f32[], differentiable: squared logarithms of the softmax's denominators; 0 where they were not asked for."""
    correct: Tensor
    """i64[]: targets with the largest logit; 0 where these were not asked for."""
    range: Tensor
    """f32[2]: `activation_range` of the logits of this rank."""


def logit_sums(
    vocabulary: Vocabulary, logits_NV: Tensor, targets_N: Tensor, *, squares: bool = False, correct: bool = False
) -> LogitSums:
    """Return the sums of predictions with these targets, i64[N], some of them NO_LOSS."""
    if vocabulary.fused and logits_NV.is_cuda:
        return LogitSums(*_FusedSums.apply(logits_NV, targets_N, squares, correct))
    nats = vocabulary.nats(logits_NV, targets_N)
    squared = none = nats.new_zeros(())
    if squares:
        # Selecting them would have the host wait for their number.
        squared = vocabulary.log_normaliser(logits_NV).masked_fill(targets_N == NO_LOSS, 0.0).square().sum()
    right = (vocabulary.argmax(logits_NV) == targets_N).sum() if correct else none.long()
    return LogitSums(nats, squared, right, activation_range(vocabulary.own(logits_NV)))


class _FusedSums(torch.autograd.Function):
    """The fields of LogitSums. Kept for the backward pass are the logits, in their type, and a number for each row."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, squares: bool, correct: bool) -> Any:
        *sums, normaliser_N = _compiled(_read)(logits_NV.detach(), targets_N, squares, correct)
        ctx.save_for_backward(logits_NV, targets_N, normaliser_N)
        ctx.squares = squares
        ctx.mark_non_differentiable(*sums[2:])
        return tuple(sums)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _compiled(_gradient)(*ctx.saved_tensors, *gradients[: 1 + ctx.squares]), None, None, None


def _read(logits_NV: Tensor, targets_N: Tensor, squares: bool, correct: bool) -> tuple[Tensor, ...]:
    """Return the fields of LogitSums, and the logarithm of the softmax's denominator of each row, f32[N]."""
    logits_NV = logits_NV.float()
    largest_N1 = logits_NV.amax(-1, keepdim=True)
    # With its dimension kept the compiler finds maximum and sum in one pass.
    normaliser_N = ((logits_NV - largest_N1).exp().sum(-1, keepdim=True).log() + largest_N1)[:, 0]
    counted_N = targets_N != NO_LOSS
    target_N = logits_NV.gather(1, targets_N.clamp(min=0)[:, None])[:, 0]
    nats = torch.where(counted_N, normaliser_N - target_N, 0.0).sum()
    none = torch.zeros_like(nats)
    squared = torch.where(counted_N, normaliser_N.square(), 0.0).sum() if squares else none
    right = (logits_NV.argmax(-1) == targets_N).sum() if correct else none.long()
    # The smallest of each row first, in the pass that finds the largest.
    found_range = torch.stack((-logits_NV.amin(-1).amin(), largest_N1.amax()))
    return nats, squared, right, found_range, normaliser_N


def _gradient(
    logits_NV: Tensor, targets_N: Tensor, normaliser_N: Tensor, of_nats: Tensor, of_squares: Tensor | None = None
) -> Tensor:
    """Return the gradient of the logits, in their type: by that of the nats softmax - 1 at the target, and by that of
    squares twice the normaliser times softmax."""
    weight_N = of_nats if of_squares is None else of_nats + 2.0 * of_squares * normaliser_N
    weight_N = torch.where(targets_N != NO_LOSS, weight_N, 0.0)
    softmax_NV = (logits_NV.float() - normaliser_N[:, None]).exp()
    is_target_NV = torch.arange(logits_NV.shape[1], device=logits_NV.device) == targets_N[:, None]
    gradient_NV = softmax_NV * weight_N[:, None] - torch.where(is_target_NV, of_nats, 0.0)
    return gradient_NV.to(logits_NV.dtype)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False, fullgraph=True)
