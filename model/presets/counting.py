"""What the presets cost: parameters, memory to train them, operations of a token."""

from collections.abc import Iterator
from dataclasses import dataclass

from model.architecture import BERTConfig, GPTConfig, T5Config, read_network_config
from model.config import TrainConfig
from model.memory import sizes_of, spread
from model.networks import flops_per_token, parameter_count
from model.presets.published import PRESETS


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
        memory = spread(sizes := sizes_of(config, TrainConfig()), sizes, TrainConfig())
        training = round(memory.state + memory.gradients)
        yield PresetCost(name, config.architecture, parameters, training, flops_per_token(config))
