"""What becomes of logits: how surprising the targets are, on one rank or on several that share the pieces.

Shapes: N predictions, V pieces, of which a rank may have logits of some only.

Tables of which the last rows are a parameter of their own, so that they can learn while the others stay.

A masked gradient would not hold the others, which weight decay moves all the same, and ZeRO-3 cuts a table anywhere.
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.data.row_format import NO_LOSS


class Vocabulary(Protocol):
    """All pieces, wherever their logits are."""

    gradient_at_once: bool
    """Whether the head's gradient may be made while its loss is: not where ranks exchange what the backward pass needs
    (tensor parallelism) or hold weights for a while alone (ZeRO-3)."""

    def read(self, hidden: Tensor) -> Tensor:
        """The stream as the head reads it."""
        ...

    def nats(self, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        """Sum of -ln p over the targets that count, f32[], differentiable."""
        ...

    def log_normaliser(self, logits_NV: Tensor) -> Tensor:
        """Logarithm of the softmax's denominator, f32[N], differentiable."""
        ...

    def argmax(self, logits_NV: Tensor) -> Tensor:
        """The piece with the largest logit, i64[N]; the first of several."""
        ...


class _Nats(torch.autograd.Function):
    """Cross entropy whose gradient is made where the logarithms of the probabilities lie.

    PyTorch's own fills a matrix with zeros for the gradient of the targets and reads it again: a third of the time that
    the loss takes on a processor.
    """

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        log_p_NV = torch.log_softmax(logits_NV, -1, dtype=torch.float32)
        counted_N = targets_N != NO_LOSS
        target_N1 = targets_N.clamp(min=0)[:, None]
        ctx.save_for_backward(log_p_NV, counted_N, target_N1)
        ctx.dtype = logits_NV.dtype
        return -log_p_NV.gather(1, target_N1)[:, 0].masked_fill(~counted_N, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        log_p_NV, counted_N, target_N1 = ctx.saved_tensors
        weight_N1 = torch.where(counted_N, gradients[0], 0.0)[:, None]
        # Within the buffer: nobody reads the logarithms again, since a step goes back once.
        gradient_NV = log_p_NV.exp_().mul_(weight_N1)
        gradient_NV.scatter_add_(1, target_N1, -weight_N1)
        return gradient_NV.to(ctx.dtype), None


class WholeVocabulary:
    """Logits of all pieces in one place."""

    def __init__(self, *, gradient_at_once: bool = True) -> None:
        self.gradient_at_once = gradient_at_once

    def read(self, hidden: Tensor) -> Tensor:
        """As it is."""
        return hidden

    def nats(self, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        """As it is defined, in place of the logits."""
        return _Nats.apply(logits_NV, targets_N)

    def log_normaliser(self, logits_NV: Tensor) -> Tensor:
        """As it is defined."""
        return torch.logsumexp(logits_NV.float(), -1)

    def argmax(self, logits_NV: Tensor) -> Tensor:
        """As it is defined."""
        return logits_NV.argmax(-1)


WHOLE_VOCABULARY = WholeVocabulary()

NEW_ROWS_OF = {"embedding.weight": "new_rows", "head.weight": "new_head_rows"}
"""Tables, and the parameters of their new rows where these learn alone."""


def make_new_rows(rows: int, width: int) -> nn.Parameter | None:
    """A parameter [rows, width], or none for no rows."""
    return nn.Parameter(torch.empty(rows, width)) if rows else None


def look_up_rows(embedding: nn.Module, new_rows: Tensor | None, tokens: Tensor, old_rows: int) -> Tensor:
    """Rows f32[..., D] of tokens [...], the first `old_rows` of which stand in `embedding`."""
    if new_rows is None:
        return embedding(tokens)
    old = embedding(tokens.clamp(max=old_rows - 1))
    new = F.embedding((tokens - old_rows).clamp(min=0), new_rows)
    return torch.where((tokens >= old_rows)[..., None], new, old)


def append_new_logits(logits: Tensor, hidden: Tensor, new_rows: Tensor | None) -> Tensor:
    """Logits [..., V] of all pieces, given those of the old ones and what the head reads, f32[..., D]."""
    return logits if new_rows is None else torch.cat((logits, F.linear(hidden, new_rows)), dim=-1)


def freeze_all_but_new_rows(network: nn.Module) -> None:
    """Let nothing learn but the new rows."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in NEW_ROWS_OF.values())


def merge_new_rows(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights as a network without rows of their own has them: new rows behind the old ones in one table."""
    joined = {name: tensor for name, tensor in weights.items() if name not in NEW_ROWS_OF.values()}
    for name, new_rows in NEW_ROWS_OF.items():
        if new_rows in weights:
            joined[name] = torch.cat((weights[name], weights[new_rows]))
    return joined
