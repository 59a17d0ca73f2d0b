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

from model.engines.portable.tiles import APART, BYTES, COLUMNS, NARROW, ROWS, fill_panel, pack_rows, tile
from model.kernels import kernel

BLOCK = 256
"""Multiply-adds of a chain."""

PACKED_ROWS = 256
"""Rows of a transposed factor that are copied at once: with BLOCK columns they fit a processor's second cache."""

PACKED_FROM = 4 * COLUMNS
"""Columns of a result from which copying a transposed factor costs less than reading it as it is."""

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
    # Rows of a transposed factor lie far apart for a tile, which would read a line of the cache for a few numbers.
    is_packed = a_inner != 1 and columns >= PACKED_FROM
    height = PACKED_ROWS if is_packed else max(rows, 1)
    packed = np.empty((BLOCK + APART) * PACKED_ROWS if is_packed else 0, np.float32)
    for number in range(outers * products):
        outer, product = number // products, number % products
        of_a = a + BYTES * (outer * a_outer + product * a_product)
        of_b = b + BYTES * (outer * b_outer + product * b_product)
        of_out = out + BYTES * number * rows * columns
        for begin in range(0, inner, BLOCK):
            count = min(BLOCK, inner - begin)
            b_block = of_b + BYTES * begin * b_inner, b_inner, b_column
            for top in range(0, rows, height):
                bottom = min(top + height, rows)
                a_block = of_a + BYTES * (top * a_row + begin * a_inner), a_row, a_row, a_inner
                if is_packed:
                    pack_rows(a_block[0], a_row, a_inner, count, bottom - top, packed)
                    a_block = packed.ctypes.data, count + APART, 1, ROWS
                _add_block(a_block, b_block, of_out, columns, (top, bottom), (begin, count), known, panel)


@kernel
def _add_block(
    a_block: tuple[int, ...],
    b_block: tuple[int, ...],
    out: int,
    columns: int,
    of_rows: tuple[int, int],
    of_sums: tuple[int, int],
    known: int,
    panel: np.ndarray,
) -> None:
    """Add a block of the sums of some rows to a result, or begin it with the first.

    A block is an address and strides: of the left factor between tiles, between a tile's rows and along K, of the right
    one along K and between columns. The rows are from `top` to `bottom`, the sums from `begin`.
    """
    a, between_tiles, a_row, a_inner = a_block
    b, b_inner, b_column = b_block
    (top, bottom), (begin, count) = of_rows, of_sums
    column = 0
    while column < columns:
        # The last two tiles are both narrow where that is enough.
        left = columns - column
        width = NARROW if COLUMNS < left <= 2 * NARROW else min(COLUMNS, left)
        fill_panel(b + BYTES * column * b_column, b_inner, b_column, count, width, panel)
        for row in range(max(top, column // GRAIN * GRAIN) if known == Known.UNUSED_AFTER else top, bottom, ROWS):
            first, last, grain = 0, count, row // GRAIN * GRAIN - begin
            # Where all multiply-adds are by zero, one is left, which gives the zero.
            if known == Known.ZEROS_AFTER:
                last = min(max(grain + GRAIN, 1), count)
            elif known == Known.ZEROS_BEFORE:
                first = min(max(grain, 0), count - 1)
            tile(  # pyright: ignore[reportCallIssue]
                a + BYTES * ((row - top) * between_tiles + first * a_inner),
                a_row,
                a_inner,
                panel.ctypes.data + BYTES * first * COLUMNS,
                last - first,
                out + BYTES * (row * columns + column),
                columns,
                min(ROWS, bottom - row),
                width,
                begin > 0,
            )
        column += width


@kernel
def _replace_after(matrix_PMN: np.ndarray, number: np.float32) -> None:
    """Replace what follows the diagonal of each matrix."""
    for product in range(matrix_PMN.shape[0]):
        for row in range(matrix_PMN.shape[1]):
            matrix_PMN[product, row, row + 1 :] = number
