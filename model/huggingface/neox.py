"""GPT-NeoX (Black et al. 2022), as `GPTNeoXForCausalLM`."""

from collections.abc import Mapping
from typing import Any

from model.config.network import GPTConfig
from model.huggingface.base import NO_ALIASES, Family, WeightSource, fused, linear
from model.huggingface.settings import Settings

_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "relu": "relu"}


def neox_weight_map(config: GPTConfig) -> dict[str, WeightSource]:
    """Return the source of each weight of ours."""
    weight_map = {
        "embedding.weight": WeightSource("gpt_neox.embed_in.weight"),
        **linear("final_norm", "gpt_neox.final_layer_norm", biases=True),
    }
    if not config.tied_head:
        weight_map["head.weight"] = WeightSource("embed_out.weight")
    for layer in range(config.layers):
        ours, theirs = f"blocks.{layer}", f"gpt_neox.layers.{layer}"
        projections = [f"{ours}.attention_{part}" for part in ("query", "key", "value")]
        weight_map |= linear(f"{ours}.attention_norm", f"{theirs}.input_layernorm", biases=True)
        weight_map |= fused(projections, f"{theirs}.attention.query_key_value", biases=True, heads=config.heads)
        weight_map |= linear(f"{ours}.attention_out", f"{theirs}.attention.dense", biases=True)
        weight_map |= linear(f"{ours}.mlp_norm", f"{theirs}.post_attention_layernorm", biases=True)
        weight_map |= linear(f"{ours}.mlp_in", f"{theirs}.mlp.dense_h_to_4h", biases=True)
        weight_map |= linear(f"{ours}.mlp_out", f"{theirs}.mlp.dense_4h_to_h", biases=True)
    return weight_map


def _aliases(config: GPTConfig) -> Mapping[str, str]:
    return {"embed_out.weight": "gpt_neox.embed_in.weight"} if config.tied_head else NO_ALIASES


def _read(settings: Settings) -> GPTConfig:
    settings.expect("attention_bias", True)
    base, scaling = settings.rope()
    if scaling is not None:
        raise settings.unsupported("rope_scaling", scaling.kind, "none with GPTNeoXForCausalLM")
    return settings.build(
        GPTConfig,
        vocab_size=settings.get("vocab_size", 50_432),
        context=settings.get("max_position_embeddings", 2048),
        layers=settings.get("num_hidden_layers", 44),
        heads=settings.get("num_attention_heads", 64),
        width=settings.get("hidden_size", 6144),
        ffn_width=settings.get("intermediate_size", 24_576),
        activation=settings.lookup("hidden_act", _ACTIVATIONS, "gelu"),
        norm_eps=settings.get("layer_norm_eps", 1e-5),
        norm="layernorm",
        qk_norm="none",
        biases=True,
        parallel_residual=settings.get("use_parallel_residual", True),
        tied_head=settings.get("tie_word_embeddings", False),
        rotary_base=base,
        rotary_share=settings.rotary_share(0.25),
    )


def _write(config: GPTConfig) -> dict[str, Any]:
    theirs = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "hidden_size": config.width,
        "intermediate_size": config.hidden,
        "hidden_act": theirs.get(config.activation, "gelu"),
        "layer_norm_eps": config.norm_eps,
        "use_parallel_residual": config.parallel_residual,
        "rotary_pct": config.rotary_share,
        "rotary_emb_base": config.rotary_base,
        "tie_word_embeddings": config.tied_head,
        "attention_dropout": config.dropout,
        "hidden_dropout": config.dropout,
        "initializer_range": config.table_std,
    }


NEOX = Family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    _read,
    _write,
    neox_weight_map,
    _aliases,
    body="gpt_neox.",
    no_weights=r"\.attention\.(masked_bias|bias|rotary_emb\.inv_freq)$",
)
