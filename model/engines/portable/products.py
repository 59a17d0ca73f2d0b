"""Matrix products that every processor computes alike: the arithmetic is defined, and libraries are admitted by a test.

A product is cut into blocks of 256 along the dimension that is summed. In a block each element is one chain of fused
multiply-adds, in ascending order, from zero; the blocks are added in order. Vector width, the cut of rows and columns
and the vendor then decide nothing. Libraries document no order of sums, so none is trusted: before a shape is computed
for the first time, each is compared with the reference on drawn matrices of that shape, and the first without a
different bit computes it from then on; the reference itself where there is none.

Shapes: M rows, K summed, N columns.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from numba import types
from numba.extending import intrinsic
from torch import Tensor
from torch.autograd.function import once_differentiable

from model.data.rng import fill_from, philox_key

BLOCK = 256
"""oneDNN has one chain up to 512 under AVX-512 and up to 1,024 under AVX2 (3.12)."""

COMPARED = 4096
"""Least number of elements that are compared: of a few, another order of sums may give all alike."""

ALIGNED = 64
"""Bytes of a cache line, at which PyTorch's own memory begins; MKL's order of sums may depend on it."""

Library = Callable[[Tensor, Tensor], Tensor]
"""Returns the product of two matrices, f32[M, K] and f32[K, N] with K up to BLOCK."""


class Product(torch.autograd.Function):
    """f32[..., M, K] times f32[..., K, N], with equal leading dimensions; gradients are products too."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return _multiply_all(a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        a, b = ctx.saved_tensors
        of_a, of_b = ctx.needs_input_grad
        return (
            _multiply_all(gradients[0], b.mT) if of_a else None,
            _multiply_all(a.mT, gradients[0]) if of_b else None,
        )


def _multiply_all(a: Tensor, b: Tensor) -> Tensor:
    if a.dim() == 2:
        return multiply(a, b)
    pairs = zip(a.flatten(0, -3), b.flatten(0, -3), strict=True)
    return torch.stack([multiply(x, y) for x, y in pairs]).unflatten(0, a.shape[:-2])


def multiply(a_MK: Tensor, b_KN: Tensor) -> Tensor:
    """Return the product of two matrices, f32[M, N]."""
    total: Tensor | None = None
    for begin in range(0, a_MK.shape[1], BLOCK):
        a, b = _dense(a_MK[:, begin : begin + BLOCK]), _dense(b_KN[begin : begin + BLOCK])
        block = admitted_library(a.shape, a.stride(), b.shape, b.stride())(a, b)
        total = block if total is None else total.add_(block)
    assert total is not None, "something is summed"
    return total


def _dense(x: Tensor) -> Tensor:
    """Return a matrix that is contiguous, or whose transpose is, and aligned: a copy where it is not.

    oneDNN computes others by a program without vectors, a thousand times slower.
    """
    is_dense = x.is_contiguous() or x.t().is_contiguous()
    return x if is_dense and x.data_ptr() % ALIGNED == 0 else x.clone(memory_format=torch.contiguous_format)


@functools.cache
def admitted_library(
    a_shape: tuple[int, int], a_strides: tuple[int, int], b_shape: tuple[int, int], b_strides: tuple[int, int]
) -> Library:
    """Return the first library without a bit that differs from the reference's, for matrices of this form."""
    elements = a_shape[0] * b_shape[1]
    drawn = [
        (_drawn(a_shape, a_strides, f"a{number}"), _drawn(b_shape, b_strides, f"b{number}"))
        for number in range(math.ceil(COMPARED / elements))
    ]
    expected = [reference(a, b) for a, b in drawn]
    for library in LIBRARIES:
        if all(torch.equal(library(*pair), right) for pair, right in zip(drawn, expected, strict=True)):
            return library
    return reference


def _drawn(shape: tuple[int, int], strides: tuple[int, int], name: str) -> Tensor:
    """Return a matrix of numbers between -1 and 1."""
    numbers = np.empty(math.prod(shape), np.uint64)
    fill_from(numbers, philox_key(0, f"admission\x1f{name}"), 0)
    values = (numbers >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    return torch.empty_strided(shape, strides).copy_(torch.from_numpy(values).view(shape))


def reference(a_MK: Tensor, b_KN: Tensor) -> Tensor:
    """Return the product as it is defined, f32[M, N], for any K; on one core a fifth as fast as a library."""
    out_MN = np.zeros((a_MK.shape[0], b_KN.shape[1]), np.float32)
    _add_blocks(a_MK.detach().contiguous().numpy(), b_KN.detach().contiguous().numpy(), out_MN, BLOCK)
    return torch.from_numpy(out_MN)


def onednn(a_MK: Tensor, b_KN: Tensor) -> Tensor:
    """Return the product by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(a_MK, b_KN.t(), None, "none", [], "")


def _libraries() -> tuple[Library, ...]:
    return (onednn, torch.mm) if torch.backends.mkldnn.is_available() else (torch.mm,)


LIBRARIES = _libraries()
"""Fastest first. PyTorch's own is MKL on x86."""


@intrinsic
def _fused_multiply_add(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
    """Compile to one instruction, which rounds x y + z once."""
    del typing_context, x, y, z

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@numba.njit(nogil=True)
def _add_blocks(a_MK: np.ndarray, b_KN: np.ndarray, out_MN: np.ndarray, size: int) -> None:
    """Add the blocks of a product to zeros f32[M, N]."""
    rows, inner = a_MK.shape
    columns = b_KN.shape[1]
    chain_N = np.empty(columns, np.float32)
    for row in range(rows):
        for begin in range(0, inner, size):
            chain_N[:] = np.float32(0)
            for k in range(begin, min(begin + size, inner)):
                factor = a_MK[row, k]
                for column in range(columns):
                    chain_N[column] = _fused_multiply_add(factor, b_KN[k, column], chain_N[column])
            for column in range(columns):
                out_MN[row, column] += chain_N[column]
