"""Cross entropy in chunks of predictions, so that the logits of all never exist at once.

The gradient of a chunk is computed right after its loss, and nothing of its logits is kept for the backward pass, as in
Liger Kernel (Hsu et al. 2024, https://arxiv.org/abs/2410.10989) and Cut Cross-Entropy (Wijmans et al. 2024,
https://arxiv.org/abs/2411.09009). Kept are a gradient of the size of the stream, and one of the head.

Shapes: N predictions, D width, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from model.nn.activation_stats import empty_range
from model.nn.factory import Network
from model.nn.gpt import GPT
from model.nn.logit_sums import LogitSums, logit_sums
from model.nn.t5 import T5
from model.objectives.base import Sums

LOGIT_ROWS = 512
"""Predictions in a chunk on a processor. With a vocabulary of 4096 its logits take 8 MiB, which fits the cache of a
core; a step is 10% faster than with all logits at once."""
LOGIT_BYTES = 2**30
"""Of float32 logits of a chunk on other devices, where each chunk adds a gradient of the size of the head."""
SHARE_OF_DEVICE = 16
"""With compiled kernels, which keep no copy of logits, those of a chunk would in float32 take at most one in so many
bytes of the device, rounded down to a power of two."""


def logit_rows(network: Network, device: torch.device, rows: int) -> int:
    """Return the predictions in a chunk, where there are so many rows."""
    if device.type == "cpu":
        return LOGIT_ROWS
    limit = LOGIT_BYTES
    if network.vocabulary.fused and device.type == "cuda":
        limit = torch.cuda.get_device_properties(device).total_memory // SHARE_OF_DEVICE
    return equal_chunks(limit, network.config.vocab_size, rows)


def equal_chunks(limit: int, vocab_size: int, rows: int) -> int:
    """Return the rows in each of the fewest equal chunks of so many bytes of float32 logits. Equal, since kernels are
    compiled for each size."""
    # A power of two, so that devices whose memory differs by a little compute the same sums.
    most = max(LOGIT_ROWS, (1 << limit.bit_length() - 1) // (4 * vocab_size))
    chunks = max(1, -(-rows // most))
    return max(1, -(-rows // chunks))


def chunked_nats(network: GPT | T5, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of -ln p over the targets, f32[], and the range of all logits, f32[2].

    A z-loss is in the gradient alone.
    """
    weights = network.head_weights()
    rows = logit_rows(network, hidden_ND.device, len(targets_N))
    trains = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (hidden_ND, *weights))
    if trains and network.vocabulary.gradient_at_once and len(targets_N) > rows:
        return _ChunkedNats.apply(network, targets_N, hidden_ND, *weights)
    nats = hidden_ND.new_zeros(())
    drift = hidden_ND.new_zeros(())
    ranges = empty_range(hidden_ND)
    for hidden, targets in zip(hidden_ND.split(rows), targets_N.split(rows), strict=True):
        found = _chunk_sums(network, hidden, targets)
        nats, drift = nats + found.nats, drift + found.squared_normalisers
        ranges = torch.maximum(ranges, found.range)
    if network.config.z_loss:
        nats = nats + network.config.z_loss * (drift - drift.detach())
    return nats, ranges


def row_sums(network: GPT | T5, hidden_BTD: Tensor, ranges: Sequence[Tensor], targets_BT: Tensor) -> Sums:
    """Return the sums of the targets of rows, given what the head reads and the activation ranges before it."""
    nats, logit_range = chunked_nats(network, hidden_BTD.flatten(0, 1), targets_BT.flatten())
    return Sums((nats,), (), torch.stack([*ranges, logit_range]))


def _chunk_sums(network: GPT | T5, hidden: Tensor, targets: Tensor) -> LogitSums:
    return logit_sums(network.vocabulary, network.logits(hidden), targets, squares=bool(network.config.z_loss))


class _ChunkedNats(torch.autograd.Function):
    """Chunks whose gradients are accumulated in the forward pass."""

    @staticmethod
    def forward(ctx: Any, network: GPT | T5, targets_N: Tensor, hidden_ND: Tensor, *weights: Tensor) -> Any:
        nats = hidden_ND.new_zeros((), dtype=torch.float32)
        ranges = empty_range(nats)
        hidden_gradient = torch.empty_like(hidden_ND)
        trained = [weight for weight in weights if weight.requires_grad]
        weight_gradients: Sequence[Tensor] = []
        rows = logit_rows(network, hidden_ND.device, len(targets_N))
        chunks = (tensor.split(rows) for tensor in (hidden_ND, hidden_gradient, targets_N))
        for hidden, chunk_gradient, targets in zip(*chunks, strict=True):
            with torch.enable_grad():
                leaf = hidden.detach().requires_grad_()
                found = _chunk_sums(network, leaf, targets)
                loss = found.nats + network.config.z_loss * found.squared_normalisers
            first, *rest = torch.autograd.grad(loss, [leaf, *trained])
            chunk_gradient.copy_(first)
            pairs = zip(weight_gradients, rest, strict=True)
            weight_gradients = [total.add_(more) for total, more in pairs] if weight_gradients else rest
            nats += found.nats.detach()
            ranges = torch.maximum(ranges, found.range)
        ctx.trains = [weight.requires_grad for weight in weights]
        ctx.save_for_backward(hidden_gradient, *weight_gradients)
        ctx.mark_non_differentiable(ranges)
        return nats, ranges

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # In place: a graph is run backward once, so the buffers are not read again.
        hidden_gradient, *weight_gradients = (tensor.mul_(gradients[0]) for tensor in ctx.saved_tensors)
        left = iter(weight_gradients)
        return None, None, hidden_gradient, *(next(left) if trains else None for trains in ctx.trains)
