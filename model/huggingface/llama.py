"""LLaMA (Touvron et al. 2023) without grouped queries, as `LlamaForCausalLM`."""

from collections.abc import Mapping
from typing import Any

from model.config.network import GPTConfig
from model.huggingface.base import NO_ALIASES, Family, WeightSource, linear
from model.huggingface.settings import Settings


def llama_config(*, vocab_size: int, context: int, layers: int, heads: int, width: int, ffn_width: int) -> GPTConfig:
    """A GPT of these sizes with LLaMA's choices."""
    return GPTConfig(
        vocab_size=vocab_size,
        context=context,
        layers=layers,
        heads=heads,
        width=width,
        ffn_width=ffn_width,
        activation="swiglu",
        norm="rmsnorm",
        norm_eps=1e-6,
        embedding_norm=False,
        biases=False,
        tied_head=False,
    )


def llama_weight_map(config: GPTConfig) -> dict[str, WeightSource]:
    """Return the source of each weight of ours."""
    weight_map = {
        "embedding.weight": WeightSource(("model.embed_tokens.weight",)),
        "final_norm.weight": WeightSource(("model.norm.weight",)),
    }
    if not config.tied_head:
        weight_map["head.weight"] = WeightSource(("lm_head.weight",))
    for layer in range(config.layers):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        projections = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
        gate_and_value = [f"{theirs}.mlp.{part}_proj" for part in ("gate", "up")]
        weight_map |= linear(f"{ours}.attention_norm", f"{theirs}.input_layernorm", biases=False)
        weight_map |= linear(f"{ours}.attention_in", *projections, biases=config.biases)
        weight_map |= linear(f"{ours}.attention_out", f"{theirs}.self_attn.o_proj", biases=config.biases)
        weight_map |= linear(f"{ours}.mlp_norm", f"{theirs}.post_attention_layernorm", biases=False)
        weight_map |= linear(f"{ours}.mlp_in", *gate_and_value, biases=config.biases)
        weight_map |= linear(f"{ours}.mlp_out", f"{theirs}.mlp.down_proj", biases=config.biases)
    return weight_map


def _aliases(config: GPTConfig) -> Mapping[str, str]:
    return {"lm_head.weight": "model.embed_tokens.weight"} if config.tied_head else NO_ALIASES


def _read(settings: Settings) -> GPTConfig:
    heads, width = settings.get("num_attention_heads", 32), settings.get("hidden_size", 4096)
    settings.expect("num_key_value_heads", heads)
    settings.expect("head_dim", width // heads)
    biases = settings.get("attention_bias", False)
    if settings.get("mlp_bias", False) != biases:
        raise settings.unsupported("mlp_bias", not biases, f"{biases} beside attention_bias = {biases}")
    return settings.build(
        GPTConfig,
        vocab_size=settings.get("vocab_size", 32_000),
        context=settings.get("max_position_embeddings", 2048),
        layers=settings.get("num_hidden_layers", 32),
        heads=heads,
        width=width,
        ffn_width=settings.get("intermediate_size", 11_008),
        activation=settings.lookup("hidden_act", {"silu": "swiglu", "gelu": "geglu", "gelu_new": "geglu_tanh"}, "silu"),
        norm="rmsnorm",
        norm_eps=settings.get("rms_norm_eps", 1e-6),
        embedding_norm=False,
        biases=biases,
        tied_head=settings.get("tie_word_embeddings", False),
        **settings.rope(),
    )


def _write(config: GPTConfig) -> dict[str, Any]:
    gates = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_new"}
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads,
        "hidden_size": config.width,
        "intermediate_size": config.hidden,
        "hidden_act": gates.get(config.activation, "silu"),
        "rms_norm_eps": config.norm_eps,
        "attention_bias": config.biases,
        "mlp_bias": config.biases,
        "tie_word_embeddings": config.tied_head,
        "rope_theta": config.rotary_base,
        "attention_dropout": config.dropout,
        "initializer_range": config.init_std,
    }


LLAMA = Family(
    "llama",
    "LlamaForCausalLM",
    _read,
    _write,
    llama_weight_map,
    _aliases,
    body="model.",
    no_weights=r"\.rotary_emb\.inv_freq$",
)
