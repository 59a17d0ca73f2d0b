"""GPT-2 (Radford et al. 2019), as `GPT2LMHeadModel`."""

from typing import Any

from model.config.network import GPTConfig
from model.huggingface.base import Family, WeightSource, fused, linear, name_of, read_named, write_named
from model.huggingface.settings import Settings

_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu"}


_NAMES = {
    "vocab_size": ("vocab_size", 50_257),
    "context": ("n_positions", 1024),
    "layers": ("n_layer", 12),
    "heads": ("n_head", 12),
    "width": ("n_embd", 768),
    "norm_eps": ("layer_norm_epsilon", 1e-5),
    "tied_head": ("tie_word_embeddings", True),
}


def gpt2_weight_map(config: GPTConfig) -> dict[str, WeightSource]:
    weight_map = {
        "embedding.weight": WeightSource("transformer.wte.weight"),
        "embedding_positions.weight": WeightSource("transformer.wpe.weight", leading_rows=-config.position_offset),
        **linear("final_norm", "transformer.ln_f", biases=True),
    }
    if not config.tied_head:
        weight_map["head.weight"] = WeightSource("lm_head.weight")
    for layer in range(config.layers):
        ours, theirs = f"blocks.{layer}", f"transformer.h.{layer}"
        weight_map |= linear(f"{ours}.attention_norm", f"{theirs}.ln_1", biases=True)
        projections = [f"{ours}.attention_{part}" for part in ("query", "key", "value")]
        weight_map |= fused(projections, f"{theirs}.attn.c_attn", transposed=True)
        weight_map |= linear(f"{ours}.attention_out", f"{theirs}.attn.c_proj", biases=True, transposed=True)
        weight_map |= linear(f"{ours}.mlp_norm", f"{theirs}.ln_2", biases=True)
        weight_map |= linear(f"{ours}.mlp_in", f"{theirs}.mlp.c_fc", biases=True, transposed=True)
        weight_map |= linear(f"{ours}.mlp_out", f"{theirs}.mlp.c_proj", biases=True, transposed=True)
    return weight_map


def _read(settings: Settings) -> GPTConfig:
    settings.expect("scale_attn_weights", True)
    settings.expect("scale_attn_by_inverse_layer_idx", False)
    named = read_named(settings, _NAMES)
    return settings.build(
        GPTConfig,
        **named,
        ffn_width=settings.get("n_inner", 4 * named["width"]),
        norm="layernorm",
        qk_norm="none",
        biases=True,
        positions="learned",
        activation=settings.lookup("activation_function", _ACTIVATIONS, "gelu_new"),
    )


def _write(config: GPTConfig) -> dict[str, Any]:
    return {
        **write_named(config, _NAMES),
        "n_inner": config.hidden,
        "activation_function": name_of(config.activation, _ACTIVATIONS, "gelu_new"),
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "initializer_range": config.table_std,
    }


GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    _read,
    _write,
    gpt2_weight_map,
    {"lm_head.weight": "transformer.wte.weight"},
    body="transformer.",
    no_weights=r"\.attn\.(masked_)?bias$",
)
