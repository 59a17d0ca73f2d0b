"""The processor of this machine as an accelerator: its rate is measured, since no data sheet knows it.

What the presets cost: parameters, memory to train them, operations of a token.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from flows.planning.cost_model import THIS, Accelerator
from model.config.fields import Dtype
from model.config.network import BERTConfig, GPTConfig, NetworkConfig, T5Config, read_network_config
from model.config.presets import PRESETS
from model.config.train import TrainConfig
from model.engines.memory import memory_of_rank, rank_sizes
from model.engines.runtime import autocast
from model.nn.factory import flops_per_token, make_network, parameter_count
from model.objectives.synthetic import random_batch
from model.train.micro_batch import machine_memory

MATRIX = 2048

SECONDS = 1.0
"""Seconds of measured work; shorter looks vary by a third from one to the next on a shared machine."""

MOST_TOKENS = 4096
"""Tokens of a measured step at most, so that a look at a large model does not take minutes."""


def measured_processor(threads: int | None = None) -> Accelerator:
    """Peak float32 FLOP/s of square matrix products on this machine's cores, and its memory."""
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        left, right = torch.rand(MATRIX, MATRIX), torch.rand(MATRIX, MATRIX)
        rate = _best_rate(lambda: torch.mm(left, right), 2.0 * MATRIX**3)
        used = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
    return Accelerator(
        THIS, rate, float(machine_memory()), f"measured: products of {MATRIX} x {MATRIX}, {used} threads", "float32"
    )


@dataclass(frozen=True)
class MeasuredStep:
    """Training steps of a network on this machine's processor."""

    tokens_per_second: float
    flops: float
    """Model FLOP/s that the steps sustained."""


def measured_step(config: NetworkConfig, rows: int, threads: int, dtype: Dtype = "float32") -> MeasuredStep:
    """Forward and backward passes of that network for about a second; the optimizer is left out."""
    rows = max(1, min(rows, MOST_TOKENS // config.context))
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

        rate = _best_rate(step, batch.tokens * flops_per_token(config))
    finally:
        torch.set_num_threads(before)
    return MeasuredStep(rate / flops_per_token(config), rate)


def _best_rate(work: Callable[[], object], flops: float) -> float:
    """FLOP/s of the fastest of many repetitions, after one that warms up."""
    work()
    best = float("inf")
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or best == float("inf"):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return flops / best


@dataclass(frozen=True)
class PresetCost:
    """A preset in numbers, with the rows of its own vocabulary."""

    name: str
    architecture: str
    parameters: int
    training_bytes: int
    """Weights, gradients and AdamW's moments; activations come besides."""
    flops_a_token: float


def preset_config(name: str) -> GPTConfig | BERTConfig | T5Config:
    """The network of a preset with the rows that it was published with."""
    preset = PRESETS[name]
    return read_network_config({**preset.values, "vocab_size": preset.vocab_size})


def preset_costs() -> Iterator[PresetCost]:
    """Every preset, in order; counted on the meta device, without memory."""
    for name in PRESETS:
        config = preset_config(name)
        parameters = parameter_count(config)
        memory = memory_of_rank(sizes := rank_sizes(config, TrainConfig()), sizes, TrainConfig())
        training = round(memory.state + memory.gradients)
        yield PresetCost(name, config.architecture, parameters, training, flops_per_token(config))
