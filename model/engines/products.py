"""Products of matrices by what is fastest on this processor, where that is not PyTorch's choice.

PyTorch multiplies float32 matrices by MKL on x86, which takes 2 to 4 times as long as oneDNN on AMD's processors.
`model/config/machine.py` times both once on a machine, and what it says is part of the identity, since sums are in
another order. Matrices of 16-bit numbers it multiplies, where the processor has no instructions for them, 6 to 25 times
slower than the same matrices in float32 (AVX2): they are widened, multiplied, and rounded once.

Shapes: M rows, K summed, N columns.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from model.config.fields import Dtype
from model.config.machine import narrow_products, products_by_onednn
from model.engines.runtime import AUTOCAST_TYPES

SMALL = 1 << 21
"""Multiplications below which the way through Python takes longer than it saves."""

INSTRUCTIONS: dict[Dtype, tuple[str, ...]] = {"bfloat16": ("bf16",), "float16": ("fp16", "asimdhp")}
"""Ends of the names of instructions that multiply numbers of 16 bits."""

Product = Callable[[Tensor, Tensor], Tensor]


def fastest_products(*dtypes: Dtype) -> AbstractContextManager[None]:
    """Multiply matrices of float32 and of these types on the processor as is fastest on this machine within the
    block."""
    kinds: dict[torch.dtype, Product] = {torch.float32: by_onednn} if products_by_onednn(os.environ) else {}
    for dtype in INSTRUCTIONS.keys() & dtypes:
        if not any(name.endswith(INSTRUCTIONS[dtype]) for name in narrow_products(os.environ).split("+")):
            kinds[AUTOCAST_TYPES[dtype]] = widened
    return products(kinds) if kinds else nullcontext()


@contextmanager
def products(kinds: Mapping[torch.dtype, Product]) -> Iterator[None]:
    """Multiply large matrices of these types in this process by these functions within the block, in forward and
    backward passes and optimizers."""

    def chosen(a_MK: Tensor, b_KN: Tensor) -> Product | None:
        large = a_MK.dtype == b_KN.dtype and a_MK.numel() * b_KN.shape[1] >= SMALL
        return kinds.get(a_MK.dtype) if large else None

    def mm(a_MK: Tensor, b_KN: Tensor) -> Tensor:
        if multiply := chosen(a_MK, b_KN):
            return multiply(a_MK, b_KN)
        return torch.ops.aten.mm.out(a_MK, b_KN, out=a_MK.new_empty(a_MK.shape[0], b_KN.shape[1]))

    def addmm(bias: Tensor, a_MK: Tensor, b_KN: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        if multiply := chosen(a_MK, b_KN):
            product_MN = multiply(a_MK, b_KN)
            if alpha != 1:
                product_MN *= alpha
            return product_MN.add_(bias, alpha=beta) if beta else product_MN
        out_MN = a_MK.new_empty(a_MK.shape[0], b_KN.shape[1])
        return torch.ops.aten.addmm.out(bias, a_MK, b_KN, beta=beta, alpha=alpha, out=out_MN)

    with torch.library._scoped_library("aten", "IMPL") as library:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
            for name, kernel in (("mm", mm), ("addmm", addmm)):
                library.impl(name, kernel, "CPU", allow_override=True)
        yield


def widened(a_MK: Tensor, b_KN: Tensor) -> Tensor:
    """Return the product of matrices of 16-bit numbers, summed in float32 and rounded to their type."""
    return (a_MK.float() @ b_KN.float()).to(a_MK.dtype)


def by_onednn(a_MK: Tensor, b_KN: Tensor) -> Tensor:
    """Return the product of float32 matrices, by oneDNN."""
    # Gradients of weights: with the transpose on the other side oneDNN is 3 times as fast.
    if not a_MK.is_contiguous() and a_MK.t().is_contiguous():
        return _product(b_KN.t(), a_MK.t()).t()
    return _product(a_MK, b_KN)


def _product(a_MK: Tensor, b_KN: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(_dense(a_MK), _dense(b_KN.t()), None, "none", [], "")


def _dense(x: Tensor) -> Tensor:
    """Return a matrix that is contiguous, or whose transpose is: oneDNN computes others by a program without vectors, a
    thousand times slower than a copy."""
    return x if x.t().is_contiguous() else x.contiguous()
