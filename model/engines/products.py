"""Products of float32 matrices by oneDNN in place of MKL.

PyTorch multiplies float32 matrices by MKL on x86, which takes 2 to 4 times as long as oneDNN on AMD's processors.
`model/config/machine.py` times both once on a machine, and what it says is part of the identity, since sums are in
another order.

Shapes: M rows, K summed, N columns.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from model.config.machine import products_by_onednn

SMALL = 1 << 21
"""Multiplications below which the way through Python takes longer than it saves."""


def fastest_products() -> AbstractContextManager[None]:
    """Multiply matrices in this process as is fastest on this machine within the block."""
    return onednn_products() if products_by_onednn(os.environ) else nullcontext()


@contextmanager
def onednn_products() -> Iterator[None]:
    """Multiply matrices in this process by oneDNN within the block, in forward and backward passes and optimizers."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
            for name, kernel in (("mm", _mm), ("addmm", _addmm)):
                library.impl(name, kernel, "CPU", allow_override=True)
        yield


def _mm(a_MK: Tensor, b_KN: Tensor) -> Tensor:
    if not _is_large(a_MK, b_KN):
        return torch.ops.aten.mm.out(a_MK, b_KN, out=a_MK.new_empty(a_MK.shape[0], b_KN.shape[1]))
    return _multiply(a_MK, b_KN)


def _addmm(bias: Tensor, a_MK: Tensor, b_KN: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if not _is_large(a_MK, b_KN):
        out_MN = a_MK.new_empty(a_MK.shape[0], b_KN.shape[1])
        return torch.ops.aten.addmm.out(bias, a_MK, b_KN, beta=beta, alpha=alpha, out=out_MN)
    product_MN = _multiply(a_MK, b_KN)
    if alpha != 1:
        product_MN *= alpha
    return product_MN.add_(bias, alpha=beta) if beta else product_MN


def _is_large(a_MK: Tensor, b_KN: Tensor) -> bool:
    return a_MK.dtype == torch.float32 == b_KN.dtype and a_MK.numel() * b_KN.shape[1] >= SMALL


def _multiply(a_MK: Tensor, b_KN: Tensor) -> Tensor:
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
