"""What the presets cost: parameters, memory to train them, operations of a token."""

from collections.abc import Iterator
from dataclasses import dataclass

from model.architecture import BERTConfig, GPTConfig, T5Config, read_network_config
from model.networks import flops_per_token, parameter_count
from model.presets.published import PRESETS

TRAINING_BYTES = 16
"""Bytes a parameter takes in float32 with AdamW: itself, its gradient and two moments (Rajbhandari et al. 2020,
section 3.1, counts as many for half precision with a float32 copy). Activations come besides."""


@dataclass(frozen=True)
class PresetCost:
    """A preset in numbers, with the rows of its own vocabulary."""

    name: str
    architecture: str
    parameters: int
    training_bytes: int
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
        yield PresetCost(name, config.architecture, parameters, TRAINING_BYTES * parameters, flops_per_token(config))
