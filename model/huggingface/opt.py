"""OPT (Zhang et al. 2022), as `OPTForCausalLM`; OPT-350M with its narrow embedding, too."""

from typing import Any

from model.config.network import GPTConfig
from model.huggingface.base import Family, WeightSource, linear, name_of, read_named, write_named
from model.huggingface.settings import Settings

POSITION_OFFSET = 2
"""Rows of OPT's table of positions before that of the first token, left from a program that counted padding."""

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh"}


_NAMES = {
    "vocab_size": ("vocab_size", 50_272),
    "context": ("max_position_embeddings", 2048),
    "layers": ("num_hidden_layers", 12),
    "heads": ("num_attention_heads", 12),
    "width": ("hidden_size", 768),
    "ffn_width": ("ffn_dim", 3072),
    "tied_head": ("tie_word_embeddings", True),
}


def opt_weight_map(config: GPTConfig) -> dict[str, WeightSource]:
    body, biases = "model.decoder", config.biases
    positions = WeightSource(f"{body}.embed_positions.weight", leading_rows=POSITION_OFFSET - config.position_offset)
    weight_map = {
        "embedding.weight": WeightSource(f"{body}.embed_tokens.weight"),
        "embedding_positions.weight": positions,
    }
    if config.embedding_width is not None:
        weight_map |= linear("from_embedding", f"{body}.project_in", biases=False)
        weight_map |= linear("head_projection", f"{body}.project_out", biases=False)
    if config.norm_position == "pre":
        weight_map |= linear("final_norm", f"{body}.final_layer_norm", biases=biases)
    if not config.tied_head:
        weight_map["head.weight"] = WeightSource("lm_head.weight")
    for layer in range(config.layers):
        ours, theirs = f"blocks.{layer}", f"{body}.layers.{layer}"
        weight_map |= linear(f"{ours}.attention_norm", f"{theirs}.self_attn_layer_norm", biases=biases)
        for part in ("query", "key", "value"):
            weight_map |= linear(f"{ours}.attention_{part}", f"{theirs}.self_attn.{part[0]}_proj", biases=biases)
        weight_map |= linear(f"{ours}.attention_out", f"{theirs}.self_attn.out_proj", biases=biases)
        weight_map |= linear(f"{ours}.mlp_norm", f"{theirs}.final_layer_norm", biases=biases)
        weight_map |= linear(f"{ours}.mlp_in", f"{theirs}.fc1", biases=biases)
        weight_map |= linear(f"{ours}.mlp_out", f"{theirs}.fc2", biases=biases)
    return weight_map


def _read(settings: Settings) -> GPTConfig:
    settings.expect("enable_bias", True)
    settings.expect("layer_norm_elementwise_affine", True)
    settings.expect("_remove_final_layer_norm", False)
    named = read_named(settings, _NAMES)
    narrow = settings.get("word_embed_proj_dim", named["width"])
    return settings.build(
        GPTConfig,
        **named,
        embedding_width=None if narrow == named["width"] else narrow,
        norm="layernorm",
        qk_norm="none",
        biases=True,
        positions="learned",
        position_offset=POSITION_OFFSET,
        activation=settings.lookup("activation_function", _ACTIVATIONS, "relu"),
        norm_position="pre" if settings.get("do_layer_norm_before", True) else "post",
    )


def _write(config: GPTConfig) -> dict[str, Any]:
    return {
        **write_named(config, _NAMES),
        "word_embed_proj_dim": config.table_width,
        "activation_function": name_of(config.activation, _ACTIVATIONS, "relu"),
        "do_layer_norm_before": config.norm_position == "pre",
        "dropout": config.dropout,
        "attention_dropout": config.dropout,
        "init_std": config.table_std,
    }


OPT = Family(
    "opt",
    "OPTForCausalLM",
    _read,
    _write,
    opt_weight_map,
    {"lm_head.weight": "model.decoder.embed_tokens.weight"},
    body="model.",
)
