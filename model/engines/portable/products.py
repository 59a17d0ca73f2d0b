"""Matrix products that every processor computes alike: the arithmetic is defined, and compiled here.

A product is cut into blocks of 256 along the dimension that is summed. In a block each element is one chain of fused
multiply-adds, in ascending order, from zero; the blocks are added in order. The width of vectors, the cut of rows and
columns and the vendor then decide nothing. Libraries document no order of sums and choose it by processor, so none is
called. What makes one fast is left: a tile of the result stays in registers through a block, and the columns that it
needs lie in cache one behind the other (Goto and van de Geijn 2008, https://doi.org/10.1145/1356052.1356053).

Shapes: M rows, K summed, N columns.
"""

from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from model.engines.portable.tiles import BYTES, COLUMNS, ROWS, fill_panel, tile
from model.kernels import kernel

BLOCK = 256
"""Multiply-adds of a chain."""

GRAIN = 8
"""Rows, a multiple of ROWS, that skip the same multiply-adds by zero: one by zero may change the sign of a zero."""


class Known(IntEnum):
    """What is known of square matrices, and need not be computed."""

    NOTHING = 0
    ZEROS_AFTER = 1
    """The left factor has zeros after its diagonal."""
    ZEROS_BEFORE = 2
    """The left factor has zeros before its diagonal."""
    UNUSED_AFTER = 3
    """What follows the diagonal of the result is replaced."""


class Product(torch.autograd.Function):
    """f32[..., M, K] times f32[..., K, N], with equal leading dimensions; gradients are products too."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return multiply(a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        a, b = ctx.saved_tensors
        of_a, of_b = ctx.needs_input_grad
        return (
            multiply(gradients[0], b.mT) if of_a else None,
            multiply(a.mT, gradients[0]) if of_b else None,
        )


def multiply(a: Tensor, b: Tensor, known: Known = Known.NOTHING, after: float = 0.0) -> Tensor:
    """Return the product of f32[..., M, K] and f32[..., K, N], with up to two equal leading dimensions.

    Where it is UNUSED_AFTER the diagonal, that has the number `after`.
    """
    *leading, rows, inner = a.shape
    columns = b.shape[-1]
    if [*b.shape] != [*leading, inner, columns] or len(leading) > 2:
        raise ValueError(f"no product is defined of matrices of shapes {[*a.shape]} and {[*b.shape]}")
    if not (a.dtype == b.dtype == torch.float32 and a.is_cpu and b.is_cpu):
        raise TypeError(f"products are of float32 on a processor, and these are {a.dtype} and {b.dtype} on {a.device}")
    if not inner:
        return torch.zeros(*leading, rows, columns)
    out = torch.empty(*leading, rows, columns)
    sizes = (*([1, 1, *leading][-2:]), rows, inner, columns)
    _multiply(a.data_ptr(), _four(a.stride()), b.data_ptr(), _four(b.stride()), out.data_ptr(), sizes, int(known))
    if known == Known.UNUSED_AFTER:
        _replace_after(out.view(-1, rows, columns).numpy(), np.float32(after))
    return out


def _four(strides: tuple[int, ...]) -> tuple[int, ...]:
    return (0, 0, *strides)[-4:]


@kernel
def _multiply(
    a: int, a_strides: tuple[int, ...], b: int, b_strides: tuple[int, ...], out: int, sizes: tuple[int, ...], known: int
) -> None:
    """Fill f32[outers, products, M, N], given the addresses of numbers, strides in numbers, and what is Known; `sizes`
    are outers, products, M, K and N."""
    a_outer, a_product, a_row, a_inner = a_strides
    b_outer, b_product, b_inner, b_column = b_strides
    outers, products, rows, inner, columns = sizes
    panel = np.empty(BLOCK * COLUMNS, np.float32)
    for number in range(outers * products):
        outer, product = number // products, number % products
        of_a = a + BYTES * (outer * a_outer + product * a_product)
        of_b = b + BYTES * (outer * b_outer + product * b_product)
        of_out = out + BYTES * number * rows * columns
        for begin in range(0, inner, BLOCK):
            count = min(BLOCK, inner - begin)
            for column in range(0, columns, COLUMNS):
                width = min(COLUMNS, columns - column)
                fill_panel(of_b + BYTES * (begin * b_inner + column * b_column), b_inner, b_column, count, width, panel)
                for row in range(column // GRAIN * GRAIN if known == Known.UNUSED_AFTER else 0, rows, ROWS):
                    first, last, grain = 0, count, row // GRAIN * GRAIN - begin
                    # Where all multiply-adds are by zero, one is left, which gives the zero.
                    if known == Known.ZEROS_AFTER:
                        last = min(max(grain + GRAIN, 1), count)
                    elif known == Known.ZEROS_BEFORE:
                        first = min(max(grain, 0), count - 1)
                    tile(  # pyright: ignore[reportCallIssue]
                        of_a + BYTES * (row * a_row + (begin + first) * a_inner),
                        a_row,
                        a_inner,
                        panel.ctypes.data + BYTES * first * COLUMNS,
                        last - first,
                        of_out + BYTES * (row * columns + column),
                        columns,
                        min(ROWS, rows - row),
                        width,
                        begin > 0,
                    )


@kernel
def _replace_after(matrix_PMN: np.ndarray, number: np.float32) -> None:
    """Replace what follows the diagonal of each matrix."""
    for product in range(matrix_PMN.shape[0]):
        for row in range(matrix_PMN.shape[1]):
            matrix_PMN[product, row, row + 1 :] = number
