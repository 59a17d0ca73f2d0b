"""Measure the speed of this machine's processor, and count the cost of each model preset."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from flows.planning.cost_model import THIS
from model.config.accelerators import Accelerator
from model.config.fields import Dtype
from model.config.machine import machine_memory
from model.config.network import BERTConfig, GPTConfig, NetworkConfig, T5Config, read_network_config
from model.config.presets import PRESETS
from model.config.train import TrainConfig
from model.engines.memory import memory_of_rank
from model.engines.products import fastest_products
from model.engines.runtime import autocast
from model.engines.sizes import rank_sizes
from model.nn.factory import flops_per_token, make_network, parameter_count
from model.objectives.synthetic import random_batch

MATRIX_SIZE = 2048

MEASUREMENT_SECONDS = 1.0
"""Duration of a measurement; shorter ones vary by a third on a shared machine."""

MAX_TOKENS = 4096
"""Tokens of a measured step, so that measuring a large model does not take minutes."""


def measured_processor() -> Accelerator:
    """Measure the float32 FLOP/s of square matrix products on this machine's cores, and its memory."""
    left, right = torch.rand(MATRIX_SIZE, MATRIX_SIZE), torch.rand(MATRIX_SIZE, MATRIX_SIZE)
    with fastest_products():
        rate = _best_rate(lambda: torch.mm(left, right), 2.0 * MATRIX_SIZE**3)
    source = f"measured: products of {MATRIX_SIZE} x {MATRIX_SIZE}, {torch.get_num_threads()} threads"
    return Accelerator(THIS, {"float32": rate}, float(machine_memory()), source, "float32")


def _best_rate(work: Callable[[], object], flops: float) -> float:
    """Return the FLOP/s of the fastest of many repetitions, after a warm-up."""
    work()
    best = float("inf")
    end = time.perf_counter() + MEASUREMENT_SECONDS
    while time.perf_counter() < end or best == float("inf"):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return flops / best


@dataclass(frozen=True)
class MeasuredStep:
    """Speed of training steps of a network on this machine's processor."""

    tokens_per_second: float
    flops: float
    """Model FLOP/s."""


def measured_step(config: NetworkConfig, rows: int, threads: int, dtype: Dtype) -> MeasuredStep:
    """Measure forward and backward passes of a network for about a second, without the optimizer."""
    rows = max(1, min(rows, MAX_TOKENS // config.context))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        network = make_network(config).initialise(0)
        batch = random_batch(config, rows)

        def step() -> None:
            with autocast(dtype, network.embedding.weight.device):
                nats = batch.objective.sums(network, batch.rows).nats
            sum(nats).backward()  # pyright: ignore[reportAttributeAccessIssue]
            network.zero_grad(set_to_none=True)

        with fastest_products(dtype):
            rate = _best_rate(step, batch.tokens * flops_per_token(config))
    finally:
        torch.set_num_threads(before)
    return MeasuredStep(rate / flops_per_token(config), rate)


@dataclass(frozen=True)
class PresetCost:
    """Parameters, memory and FLOPs of a preset, with the vocabulary size of its publication."""

    name: str
    architecture: str
    parameters: int
    training_bytes: int
    """Weights, gradients and AdamW's moments, without activations."""
    flops_a_token: float


def preset_config(name: str) -> GPTConfig | BERTConfig | T5Config:
    """Return the network of a preset with the vocabulary size of its publication."""
    preset = PRESETS[name]
    return read_network_config({**preset.values, "vocab_size": preset.vocab_size})


def preset_costs() -> Iterator[PresetCost]:
    """Yield the cost of every preset in order, counted on the meta device, which allocates no memory."""
    for name in PRESETS:
        config = preset_config(name)
        parameters = parameter_count(config)
        memory = memory_of_rank(rank_sizes(config, TrainConfig()), TrainConfig())
        training = round(memory.state + memory.gradients)
        yield PresetCost(name, config.architecture, parameters, training, flops_per_token(config))
