"""Where a model computes: the training's device where there is one, in the training's types."""

import pytest
import torch

from model.config.network import GPTConfig
from model.engines.runtime import autocast
from model.errors import RecipeError
from model.inference.device import choose_device, inference_on, round_matrices
from model.nn.gpt import GPT

CUDA = {"train": {"device": "cuda", "dtype": "bfloat16"}}


def test_the_trainings_device_is_used_where_the_machine_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for present, description, asked, expected in (
        (True, CUDA, None, "cuda"),
        (False, CUDA, None, "cpu"),
        (True, CUDA, "cpu", "cpu"),
        (True, {"train": {"device": "cpu"}}, None, "cpu"),
        (True, {}, None, "cpu"),
        (False, {}, "cuda", "cuda"),
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda present=present: present)
        assert choose_device(asked, description) == expected  # pyright: ignore[reportArgumentType]


def test_a_device_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RecipeError, match="device is cuda"), inference_on("cuda", CUDA):
        raise AssertionError("there is no such device")


def test_rounded_matrices_compute_what_the_training_computes() -> None:
    """Autocast rounds each matrix where it is used; rounding it once gives the same logits."""
    network = GPT(GPTConfig(vocab_size=40, context=16, layers=2, heads=2, width=32, tied_head=False)).initialise(1)
    tokens = torch.arange(12)[None]
    with torch.inference_mode(), autocast("bfloat16", torch.device("cpu")):
        expected = network.eval()(tokens)
        round_matrices(network, "bfloat16")
        assert torch.equal(network(tokens), expected)
    assert network.blocks[0].get_parameter("mlp_in.weight").dtype == torch.bfloat16
    assert network.embedding.weight.dtype == torch.float32


def test_on_a_cpu_nothing_changes() -> None:
    network = GPT(GPTConfig(vocab_size=40, context=16, layers=1, heads=2, width=32)).initialise(1).eval()
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    with inference_on("cpu", CUDA, network):
        assert network(torch.arange(4)[None]).dtype == torch.float32
    assert all(torch.equal(weight, before[name]) for name, weight in network.state_dict().items())
