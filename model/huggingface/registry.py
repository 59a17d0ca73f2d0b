"""All supported classes of `transformers`, and which of them can represent a network of ours."""

from dataclasses import dataclass
from typing import Any

from model.config.network import BERTConfig, GPTConfig, T5Config
from model.errors import RecipeError
from model.huggingface.base import Family
from model.huggingface.bert import BERT_FAMILY, MEGATRON_BERT
from model.huggingface.decoders import GPT2, NEOX, OPT
from model.huggingface.llama_like import LLAMA, MISTRAL, MIXTRAL, OLMO2, OLMOE, QWEN2, QWEN3, QWEN3_MOE
from model.huggingface.settings import Settings
from model.huggingface.t5 import T5_FAMILY

OF_ARCHITECTURE = {
    "gpt": (GPT2, NEOX, LLAMA, QWEN3, QWEN2, MISTRAL, OLMO2, OPT, MIXTRAL, QWEN3_MOE, OLMOE),
    "bert": (BERT_FAMILY, MEGATRON_BERT),
    "t5": (T5_FAMILY,),
}
"""Architecture -> classes that may compute its networks; of several that do, the first is exported."""

FAMILIES = {family.model_type: family for families in OF_ARCHITECTURE.values() for family in families}

OF_TRAINING = {"vocab_size", "dropout", "z_loss", "balance", "init", "init_std", "attend_within_documents"}
"""Settings that do not change what a trained network computes from a text."""


@dataclass(frozen=True)
class Obstacle:
    """A setting of a network that a class of `transformers` cannot represent, and the value that it needs."""

    name: str
    found: Any
    needed: Any


def obstacles(config: GPTConfig | BERTConfig | T5Config, family: Family) -> list[Obstacle]:
    """Return the settings that keep a network out of a family, in order; empty where it fits."""
    ours = _settled(config)
    theirs = _settled(family.read(Settings(family.write(config), family.class_name)))
    without_meaning = OF_TRAINING | _unread(ours)
    return [
        Obstacle(name, getattr(ours, name), getattr(theirs, name))
        for name in type(config).model_fields
        if name not in without_meaning and getattr(ours, name) != getattr(theirs, name)
    ]


def fitting_family(config: GPTConfig | BERTConfig | T5Config) -> Family:
    """Return the family that computes what our network does; RecipeError names the obstacles of the nearest one."""
    tried = [(obstacles(config, family), family) for family in OF_ARCHITECTURE[config.architecture]]
    # GPT-2's class fits all of OPT's networks but one; a network with OPT's table of positions should become an OPT.
    is_opt = isinstance(config, GPTConfig) and config.position_offset > 0
    found, family = min(tried, key=lambda pair: (len(pair[0]), is_opt and pair[1] is not OPT))
    if not found:
        return family
    has = ", ".join(f"{one.name} = {_toml(one.found)}" for one in found)
    needs = ", ".join(f"train.model.{one.name} = {_toml(one.needed)}" for one in found)
    raise RecipeError(
        f"no class of transformers computes this network: it has {has}. The nearest one is {family.class_name}. Train"
        f" with {needs} to be able to export the model."
    )


def _settled(config: Any) -> Any:
    """Return the configuration with derived sizes filled in."""
    sizes: dict[str, Any] = {"ffn_width": config.hidden}
    if isinstance(config, T5Config):
        sizes["head_size"] = config.block(decoder=False).head_size
    if isinstance(config, GPTConfig):
        sizes |= {"head_size": config.size_of_head, "kv_heads": config.kv_heads or config.heads}
        sizes["qkv_biases"] = config.biases if config.qkv_biases is None else config.qkv_biases
    return config.model_copy(update=sizes)


def _unread(config: Any) -> set[str]:
    """Return settings that have no effect given the others; the offset of positions changes names only."""
    if not isinstance(config, GPTConfig):
        return set()
    unread = {"position_offset"}
    if config.experts is None:
        unread |= {"experts_per_token", "experts_sum_to_one"}
    if config.positions != "rotary":
        unread |= {"rotary_share", "rotary_base", "rotary_scaling"}
    return unread


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def settings_of(config: GPTConfig | BERTConfig | T5Config, family: Family) -> dict[str, Any]:
    """Return the content of `config.json`, without the ids of special tokens."""
    return {"model_type": family.model_type, "architectures": [family.class_name], **family.write(config)}
