"""The loss of many predictions, piece by piece, so that the logits of all never exist at once.

The gradient of a piece is made right behind its loss, and of its logits nothing is kept for the backward pass, as in
Liger Kernel (Hsu et al. 2024, https://arxiv.org/abs/2410.10989) and cut cross entropy (Wijmans et al. 2024,
https://arxiv.org/abs/2411.09009). What is kept is a gradient as large as the stream, and one of the head.

Shapes: N predictions, D width, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from model.data.row_format import NO_LOSS
from model.nn.activation_stats import activation_range, empty_range
from model.nn.gpt import GPT
from model.nn.t5 import T5

LOGIT_ROWS = 512
"""Predictions whose logits are computed at once. With 4096 pieces that is 8 MiB, which stays in the cache of a core: a
tenth of the step faster than all logits at once."""


def chunked_nats(network: GPT | T5, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of -ln p over the targets that count, f32[], and the extremes of all logits, f32[2].

    A z-loss is in the gradient alone.
    """
    weights = network.head_weights()
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (hidden_ND, *weights))
    if learns and network.vocabulary.gradient_at_once and len(targets_N) > LOGIT_ROWS:
        return _NatsInPieces.apply(network, targets_N, hidden_ND, *weights)
    nats = hidden_ND.new_zeros(())
    drift = hidden_ND.new_zeros(())
    ranges = empty_range(hidden_ND)
    for hidden, targets in zip(hidden_ND.split(LOGIT_ROWS), targets_N.split(LOGIT_ROWS), strict=True):
        found = _of_piece(network, hidden, targets)
        nats, drift, ranges = nats + found[0], drift + found[1], torch.maximum(ranges, found[2])
    if network.config.z_loss:
        nats = nats + network.config.z_loss * (drift - drift.detach())
    return nats, ranges


def _of_piece(network: GPT | T5, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Nats, squared logarithms of the denominators where they count, each f32[], and extremes."""
    logits = network.logits(hidden)
    ranges = activation_range(logits)
    nats = network.vocabulary.nats(logits, targets)
    if not network.config.z_loss:
        return nats, nats.new_zeros(()), ranges
    return nats, network.vocabulary.log_normaliser(logits[targets != NO_LOSS]).square().sum(), ranges


class _NatsInPieces(torch.autograd.Function):
    """Pieces whose gradients are added up in the forward pass."""

    @staticmethod
    def forward(ctx: Any, network: GPT | T5, targets_N: Tensor, hidden_ND: Tensor, *weights: Tensor) -> Any:
        nats = hidden_ND.new_zeros((), dtype=torch.float32)
        ranges = empty_range(nats)
        of_hidden = torch.empty_like(hidden_ND)
        learnt = [weight for weight in weights if weight.requires_grad]
        of_learnt: Sequence[Tensor] = []
        pieces = (tensor.split(LOGIT_ROWS) for tensor in (hidden_ND, of_hidden, targets_N))
        for hidden, of_piece, targets in zip(*pieces, strict=True):
            with torch.enable_grad():
                leaf = hidden.detach().requires_grad_()
                found, drift, highest = _of_piece(network, leaf, targets)
                minimised = found + network.config.z_loss * drift
            first, *rest = torch.autograd.grad(minimised, [leaf, *learnt])
            of_piece.copy_(first)
            of_learnt = [sum_.add_(more) for sum_, more in zip(of_learnt, rest, strict=True)] if of_learnt else rest
            nats += found.detach()
            ranges = torch.maximum(ranges, highest)
        ctx.learnt = [weight.requires_grad for weight in weights]
        ctx.save_for_backward(of_hidden, *of_learnt)
        ctx.mark_non_differentiable(ranges)
        return nats, ranges

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # Within the buffers: nobody reads them again, since a step goes back once.
        of_hidden, *of_learnt = (tensor.mul_(gradients[0]) for tensor in ctx.saved_tensors)
        left = iter(of_learnt)
        return None, None, of_hidden, *(next(left) if learns else None for learns in ctx.learnt)
