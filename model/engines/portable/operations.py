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
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from model.data.rng import fill, philox_key
from model.data.row_format import NO_LOSS
from model.engines.portable.products import Product
from model.engines.runtime import flush_denormals
from model.nn.init import logarithm
from model.nn.vocab_layers import WholeVocabulary

DRAWS = 1 << 16
"""Equally likely numbers, of which dropout compares one for each value: four are drawn at once."""


class PortableOperations(TorchFunctionMode):
    """Replaces operations while it is entered. Dropout belongs to the rows from `first_row` on."""

    def __init__(self) -> None:
        super().__init__()
        self._key = np.zeros(2, np.uint64)
        self._first_row = 0
        self._dropouts = 0
        self._replaced: dict[Callable[..., Any], Callable[..., Tensor]] = {
            F.linear: _linear,
            F.scaled_dot_product_attention: self._attention,
            F.dropout: self._dropout,
            torch.Tensor.matmul: Product.apply,
            torch.tanh: _tanh,
            torch.log: _log,
        }

    @contextmanager
    def of_rows(self, first_row: int) -> Iterator[None]:
        """Compute rows of a batch within the block, of which the first has this number.

        Dropout draws by the seed that PyTorch's generator got for the step, by row, by place in the row, and by how
        many dropouts of the network came before.
        """
        self._key = philox_key(torch.initial_seed(), "dropout")
        self._first_row, self._dropouts = first_row, 0
        with flush_denormals(), _without_onednn(), self:
            yield

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call what replaces a function of PyTorch, or the function."""
        del types
        return self._replaced.get(func, func)(*args, **(kwargs or {}))

    def _attention(
        self,
        query_BHTE: Tensor,
        key_BHKE: Tensor,
        value_BHKE: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Return what `scaled_dot_product_attention` does, with all scores in memory."""
        if enable_gqa:
            queries_per_key = query_BHTE.shape[1] // key_BHKE.shape[1]
            key_BHKE, value_BHKE = (x.repeat_interleave(queries_per_key, 1) for x in (key_BHKE, value_BHKE))
        scale = 1 / math.sqrt(query_BHTE.shape[3]) if scale is None else scale
        scores_BHTK = multiplied(query_BHTE * scale, key_BHKE.mT)
        if is_causal:
            attn_mask = torch.ones(scores_BHTK.shape[2:], dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores_BHTK = scores_BHTK.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores_BHTK = scores_BHTK + attn_mask
        return multiplied(self._dropout(scores_BHTK.softmax(-1), dropout_p), value_BHKE)

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """Return what `dropout` does; `x` has the rows first."""
        assert not inplace, "networks keep what they drop from"
        if not training or not p:
            return x
        size = x[0].numel()
        kept = np.empty((len(x), size), np.float32)
        numbers = np.empty(-(-size // 4), np.uint64)
        for row, kept_row in enumerate(kept, self._first_row):
            fill(numbers, self._key, row, self._dropouts, 0)
            np.greater_equal(numbers.view(np.uint16)[:size], round(p * DRAWS), out=kept_row)
        self._dropouts += 1
        return x * torch.from_numpy(kept * np.float32(1 / (1 - p))).view_as(x)


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


def multiplied(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of matrices f32[..., M, K] and f32[..., K, N]."""
    return Product.apply(a, b)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out = multiplied(x.flatten(0, -2), weight.t())
    return (out if bias is None else out + bias).unflatten(0, x.shape[:-1])


def _tanh(x: Tensor) -> Tensor:
    return 2 * torch.sigmoid(2 * x) - 1


def _log(x: Tensor) -> Tensor:
    """Return the logarithms of numbers without a gradient, in float64 and rounded."""
    return torch.from_numpy(logarithm(x.numpy().astype(np.float64))).to(x.dtype)


class PortableVocabulary(WholeVocabulary):
    """The loss by PyTorch's own kernels alone."""

    def nats(self, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        """Return the sum of -ln p over the targets that carry loss, f32[], differentiable."""
        return F.cross_entropy(logits_NV, targets_N, ignore_index=NO_LOSS, reduction="sum")

    def log_normaliser(self, logits_NV: Tensor) -> Tensor:
        """Return the logarithm of the softmax's denominator, f32[N], differentiable."""
        return logits_NV[:, 0] - torch.log_softmax(logits_NV, -1)[:, 0]
