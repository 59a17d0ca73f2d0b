"""Products of matrices by another way than PyTorch's: the same numbers to rounding, the same bits each time, and only
within the block."""

import io
import itertools
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

import model.train.rank
from model.engines import products as module
from model.engines.products import SMALL, by_onednn, fastest_products, products, widened
from model.engines.runtime import AUTOCAST_TYPES

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")
M, K, N = 256, 96, 128
BY_ONEDNN = {torch.float32: by_onednn}


def matrix(rows: int, columns: int, form: str, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(rows * columns)
    if form == "transposed":
        return torch.randn(columns, rows, generator=generator, dtype=dtype).t()
    if form == "sliced":
        return torch.randn(rows, 2 * columns, generator=generator, dtype=dtype)[:, ::2]
    return torch.randn(rows, columns, generator=generator, dtype=dtype)


@pytest.mark.parametrize(("of_a", "of_b"), list(itertools.product(("plain", "transposed", "sliced"), repeat=2)))
def test_products_are_right_in_every_form_of_memory(of_a: str, of_b: str) -> None:
    a, b, bias = matrix(M, K, of_a), matrix(K, N, of_b), torch.arange(N, dtype=torch.float32)
    assert M * K * N >= SMALL
    exact = a.double() @ b.double()
    with products(BY_ONEDNN):
        found, again = a @ b, a @ b
        added, scaled = torch.addmm(bias, a, b), torch.addmm(bias, a, b, beta=0.5, alpha=2)
    assert torch.equal(found, again)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-4)
    torch.testing.assert_close(added.double(), exact + bias, rtol=0, atol=1e-4)
    torch.testing.assert_close(scaled.double(), 2 * exact + bias / 2, rtol=0, atol=2e-4)


def test_gradients_go_through_it() -> None:
    layer = torch.nn.Linear(K, N)
    x = matrix(M, K, "plain").requires_grad_()
    layer(x).square().sum().backward()
    expected = [x.grad, layer.weight.grad, layer.bias.grad]
    x.grad = None
    layer.zero_grad()
    with products(BY_ONEDNN):
        layer(x).square().sum().backward()
    for found, right in zip([x.grad, layer.weight.grad, layer.bias.grad], expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-3)


def test_small_products_and_other_types_keep_their_bits_and_nothing_stays_behind() -> None:
    small = matrix(8, K, "plain"), matrix(K, 8, "transposed")
    double = matrix(M, K, "plain", torch.float64), matrix(K, N, "plain", torch.float64)
    large = matrix(M, K, "plain"), matrix(K, N, "plain")
    before = [a @ b for a, b in (small, double, large)]
    with warnings.catch_warnings(), products(BY_ONEDNN):
        warnings.simplefilter("error")
        within = [a @ b for a, b in (small, double)]
    assert all(map(torch.equal, within, before))
    assert torch.equal(large[0] @ large[1], before[2])


@pytest.mark.parametrize(
    ("instructions", "types"),
    [
        ("none", {torch.bfloat16, torch.float16}),
        ("avx512_bf16", {torch.float16}),
        ("amx_bf16+avx512_bf16+avx512_fp16", set()),
        ("bf16+asimdhp", set()),
    ],
)
def test_numbers_of_16_bits_are_widened_where_no_instruction_multiplies_them(
    instructions: str, types: set[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set[torch.dtype]()
    monkeypatch.setattr(module, "narrow_products", lambda _: instructions)
    monkeypatch.setattr(module, "products_by_onednn", lambda _: False)
    monkeypatch.setattr(module, "widened", lambda a, b: seen.add(a.dtype) or torch.zeros(M, N, dtype=a.dtype))
    for name in ("float32", "tf32", "bfloat16", "float16"):
        with fastest_products(name):
            for dtype in (torch.float32, AUTOCAST_TYPES.get(name, torch.float32)):
                matrix(M, K, "plain", dtype) @ matrix(K, N, "plain", dtype)
    assert seen == types


def test_a_rank_has_the_products_of_every_type_that_a_rollback_may_lead_to(
    make_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that resumes after the guard has changed the type computes the bits of the one that changed it."""
    seen = set[torch.dtype]()

    def multiply(*_: object) -> None:
        for dtype in AUTOCAST_TYPES.values():
            matrix(M, K, "plain", dtype) @ matrix(K, N, "plain", dtype)

    monkeypatch.setattr(module, "narrow_products", lambda _: "none")
    monkeypatch.setattr(module, "widened", lambda a, b: seen.add(a.dtype) or torch.zeros(M, N, dtype=a.dtype))
    monkeypatch.setattr("model.train.trainer.train", multiply)
    monkeypatch.setattr("model.distributed.protocol.claim_stdout", io.StringIO)
    monkeypatch.setattr(model.train.rank, "dump_stacks_on_request", lambda *_: None)
    model.train.rank._train(make_run(dtype="float16"), tmp_path, 0, 1, (), "")
    assert seen == {torch.float16, torch.bfloat16}


@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, 8), (torch.float16, 11)])
def test_a_widened_product_is_summed_in_float32_and_rounded_once(dtype: torch.dtype, bits: int) -> None:
    a, b, bias = matrix(M, K, "plain", dtype), matrix(K, N, "transposed", dtype), torch.arange(N).to(dtype)
    exact = a.double() @ b.double()
    with products({dtype: widened}):
        found, added = a @ b, torch.addmm(bias, a, b, beta=2, alpha=0.5)
    torch.testing.assert_close(found.double(), exact, rtol=2.0**-bits, atol=1e-4)
    torch.testing.assert_close(added.double(), exact / 2 + 2 * bias.double(), rtol=2.0**-bits * 2, atol=0.2)
