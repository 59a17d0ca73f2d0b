"""The product is the defined arithmetic, for every form of its factors and under every instruction set."""

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from model.engines.portable.products import BLOCK, GRAIN, PACKED_FROM, PACKED_ROWS, Known, Product, multiply
from model.engines.portable.tiles import COLUMNS, NARROW, ROWS

PROJECT = Path(__file__).resolve().parents[4]
AVX2 = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma"}
"""What has numba compile for processors without AVX-512."""


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@intrinsic
def _fused_multiply_add(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
    """Compile to one instruction, which rounds x y + z once."""
    del typing_context, x, y, z

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@numba.njit
def _add_blocks(a_MK: np.ndarray, b_KN: np.ndarray, out_MN: np.ndarray, size: int) -> None:
    """Add the blocks of a product to zeros f32[M, N]."""
    rows, inner = a_MK.shape
    for row in range(rows):
        for column in range(b_KN.shape[1]):
            for begin in range(0, inner, size):
                chain = np.float32(0)
                for k in range(begin, min(begin + size, inner)):
                    chain = _fused_multiply_add(a_MK[row, k], b_KN[k, column], chain)  # pyright: ignore[reportCallIssue]
                out_MN[row, column] += chain


def reference(a: Tensor, b: Tensor) -> Tensor:
    """The product as it is defined, element by element."""
    out = np.zeros((a.shape[0], b.shape[1]), np.float32)
    _add_blocks(a.contiguous().numpy(), b.contiguous().numpy(), out, BLOCK)
    return torch.from_numpy(out)


def fused(x: float, y: float, z: float) -> float:
    """x y + z, rounded once."""
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    below = np.float32(float(exact))
    near = [np.nextafter(below, np.float32(-np.inf)), below, np.nextafter(below, np.float32(np.inf))]
    return float(min(near, key=lambda one: (abs(Fraction(float(one)) - exact), one.view(np.uint32) & 1)))


def test_the_reference_is_a_chain_of_fused_multiply_adds() -> None:
    a, b = draw(3, 40), draw(40, 2, seed=2)
    expected = torch.zeros(3, 2)
    for row in range(3):
        for column in range(2):
            total = 0.0
            for k in range(40):
                total = fused(float(a[row, k]), float(b[k, column]), total)
            expected[row, column] = total
    assert torch.equal(reference(a, b), expected)


def test_a_product_is_rounded_once_with_its_sum() -> None:
    # The square is 1 + 2^-11 + 2^-24, whose last bit float32 does not hold.
    x = 1 + 2**-12
    a, b = torch.tensor([[1.0, x]]), torch.tensor([[-(1 + 2**-11)], [x]])
    assert reference(a, b).item() == multiply(a, b).item() == 2**-24


def test_blocks_are_added_in_order() -> None:
    a, b = draw(5, 2 * BLOCK + 10), draw(2 * BLOCK + 10, 7, seed=2)
    first, second, third = (reference(x, y) for x, y in zip(a.split(BLOCK, 1), b.split(BLOCK), strict=True))
    assert torch.equal(multiply(a, b), (first + second) + third)
    assert torch.equal(reference(a, b), (first + second) + third)
    assert not torch.equal(reference(a, b), first + (second + third))


@pytest.mark.parametrize(
    "shape",
    [
        (1, 56, 1),
        (1, 300, 64),
        (4, 56, 256),
        (33, 224, 70),
        (64, 700, 24),
        (ROWS + 1, 13, COLUMNS + 1),
        (ROWS + 1, 13, NARROW - 1),
        (ROWS + 1, 13, 2 * NARROW),
        (PACKED_ROWS + ROWS + 1, 300, PACKED_FROM + 3),
    ],
)
def test_every_form_of_the_factors_has_the_same_bits(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    a, b = draw(rows, inner), draw(inner, columns, seed=2)
    expected = reference(a, b)
    wide_a, wide_b, flat = torch.zeros(rows, inner + 3), torch.zeros(inner, columns + 5), torch.zeros(a.numel() + 1)
    wide_a[:, 3:], wide_b[:, :columns], flat[1:] = a, b, a.flatten()
    every_second = torch.stack((a, a + 1), -1)[..., 0]
    for left in (a, a.t().contiguous().t(), wide_a[:, 3:], flat[1:].view_as(a), every_second):
        for right in (b, b.t().contiguous().t(), wide_b[:, :columns]):
            assert torch.equal(multiply(left, right), expected)
    several = multiply(torch.stack((a, 2 * a)), torch.stack((b, b)))
    assert torch.equal(several, torch.stack((expected, 2 * expected)))


def test_gradients_are_products() -> None:
    a, b, gradient = draw(2, 3, 5, 300), draw(2, 3, 300, 4, seed=2), draw(2, 3, 5, 4, seed=3)
    leaves = [tensor.clone().requires_grad_() for tensor in (a, b)]
    Product.apply(*leaves).backward(gradient)
    assert torch.equal(leaves[0].grad[1, 2], reference(gradient[1, 2], b[1, 2].T))
    assert torch.equal(leaves[1].grad[1, 2], reference(a[1, 2].T, gradient[1, 2]))


def test_no_number_outside_of_a_product_is_read_or_written() -> None:
    """Views of wider matrices, whose other numbers would be seen, on all sides of every size of a last tile."""
    for rows, inner, columns in [(r, k, c) for r in range(1, ROWS + 1) for k in (1, 9) for c in range(1, COLUMNS + 2)]:
        wide_a, wide_b = torch.full((rows + 2, inner + 2), torch.nan), torch.full((inner + 2, columns + 2), torch.nan)
        a, b = wide_a[1:-1, 1:-1].copy_(draw(rows, inner)), wide_b[1:-1, 1:-1].copy_(draw(inner, columns, seed=2))
        assert torch.equal(multiply(a, b), reference(a, b))
        assert torch.equal(multiply(b.T, a.T), reference(b.T, a.T))


@pytest.mark.parametrize("size", [1, 5, ROWS, COLUMNS + 3, BLOCK + GRAIN + 1])
def test_what_is_known_changes_no_bit(size: int) -> None:
    a, b = draw(2, size, size), draw(2, size, size, seed=2)
    assert torch.equal(multiply(a.tril(), b, Known.ZEROS_AFTER), multiply(a.tril(), b))
    assert torch.equal(multiply(a.tril().mT, b, Known.ZEROS_BEFORE), multiply(a.tril().mT, b))
    is_after = torch.ones(size, size, dtype=torch.bool).triu(1)
    expected = multiply(a, b).masked_fill(is_after, -torch.inf)
    assert torch.equal(multiply(a, b, Known.UNUSED_AFTER, -torch.inf), expected)


def test_grains_have_whole_tiles() -> None:
    assert GRAIN % ROWS == 0


def test_sums_of_nothing_are_zero_and_results_of_nothing_are_empty() -> None:
    assert torch.equal(multiply(torch.empty(2, 0), torch.empty(0, 3)), torch.zeros(2, 3))
    assert multiply(torch.empty(0, 5), torch.empty(5, 3)).shape == (0, 3)


def test_what_is_no_product_of_float32_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[2, 3\] and \[2, 3\]"):
        multiply(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(TypeError, match="float64"):
        multiply(torch.ones(2, 3), torch.ones(3, 2, dtype=torch.float64))


CAPPED = """
import hashlib, torch
from model.engines.portable.products import multiply
from model.engines.portable.tiles import LANES
draw = lambda *shape: torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[0]))
found = [multiply(a, b) for a, b in [(draw(67, 300), draw(300, 75)), (draw(300, 67).T, draw(75, 300).T)]]
print(LANES, hashlib.sha256(b"".join(one.numpy().tobytes() for one in found)).hexdigest())
"""


def test_bits_are_those_of_a_processor_without_avx512() -> None:
    found = []
    for capped in ({}, AVX2):
        words = [sys.executable, "-c", CAPPED]
        done = subprocess.run(words, env=os.environ | capped, cwd=PROJECT, capture_output=True, text=True, check=True)
        found.append(done.stdout.split())
    assert found[1][0] == "8"
    assert found[0][1] == found[1][1]
