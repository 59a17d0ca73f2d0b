"""Compiled and recomputed blocks: the same bits where only memory changes, the same numbers where kernels do."""

from typing import Any

import pytest
import torch

from model.config.network import BERTConfig, GPTConfig, NetworkConfig, T5Config
from model.config.train import TrainConfig
from model.engines import check_engine
from model.engines.runtime import autocast, wrap_blocks
from model.errors import RecipeError
from model.nn.block import Block
from model.nn.factory import Network, make_network
from model.objectives.synthetic import random_batch

SIZES: dict[str, Any] = {"vocab_size": 300, "context": 32, "layers": 3, "heads": 2, "width": 32}
CONFIGS = {"gpt": GPTConfig(**SIZES), "bert": BERTConfig(**SIZES), "t5": T5Config(**SIZES)}


def gradients(network: Network, dtype: Any = "float32", seed: int = 7, rows: int = 4) -> dict[str, torch.Tensor]:
    batch = random_batch(network.config, rows)
    torch.manual_seed(seed)
    with autocast(dtype, torch.device("cpu")):
        nats = sum(batch.objective.sums(network.train(), batch.rows).nats)
    assert isinstance(nats, torch.Tensor)
    nats.backward()
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


def wrapped(config: NetworkConfig, *, compiled: bool = False, recomputed: bool = False) -> Network:
    network = make_network(config).initialise(1)
    wrap_blocks(network, compiled=compiled, recomputed=recomputed)
    return network


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_recomputed_blocks_give_the_same_gradients_bit_for_bit(architecture: str, dropout: float, dtype: str) -> None:
    config = CONFIGS[architecture].model_copy(update={"dropout": dropout})
    kept, again = gradients(wrapped(config), dtype), gradients(wrapped(config, recomputed=True), dtype)
    assert kept.keys() == again.keys()
    assert all(torch.equal(kept[name], again[name]) for name in kept)
    if dropout:
        other = gradients(wrapped(config, recomputed=True), dtype, seed=8)
        assert not torch.equal(other["embedding.weight"], again["embedding.weight"])


def saved_bytes(network: Network) -> int:
    """Of what the forward pass keeps for the backward pass, each storage once."""
    kept: dict[int, int] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    own = sum(p.untyped_storage().nbytes() for p in network.parameters())
    batch = random_batch(network.config, 16)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        sums = batch.objective.sums(network.train(), batch.rows)
    assert sums.nats
    return sum(kept.values()) - own


def test_recomputed_blocks_keep_their_inputs_alone() -> None:
    config = CONFIGS["gpt"].model_copy(update={"layers": 12})
    stream = 16 * 32 * 32 * 4
    kept, again = saved_bytes(wrapped(config)), saved_bytes(wrapped(config, recomputed=True))
    assert kept > 12 * 10 * stream
    assert kept - again > 12 * 9 * stream


@pytest.mark.prove
@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("recomputed", [False, True])
def test_compiled_blocks_compute_the_same_numbers_and_the_same_bits_again(architecture: str, recomputed: bool) -> None:
    config = CONFIGS[architecture]
    torch.use_deterministic_algorithms(True)
    try:
        eager = gradients(wrapped(config))
        compiled, again = (gradients(wrapped(config, compiled=True, recomputed=recomputed)) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(compiled[name], again[name]) for name in eager)
    for name in eager:
        torch.testing.assert_close(compiled[name], eager[name], rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_only_whole_micro_batches_go_through_the_compiler(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_compiled: list[int] = []

    def recorded(forward: Any, **_: Any) -> Any:
        def call(x_BTD: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
            rows_compiled.append(len(x_BTD))
            return forward(x_BTD, *rest, **named)

        return call

    monkeypatch.setattr(torch, "compile", recorded)
    network = make_network(CONFIGS[architecture]).initialise(1)
    wrap_blocks(network, compiled=True, recomputed=False, compiled_rows={4, 8})
    for rows in (1, 4, 3, 8, 5):
        gradients(network, rows=rows)
    blocks = 6 if architecture == "t5" else 3
    assert rows_compiled == [4] * blocks + [8] * blocks


@pytest.mark.prove
def test_a_run_does_not_end_by_the_number_of_its_batch_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_network(CONFIGS["t5"]).initialise(1)
    wrap_blocks(network, compiled=True, recomputed=False, compiled_rows={4})
    # Where PyTorch would give up for good: at the two graphs of encoder and decoder.
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 2)
    torch._dynamo.reset()
    gradients(network, rows=4)
    plain = make_network(CONFIGS["t5"]).initialise(1)
    for rows in (1, 2, 3):
        network.zero_grad()
        plain.zero_grad()
        rest, written = gradients(network, rows=rows), gradients(plain, rows=rows)
        assert all(torch.equal(rest[name], written[name]) for name in written)


def test_names_of_parameters_stay() -> None:
    network, plain = wrapped(CONFIGS["t5"], compiled=True, recomputed=True), make_network(CONFIGS["t5"])
    assert list(network.state_dict()) == list(plain.state_dict())
    assert sum(isinstance(module, Block) for module in network.modules()) == 6


def test_a_missing_compiler_is_reported_before_anything_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    check_engine(TrainConfig())
    with pytest.raises(RecipeError, match="no C\\+\\+ compiler `no-such-compiler`"):
        check_engine(TrainConfig(compile=True))
