"""The sums that a loss needs of logits: one formula for two ways to compute them, and values worked out by hand."""

import functools
import math

import pytest
import torch
from torch import Tensor

from model.data.row_format import NO_LOSS
from model.nn import logit_sums as module
from model.nn.logit_sums import LogitSums, logit_sums
from model.nn.vocab_layers import Vocabulary


@pytest.fixture(autouse=True)
def _uncompiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor the two functions of a CUDA device are not compiled, in the backward pass too: that takes
    seconds."""
    if "cuda" not in request.keywords:
        monkeypatch.setattr(module, "_compiled", lambda function: function)


def fused(logits_NV: Tensor, targets_N: Tensor, squares: bool, correct: bool) -> LogitSums:
    """As on a CUDA device, without its compiler."""
    return LogitSums(*module._FusedSums.apply(logits_NV, targets_N, squares, correct))


def test_sums_of_two_rows_by_hand() -> None:
    # Softmaxes 1/4 and 3/4; 1/2 and 1/2; the last row carries no loss.
    logits = torch.tensor([[0.0, math.log(3)], [0.0, 0.0], [9.0, -7.0]])
    found = logit_sums(Vocabulary(), logits, torch.tensor([1, 0, NO_LOSS]), squares=True, correct=True)
    assert found.nats.item() == pytest.approx(math.log(4 / 3) + math.log(2))
    assert found.squared_normalisers.item() == pytest.approx(math.log(4) ** 2 + math.log(2) ** 2)
    assert found.correct.item() == 2
    assert found.range.tolist() == [7.0, 9.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("squares", "correct"), [(False, False), (True, False), (False, True), (True, True)])
def test_one_kernel_computes_what_many_do(dtype: torch.dtype, squares: bool, correct: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = (4.0 * torch.randn(50, 97, generator=generator)).to(dtype)
    targets = torch.randint(97, (50,), generator=generator).masked_fill(torch.arange(50) % 7 == 0, NO_LOSS)
    found = []
    for is_fused in (True, False):
        leaf = logits.clone().requires_grad_()
        if is_fused:
            sums = fused(leaf, targets, squares, correct)
        else:
            sums = logit_sums(Vocabulary(), leaf, targets, squares=squares, correct=correct)
        (3.0 * sums.nats + 0.5 * sums.squared_normalisers).backward()
        assert leaf.grad is not None
        assert leaf.grad.dtype == dtype
        found.append((sums, leaf.grad.float()))
    (one, gradient), (other, expected) = found
    assert one.nats.item() == pytest.approx(other.nats.item(), rel=1e-5)
    assert one.squared_normalisers.item() == pytest.approx(other.squared_normalisers.item(), rel=1e-5)
    assert one.correct.item() == other.correct.item()
    assert one.range.tolist() == other.range.tolist()
    # A gradient in bfloat16 has 8 bits of mantissa, and the other way rounds those of nats and squares, then their sum.
    torch.testing.assert_close(gradient, expected, rtol=2**-7 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)


def test_gradients_sum_to_zero_in_each_row_and_rows_without_loss_have_none() -> None:
    leaf = torch.linspace(-3, 3, 40).reshape(4, 10).requires_grad_()
    fused(leaf, torch.tensor([0, 9, NO_LOSS, 4]), squares=False, correct=False).nats.backward()
    assert leaf.grad is not None
    assert leaf.grad.sum(1).tolist() == pytest.approx([0.0] * 4, abs=1e-6)
    assert leaf.grad[2].tolist() == [0.0] * 10


def test_each_of_the_two_kernels_is_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the compiler of a device makes a kernel of; here nothing is made of it."""
    plain = torch.linspace(-3, 3, 40).reshape(4, 10).requires_grad_()
    targets = torch.tensor([0, 9, NO_LOSS, 4])
    sums = [fused(plain, targets, squares=True, correct=True)]
    traced = functools.partial(torch.compile, backend="eager", dynamic=False, fullgraph=True)
    monkeypatch.setattr(module, "_compiled", traced)
    leaf = plain.detach().clone().requires_grad_()
    sums.append(fused(leaf, targets, squares=True, correct=True))
    for one in sums:
        (one.nats + one.squared_normalisers).backward()
    assert plain.grad is not None
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, plain.grad)
    assert torch.equal(sums[0].nats, sums[1].nats)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_logit_that_is_no_number_shows(bad: float) -> None:
    logits = torch.zeros(3, 5)
    logits[1, 2] = bad
    found = fused(logits, torch.tensor([0, 1, 2]), squares=False, correct=False)
    assert not math.isfinite(found.nats.item())
    assert not torch.isfinite(found.range).all()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and `-m cuda`")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_on_a_device_the_sums_are_those_of_a_processor(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = (4.0 * torch.randn(300, 1003, generator=generator)).to(dtype)
    targets = torch.randint(1003, (300,), generator=generator).masked_fill(torch.arange(300) % 7 == 0, NO_LOSS)
    found = []
    for device in ("cpu", "cuda"):
        leaf = logits.to(device, copy=True).requires_grad_()
        sums = logit_sums(Vocabulary(fused=True), leaf, targets.to(device), squares=True, correct=True)
        (sums.nats + 1e-4 * sums.squared_normalisers).backward()
        assert leaf.grad is not None
        found.append((sums, leaf.grad.float().cpu()))
    (one, expected), (other, gradient) = found
    assert other.nats.item() == pytest.approx(one.nats.item(), rel=1e-5)
    assert other.squared_normalisers.item() == pytest.approx(one.squared_normalisers.item(), rel=1e-5)
    assert other.correct.item() == one.correct.item()
    assert other.range.tolist() == one.range.tolist()
    torch.testing.assert_close(gradient, expected, rtol=2**-7 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)
