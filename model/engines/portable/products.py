"""Matrix products that every processor computes alike: the arithmetic is defined, and libraries are admitted by a test.

A product is cut into blocks of 256 along the dimension that is summed. In a block each element is one chain of fused
multiply-adds, in ascending order, from zero; the blocks are added in order. Vector width, the cut of rows and columns
and the vendor then decide nothing. Libraries document no order of sums, so none is trusted: before a shape is computed
for the first time, each is compared with the reference on drawn matrices of that shape. The fastest without a different
bit computes it from then on; the reference itself where there is none.

Shapes: M rows, K summed, N columns.
"""

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import intrinsic
from torch import Tensor
from torch.autograd.function import once_differentiable

from model.data.philox import numbers_from, philox_key
from model.engines.products import onednn_product
from model.kernels import kernel

BLOCK = 256
"""oneDNN has one chain up to 512 under AVX-512 and up to 1,024 under AVX2 (3.12)."""

COMPARED = 4096
"""Least number of elements that are compared: of a few, another order of sums may give all alike."""

TIMED = 3
"""Products of which the fastest counts as a library's time."""

ALIGNED = 64
"""Bytes of a cache line, at which PyTorch's own memory begins; MKL's order of sums may depend on it."""

Library = Callable[[Tensor, Tensor], Tensor]
"""Returns the product of f32[M, K] and f32[K, N] with K up to BLOCK, or of as many of each, f32[P, M, K]."""


class Product(torch.autograd.Function):
    """f32[..., M, K] times f32[..., K, N], with equal leading dimensions; gradients are products too."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return multiply_all(a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        a, b = ctx.saved_tensors
        of_a, of_b = ctx.needs_input_grad
        return (
            multiply_all(gradients[0], b.mT) if of_a else None,
            multiply_all(a.mT, gradients[0]) if of_b else None,
        )


def multiply_all(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of f32[..., M, K] and f32[..., K, N], with equal leading dimensions."""
    if a.dim() == 2:
        return multiply(a, b)
    return multiply(a.flatten(0, -3), b.flatten(0, -3)).unflatten(0, a.shape[:-2])


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of f32[M, K] and f32[K, N], or of as many of each, f32[P, M, K]."""
    inner = a.shape[-1]
    if inner <= BLOCK:
        return _block(a, b)
    total = _block(a[..., :BLOCK], b[..., :BLOCK, :])
    for begin in range(BLOCK, inner, BLOCK):
        total += _block(a[..., begin : begin + BLOCK], b[..., begin : begin + BLOCK, :])
    return total


def _block(a: Tensor, b: Tensor) -> Tensor:
    a, b = _aligned(a), _aligned(b)
    return admitted_library(a.shape, a.stride(), b.shape, b.stride())(a, b)


def _aligned(x: Tensor) -> Tensor:
    return x if x.data_ptr() % ALIGNED == 0 else x.clone(memory_format=torch.contiguous_format)


@functools.cache
def admitted_library(
    a_shape: torch.Size, a_strides: tuple[int, ...], b_shape: torch.Size, b_strides: tuple[int, ...]
) -> Library:
    """Return the fastest library without a bit that differs from the reference's, for matrices of this form."""
    draws = math.ceil(COMPARED / math.prod((*a_shape[:-1], b_shape[-1])))
    drawn = [(_drawn(a_shape, a_strides, f"a{n}"), _drawn(b_shape, b_strides, f"b{n}")) for n in range(draws)]
    expected = [reference(a, b) for a, b in drawn]
    admitted = [
        library
        for library in LIBRARIES
        if all(torch.equal(library(*pair), right) for pair, right in zip(drawn, expected, strict=True))
    ]
    return min(admitted, key=lambda library: _seconds(library, *drawn[0])) if admitted else reference


def _seconds(library: Library, a: Tensor, b: Tensor) -> float:
    """Return the time of a product; as all admitted give the same bits, it may depend on what else runs."""
    times: list[float] = []
    for _ in range(TIMED):
        began = time.thread_time()
        library(a, b)
        times.append(time.thread_time() - began)
    return min(times)


def _drawn(shape: torch.Size, strides: tuple[int, ...], name: str) -> Tensor:
    """Return numbers between -1 and 1."""
    numbers = numbers_from(philox_key(0, f"admission\x1f{name}"), 0, math.prod(shape))
    values = (numbers >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    return torch.empty_strided(shape, strides).copy_(torch.from_numpy(values).view(shape))


def reference(a: Tensor, b: Tensor) -> Tensor:
    """Return the product as it is defined, for any K; a fifth as fast as a library."""
    if a.dim() == 3:
        return _one_by_one(reference, a, b)
    out_MN = np.zeros((a.shape[0], b.shape[1]), np.float32)
    _add_blocks(a.detach().contiguous().numpy(), b.detach().contiguous().numpy(), out_MN, BLOCK)
    return torch.from_numpy(out_MN)


def onednn(a: Tensor, b: Tensor) -> Tensor:
    """Return the product by oneDNN."""
    if a.dim() == 3:
        return _one_by_one(onednn, a, b)
    return onednn_product(a, b)


def _one_by_one(library: Library, a_PMK: Tensor, b_PKN: Tensor) -> Tensor:
    return torch.stack([library(a_MK, b_KN) for a_MK, b_KN in zip(a_PMK, b_PKN, strict=True)])


def _libraries() -> tuple[Library, ...]:
    return (onednn, torch.matmul) if torch.backends.mkldnn.is_available() else (torch.matmul,)


LIBRARIES = _libraries()
"""PyTorch's own products are MKL's on x86."""


@intrinsic
def _fused_multiply_add(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
    """Compile to one instruction, which rounds x y + z once."""
    del typing_context, x, y, z

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@kernel
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
                    summed = chain_N[column]
                    chain_N[column] = _fused_multiply_add(factor, b_KN[k, column], summed)  # pyright: ignore[reportCallIssue]
            for column in range(columns):
                out_MN[row, column] += chain_N[column]
