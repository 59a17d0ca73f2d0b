"""Ablated parts: the network computes as without them, and is restored bit for bit."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config.network import GPTConfig
from model.nn.gpt import GPT
from model.nn.pruning import Part, ablated, parts_of, removed_parameters

TOKENS = torch.arange(20).reshape(2, 10) % 16


SIZES: dict[str, Any] = {"vocab_size": 16, "context": 10, "layers": 3, "heads": 2, "width": 8}
SIZES |= {"norm": "layernorm", "activation": "gelu", "qk_norm": "none", "biases": True}


def made(**choices: object) -> GPT:
    config = GPTConfig.model_validate(SIZES | choices)
    network = GPT(config).initialise(3).eval()
    with torch.no_grad():
        for weight in network.parameters():
            # Biases that begin at zero would hide whether they are taken out.
            weight.add_(torch.linspace(-0.3, 0.2, weight.numel()).reshape(weight.shape))
    return network


@pytest.fixture(params=[{}, {"norm_position": "post"}, {"parallel_residual": True}, {"qk_norm": "head"}])
def network(request: pytest.FixtureRequest) -> Iterator[GPT]:
    with torch.inference_mode(False):
        yield made(**request.param)


def test_every_part_is_listed_once() -> None:
    parts = parts_of(made())
    assert len(parts) == len(set(parts)) == 3 + 3 + 3 + 6
    names = [part.name for part in parts]
    assert names[0] == "layer 0"
    assert names[3] == "layer 0 attention"
    assert names[-1] == "layer 2 head 1"


def test_afterwards_all_bits_are_back(network: GPT) -> None:
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    whole = network(TOKENS)
    for part in parts_of(network):
        with ablated(network, [part]):
            assert not torch.equal(network(TOKENS), whole)
    assert torch.equal(network(TOKENS), whole)
    assert all(torch.equal(weight, before[name]) for name, weight in network.state_dict().items())


def test_all_heads_are_the_attention_but_for_its_bias() -> None:
    network = made(biases=False)
    with ablated(network, [Part("head", 1, 0), Part("head", 1, 1)]):
        heads = network(TOKENS)
    with ablated(network, [Part("attention", 1)]):
        assert torch.equal(network(TOKENS), heads)


def test_a_layer_without_its_branches_is_no_layer() -> None:
    network, shorter = made(), made(layers=2)
    weights = network.state_dict()
    renumbered = {"blocks.1.": "blocks.2."}
    kept = {
        name: weights[next((name.replace(a, b) for a, b in renumbered.items() if name.startswith(a)), name)]
        for name in shorter.state_dict()
    }
    shorter.load_state_dict(kept)
    with ablated(network, [Part("layer", 1)]):
        assert torch.equal(network(TOKENS), shorter(TOKENS))
    size = sum(weight.numel() for weight in network.parameters())
    assert size - removed_parameters(network, [Part("layer", 1)]) == sum(
        weight.numel() for weight in shorter.parameters()
    )


def test_sizes_are_those_counted_by_hand() -> None:
    """Width 8, two heads of 4: a head has 3 x 4 rows of 8 with a bias each, and 4 columns of 8."""
    network = made()
    assert removed_parameters(network, [Part("head", 0, 1)]) == 3 * 4 * 8 + 3 * 4 + 4 * 8
    assert removed_parameters(network, [Part("mlp", 0)]) == 2 * 8 + 8 * 32 + 32 + 32 * 8 + 8
    assert removed_parameters(network, [Part("attention", 0)]) == 2 * 8 + 8 * 24 + 24 + 8 * 8 + 8


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(parts_of(made())), max_size=8))
def test_what_is_in_another_part_counts_once(parts: list[Part]) -> None:
    network = made()
    size = sum(weight.numel() for weight in network.parameters())
    layers = sum(weight.numel() for block in network.blocks for weight in block.parameters())
    assert 0 <= removed_parameters(network, parts) <= layers <= size
    assert removed_parameters(network, parts) == removed_parameters(network, [*parts, *parts])
    assert removed_parameters(network, [*parts, *parts_of(network)]) == layers
