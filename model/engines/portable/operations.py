"""Operations of a network that processors compute differently, replaced by ones that all compute alike.

PyTorch's own kernels repeat their bits on one thread and one instruction set, which the trainer's environment fixes.
Others are those of libraries that choose by processor: products (`products.py`), attention, which is made of them, and
MKL's vector functions `exp`, `log`, `tanh`, `erf` and `sqrt`. Networks are as they are: a mode of PyTorch replaces what
they call.

Shapes: B rows, H heads, T queries, K keys, E head size, N predictions, V vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from model.engines.portable.products import Known, Product, multiply
from model.engines.runtime import flush_denormals
from model.nn.init import logarithm
from model.nn.vocab_layers import Vocabulary


class PortableOperations(TorchFunctionMode):
    """Replaces operations while it is `entered`."""

    def __init__(self) -> None:
        super().__init__()
        self._replaced: dict[Callable[..., Any], Callable[..., Tensor]] = {
            F.linear: _linear,
            F.scaled_dot_product_attention: _attention,
            torch.Tensor.matmul: Product.apply,
            torch.addmm: _addmm,
            torch.tanh: _tanh,
            torch.log: _log,
        }

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Compute within the block."""
        with flush_denormals(), _without_onednn(), self:
            yield

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        return self._replaced.get(func, func)(*args, **(kwargs or {}))


def _attention(
    query_BHTE: Tensor,
    key_BHKE: Tensor,
    value_BHKE: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return what `scaled_dot_product_attention` does without dropout, with all scores in memory."""
    assert not dropout_p, "networks drop weights of attention by their own streams"
    if enable_gqa:
        queries_per_key = query_BHTE.shape[1] // key_BHKE.shape[1]
        key_BHKE, value_BHKE = (x.repeat_interleave(queries_per_key, 1) for x in (key_BHKE, value_BHKE))
    scale = 1 / math.sqrt(query_BHTE.shape[3]) if scale is None else scale
    return _Attention.apply(query_BHTE * scale, key_BHKE, value_BHKE, attn_mask, is_causal)


class _Attention(torch.autograd.Function):
    """softmax(Q K^T + mask) V of scaled queries; of causal attention half of the scores are computed."""

    @staticmethod
    def forward(
        ctx: Any, query_BHTE: Tensor, key_BHKE: Tensor, value_BHKE: Tensor, mask: Tensor | None, causal: bool
    ) -> Tensor:
        ctx.known = (Known.UNUSED_AFTER, Known.ZEROS_AFTER, Known.ZEROS_BEFORE) if causal else (Known.NOTHING,) * 3
        scores_BHTK = multiply(query_BHTE, key_BHKE.mT, ctx.known[0], -math.inf)
        if mask is not None:
            # Adding is three times as fast as filling.
            scores_BHTK += mask if mask.dtype != torch.bool else torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)
            ctx.mask_shape = mask.shape
        weights_BHTK = scores_BHTK.softmax(-1)
        ctx.save_for_backward(query_BHTE, key_BHKE, value_BHKE, weights_BHTK)
        return multiply(weights_BHTK, value_BHKE, ctx.known[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query_BHTE, key_BHKE, value_BHKE, weights_BHTK = ctx.saved_tensors
        scores, weights, transposed = ctx.known
        of_weights_BHTK = multiply(gradients[0], value_BHKE.mT, scores)
        of_scores_BHTK = torch.ops.aten._softmax_backward_data(of_weights_BHTK, weights_BHTK, -1, weights_BHTK.dtype)
        return (
            multiply(of_scores_BHTK, key_BHKE, weights),
            multiply(of_scores_BHTK.mT, query_BHTE, transposed),
            multiply(weights_BHTK.mT, gradients[0], transposed),
            of_scores_BHTK.sum_to_size(ctx.mask_shape) if ctx.needs_input_grad[3] else None,
            None,
        )


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Compute GELU by PyTorch's own kernel within the block: oneDNN's differ between AVX2 and AVX-512. What is called
    of oneDNN itself is still computed by it."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out = _Linear.apply(x.flatten(0, -2), weight)
    return (out if bias is None else out + bias).unflatten(0, x.shape[:-1])


class _Linear(torch.autograd.Function):
    """x W^T of f32[M, K] and a weight f32[N, K], whose gradient is contiguous as the weight is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiply(x, weight.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad
        return (
            multiply(gradients[0], weight) if of_x else None,
            multiply(gradients[0].t(), x) if of_weight else None,
        )


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return (multiply(a, b) * alpha).add_(bias, alpha=beta)


def _tanh(x: Tensor) -> Tensor:
    return 2 * torch.sigmoid(2 * x) - 1


def _log(x: Tensor) -> Tensor:
    """Return the logarithms of numbers without a gradient, in float64 and rounded."""
    return torch.from_numpy(logarithm(x.numpy().astype(np.float64))).to(x.dtype)


class PortableVocabulary(Vocabulary):
    """The loss by PyTorch's own kernels alone."""

    def _probabilities(self, log_p_NV: Tensor) -> Tensor:
        """Return the softmax of log probabilities, which are their exponentials but for rounding."""
        return torch.softmax(log_p_NV, -1)

    def log_normaliser(self, logits_NV: Tensor) -> Tensor:
        return logits_NV[:, 0] - torch.log_softmax(logits_NV, -1)[:, 0]
