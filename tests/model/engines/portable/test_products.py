"""The product is the defined arithmetic, for every form of its factors, whichever library computes it."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from model.engines.portable import products
from model.engines.portable.products import BLOCK, Product, admitted_library, multiply, reference


@pytest.fixture(autouse=True)
def _admitted_anew() -> Iterator[None]:
    """Forget what was admitted, before and after a test that replaces libraries."""
    admitted_library.cache_clear()
    yield
    admitted_library.cache_clear()


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


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


@pytest.mark.parametrize("shape", [(1, 56, 1), (1, 300, 64), (4, 56, 256), (33, 224, 70), (64, 700, 24)])
def test_every_form_of_the_factors_has_the_same_bits(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    a, b = draw(rows, inner), draw(inner, columns, seed=2)
    expected = reference(a, b)
    wide_a, wide_b, flat = torch.zeros(rows, inner + 3), torch.zeros(inner, columns + 5), torch.zeros(a.numel() + 1)
    wide_a[:, 3:], wide_b[:, :columns], flat[1:] = a, b, a.flatten()
    for left in (a, a.t().contiguous().t(), wide_a[:, 3:], flat[1:].view_as(a)):
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


def test_a_library_with_another_bit_is_not_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_float64(a: Tensor, b: Tensor) -> Tensor:
        return (a.double() @ b.double()).float()

    def wrong_in_the_corner(a: Tensor, b: Tensor) -> Tensor:
        product = reference(a, b)
        product[-1, -1] = torch.nextafter(product[-1, -1], torch.tensor(9.0))
        return product

    right = lambda a, b: reference(a, b)  # noqa: E731
    a, b = draw(2, 30), draw(30, 1, seed=2)
    form = (a.shape, a.stride(), b.shape, b.stride())
    monkeypatch.setattr(products, "LIBRARIES", (in_float64, wrong_in_the_corner))
    assert admitted_library(*form) is reference
    admitted_library.cache_clear()
    monkeypatch.setattr(products, "LIBRARIES", (in_float64, right, wrong_in_the_corner))
    assert admitted_library(*form) is right


def test_the_fastest_admitted_library_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(a: Tensor, b: Tensor) -> Tensor:
        for _ in range(50):
            reference(a, b)
        return reference(a, b)

    fast = lambda a, b: reference(a, b)  # noqa: E731
    a, b = draw(64, 64), draw(64, 64, seed=2)
    monkeypatch.setattr(products, "LIBRARIES", (slow, fast))
    assert admitted_library(a.shape, a.stride(), b.shape, b.stride()) is fast
