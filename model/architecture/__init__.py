"""What a network is made of, as frozen models: one for each architecture, told apart by their tag."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag, TypeAdapter

from model.architecture.bert import BERTConfig
from model.architecture.gpt import GPTConfig
from model.architecture.t5 import T5Config

__all__ = [
    "OBJECTIVE_OF",
    "BERTConfig",
    "GPTConfig",
    "NetworkConfig",
    "T5Config",
    "read_network_config",
    "times_as_wide",
]


def _architecture(values: Any) -> str:
    """The tag of a configuration; without one it is that of a GPT, which had none once."""
    found = values.get("architecture", "gpt") if isinstance(values, dict) else getattr(values, "architecture", "gpt")
    return str(found)


NetworkConfig = Annotated[
    Annotated[GPTConfig, Tag("gpt")] | Annotated[BERTConfig, Tag("bert")] | Annotated[T5Config, Tag("t5")],
    Discriminator(
        _architecture,
        custom_error_type="architecture",
        custom_error_message="architecture is gpt, bert or t5",
    ),
]
"""One of the architectures, told apart by `architecture`."""
_NETWORK: TypeAdapter[GPTConfig | BERTConfig | T5Config] = TypeAdapter(NetworkConfig)
OBJECTIVE_OF = {"gpt": "causal_lm", "bert": "masked_lm", "t5": "span_corruption"}
"""What rows each architecture is trained on."""


def times_as_wide(config: "GPTConfig | BERTConfig | T5Config") -> float:
    """A network's width as a multiple of the one that its learning rate was chosen for; 1 where that is its own."""
    return config.times_as_wide if isinstance(config, GPTConfig) else 1.0


def read_network_config(values: Any) -> GPTConfig | BERTConfig | T5Config:
    """The configuration that a description of a model holds; raises pydantic's ValidationError for wrong values."""
    return _NETWORK.validate_python(values)
