"""What depends on the vocabulary: the loss over logits, and tables whose last rows are a separate parameter.

A `Vocabulary` computes the loss, on one rank or on several that share the tokens. New rows of an extended vocabulary
are a parameter of their own, so that they can be trained while the others stay: masking gradients would not keep the
others, since weight decay changes them all the same, and ZeRO-3 may partition a table at any row.

Shapes: N predictions, V tokens of the vocabulary, of which a rank may have the logits of some only.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.data.row_format import NO_LOSS
from model.nn.init import InitialLaw, fill_elements

NEW_ROWS_OF = {"embedding.weight": "new_rows", "head.weight": "new_head_rows"}
"""Table -> parameter of its new rows, where these are trained alone."""


class Vocabulary:
    """The loss where one rank has the logits of all tokens; subclasses compute it where they are divided, or otherwise.

    `gradient_at_once` says whether the head's gradient may be computed with its loss: not where the backward pass needs
    collectives (tensor parallelism) or weights are only gathered for a while (ZeRO-3). `fused` says whether kernels for
    the loss are compiled on CUDA devices (`model/nn/logit_sums.py`).
    """

    def __init__(self, *, gradient_at_once: bool = True, fused: bool = False) -> None:
        self.gradient_at_once, self.fused = gradient_at_once, fused

    def read(self, hidden: Tensor) -> Tensor:
        """Return the stream as the head reads it."""
        return hidden

    def own(self, logits: Tensor) -> Tensor:
        """Return the logits of this rank's tokens."""
        return logits

    def nats(self, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        """Return the sum of -ln p over the targets that carry loss, f32[], differentiable; its backward pass overwrites
        the log probabilities."""
        return _Nats.apply(logits_NV, targets_N, self._probabilities)

    def _probabilities(self, log_p_NV: Tensor) -> Tensor:
        """Return the exponentials of log probabilities, which may be overwritten."""
        return log_p_NV.exp_()

    def log_normaliser(self, logits_NV: Tensor) -> Tensor:
        """Return the logarithm of the softmax's denominator, f32[N], differentiable."""
        return torch.logsumexp(logits_NV.float(), -1)

    def argmax(self, logits_NV: Tensor) -> Tensor:
        """Return the token with the largest logit, i64[N]; the first of several."""
        return logits_NV.argmax(-1)


WHOLE_VOCABULARY = Vocabulary()


class _Nats(torch.autograd.Function):
    """Cross entropy that computes its gradient in the buffer of the log probabilities.

    PyTorch's own fills a matrix with zeros for the gradient of the targets and reads it again, which takes a third of
    the loss's time on a CPU.
    """

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, probabilities: Callable[[Tensor], Tensor]) -> Tensor:
        log_p_NV = torch.log_softmax(logits_NV, -1, dtype=torch.float32)
        counted_N = targets_N != NO_LOSS
        target_N1 = targets_N.clamp(min=0)[:, None]
        ctx.save_for_backward(log_p_NV, counted_N, target_N1)
        ctx.dtype, ctx.probabilities = logits_NV.dtype, probabilities
        return -log_p_NV.gather(1, target_N1)[:, 0].masked_fill(~counted_N, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        log_p_NV, counted_N, target_N1 = ctx.saved_tensors
        weight_N1 = torch.where(counted_N, gradients[0], 0.0)[:, None]
        # In place: a graph is run backward once, so the log probabilities are not read again.
        gradient_NV = ctx.probabilities(log_p_NV).mul_(weight_N1)
        gradient_NV.scatter_add_(1, target_N1, -weight_N1)
        return gradient_NV.to(ctx.dtype), None, None


def make_new_rows(rows: int, width: int) -> nn.Parameter | None:
    """Return a parameter [rows, width], or None for no rows."""
    return nn.Parameter(torch.empty(rows, width)) if rows else None


class VocabularyNetwork(nn.Module):
    """A network that looks its tokens up; the last `new_rows` of its embedding may be a parameter of their own."""

    config: Any
    streams_B: Tensor | None
    """Streams of the rows that it computes next, i64[B], by which values are dropped; None where PyTorch's generator
    decides."""

    def __init__(self, vocab_size: int, width: int, new_rows: int) -> None:
        super().__init__()
        self.vocabulary: Vocabulary = WHOLE_VOCABULARY
        self.streams_B = None
        self.old_rows = vocab_size - new_rows
        self.embedding = nn.Embedding(self.old_rows, width)
        self.new_rows = make_new_rows(new_rows, width)

    def initialise(self, seed: int) -> Self:
        """Initialise the weights: the same seed gives the same bits on every machine."""
        for name, parameter in self.named_parameters():
            fill_elements(parameter, self.initial_law(name, parameter.shape), seed, name)
        return self

    def initial_law(self, name: str, shape: Sequence[int]) -> InitialLaw:
        """Return the distribution of a weight's first values."""
        raise NotImplementedError

    def look_up(self, tokens: Tensor) -> Tensor:
        """Return the rows f32[..., D] of tokens [...]; ids below `old_rows` are in `embedding`, the others in
        `new_rows`."""
        if self.new_rows is None:
            return self.embedding(tokens)
        old = self.embedding(tokens.clamp(max=self.old_rows - 1))
        new = F.embedding((tokens - self.old_rows).clamp(min=0), self.new_rows)
        return torch.where((tokens >= self.old_rows)[..., None], new, old)


def append_new_logits(logits: Tensor, hidden: Tensor, new_rows: Tensor | None) -> Tensor:
    """Append the logits of new rows to those of the old ones, given what the head reads, f32[..., D]."""
    return logits if new_rows is None else torch.cat((logits, F.linear(hidden, new_rows)), dim=-1)


def freeze_all_but_new_rows(network: nn.Module) -> None:
    """Freeze all parameters except the new rows."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in NEW_ROWS_OF.values())


def merge_new_rows(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights with new rows appended to their tables, as a network without separate rows has them."""
    merged = {name: tensor for name, tensor in weights.items() if name not in NEW_ROWS_OF.values()}
    for name, new_rows in NEW_ROWS_OF.items():
        if new_rows in weights:
            merged[name] = torch.cat((weights[name], weights[new_rows]))
    return merged
