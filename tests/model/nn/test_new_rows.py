"""Separate new rows compute what one table does, and are trained while all else stays."""

from typing import Any

import pytest
import torch
from torch import Tensor

from model.config.network import BERTConfig, GPTConfig, T5Config
from model.nn.factory import make_network
from model.nn.vocab_layers import NEW_ROWS_OF, freeze_all_but_new_rows, merge_new_rows

OLD, NEW = 40, 8
SIZES: dict[str, Any] = {"vocab_size": OLD + NEW, "context": 16, "layers": 1, "heads": 2, "width": 16}
CONFIGS = {
    "gpt": GPTConfig(**SIZES),
    "gpt, narrow, head of its own with biases": GPTConfig(**SIZES, embedding_width=8, tied_head=False, head_bias=True),
    "bert": BERTConfig(**SIZES),
    "t5": T5Config(**SIZES),
    "t5 with a head of its own": T5Config(**SIZES, tied_head=False),
}
TOKENS = torch.arange(OLD - 4, OLD + NEW)[None]


def logits(network: Any) -> Tensor:
    """Of old and new pieces, read from old and new ones."""
    architecture = network.config.architecture
    if architecture == "gpt":
        return network(TOKENS)
    every = torch.ones_like(TOKENS, dtype=torch.bool)
    if architecture == "t5":
        return network.logits(network.decode(TOKENS, network.encode(TOKENS, every), every))
    hidden = network.hidden(TOKENS, torch.zeros_like(TOKENS), every)
    return network.masked_logits(hidden, torch.arange(TOKENS.shape[1])[None])


@pytest.mark.parametrize("name", CONFIGS)
def test_two_tables_compute_what_one_does(name: str) -> None:
    whole, split = (make_network(CONFIGS[name], rows).initialise(1).eval() for rows in (0, NEW))
    assert split.embedding.weight.shape[0] == OLD
    whole.load_state_dict(merge_new_rows(split.state_dict()))
    torch.testing.assert_close(logits(split), logits(whole), rtol=1e-5, atol=1e-5)
    assert logits(split).shape[-1] == OLD + NEW


@pytest.mark.parametrize("name", CONFIGS)
def test_new_rows_alone_get_a_gradient(name: str) -> None:
    network = make_network(CONFIGS[name], NEW).initialise(1)
    freeze_all_but_new_rows(network)
    logits(network).square().sum().backward()
    learning = {name for name, parameter in network.named_parameters() if parameter.grad is not None}
    expected = {"new_rows"} if getattr(network, "head", None) is None else {*NEW_ROWS_OF.values()}
    assert learning == expected
    assert all((network.get_parameter(name).grad.abs().sum(dim=1) > 0).all() for name in learning)
