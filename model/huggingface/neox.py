"""GPT-NeoX (Black et al. 2022), as `GPTNeoXForCausalLM`."""

from typing import Any

from model.config.network import GPTConfig
from model.huggingface.base import Family, WeightSource, fused, linear, name_of, read_named, write_named
from model.huggingface.settings import Settings

_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "relu": "relu"}


_NAMES = {
    "vocab_size": ("vocab_size", 50_432),
    "context": ("max_position_embeddings", 2048),
    "layers": ("num_hidden_layers", 44),
    "heads": ("num_attention_heads", 64),
    "width": ("hidden_size", 6144),
    "ffn_width": ("intermediate_size", 24_576),
    "norm_eps": ("layer_norm_eps", 1e-5),
    "parallel_residual": ("use_parallel_residual", True),
    "tied_head": ("tie_word_embeddings", False),
}


def neox_weight_map(config: GPTConfig) -> dict[str, WeightSource]:
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
        weight_map |= fused(projections, f"{theirs}.attention.query_key_value", heads=config.heads)
        weight_map |= linear(f"{ours}.attention_out", f"{theirs}.attention.dense", biases=True)
        weight_map |= linear(f"{ours}.mlp_norm", f"{theirs}.post_attention_layernorm", biases=True)
        weight_map |= linear(f"{ours}.mlp_in", f"{theirs}.mlp.dense_h_to_4h", biases=True)
        weight_map |= linear(f"{ours}.mlp_out", f"{theirs}.mlp.dense_4h_to_h", biases=True)
    return weight_map


def _read(settings: Settings) -> GPTConfig:
    settings.expect("attention_bias", True)
    base, scaling = settings.rope()
    if scaling is not None:
        raise settings.unsupported("rope_scaling", scaling.kind, "none with GPTNeoXForCausalLM")
    rope = settings.get("rope_parameters", None) or settings.get("rope_scaling", None) or {}
    return settings.build(
        GPTConfig,
        **read_named(settings, _NAMES),
        activation=settings.lookup("hidden_act", _ACTIVATIONS, "gelu"),
        norm="layernorm",
        qk_norm="none",
        biases=True,
        rotary_base=base,
        rotary_share=float(rope.get("partial_rotary_factor", settings.get("rotary_pct", 0.25))),
    )


def _write(config: GPTConfig) -> dict[str, Any]:
    return {
        **write_named(config, _NAMES),
        "hidden_act": name_of(config.activation, _ACTIVATIONS, "gelu"),
        "rotary_pct": config.rotary_share,
        "rotary_emb_base": config.rotary_base,
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
    {"embed_out.weight": "gpt_neox.embed_in.weight"},
    body="gpt_neox.",
    no_weights=r"\.attention\.(masked_bias|bias|rotary_emb\.inv_freq)$",
)
