"""The pretended device refuses what a real one would, and computes what the processor computes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.model.pretended_cuda import pretended_cuda


def test_tensors_are_where_they_were_put() -> None:
    with pretended_cuda():
        there = torch.arange(3, device="cuda")
        assert there.device == torch.device("cuda", 0)
        assert there.is_cuda
        assert (there + 1).is_cuda
        assert there.new_zeros(2).is_cuda
        assert not there.cpu().is_cuda
        assert torch.ones(2).to(there.device, torch.float64).is_cuda
        assert torch.ones(2).to(there).dtype == there.dtype
        assert not torch.ones(2).is_cuda
        assert there.sum().item() == 3
        assert there.tolist() == [0, 1, 2]


def test_numbers_and_places_of_the_processor_are_taken() -> None:
    with pretended_cuda():
        there = torch.arange(3.0, device="cuda")
        assert (there * torch.tensor(2.0)).tolist() == [0, 2, 4]
        assert there[torch.tensor([2, 0])].tolist() == [2, 0]
        there[1:] = torch.tensor([7.0, 8.0])
        assert there.tolist() == [0, 7, 8]


@pytest.mark.parametrize(
    "mix",
    [
        lambda there, here: there + here,
        lambda there, here: torch.cat([here, there]),
        lambda there, here: torch.where(here > 0, there, there),
        lambda there, here: here[there.long()],
        lambda there, here: nn.Linear(3, 3)(there),
        lambda there, here: there.masked_fill(here > 1, 0.0),
    ],
)
def test_mixtures_are_refused(mix: Callable[[Tensor, Tensor], object]) -> None:
    with pretended_cuda(), pytest.raises(RuntimeError, match="same device"):
        mix(torch.arange(3.0, device="cuda"), torch.arange(3.0))
    with pretended_cuda(), pytest.raises(TypeError, match="can't convert cuda:0"):
        torch.arange(3, device="cuda").numpy()


def test_a_module_trains_there_to_the_processors_weights() -> None:
    found = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(1)
        layer = nn.Linear(3, 2)
        with pretended_cuda():
            layer.to(device)
            optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
            for _ in range(3):
                layer(torch.ones(4, 3, device=device)).square().sum().backward()
                assert layer.weight.grad is not None
                assert layer.weight.grad.is_cuda == (device == "cuda")
                optimizer.step()
                optimizer.zero_grad()
            found.append(layer.weight.detach().cpu())
    assert torch.equal(*found)
