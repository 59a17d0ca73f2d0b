"""Decoders before LLaMA: GPT-2 (Radford et al. 2019), GPT-NeoX (Black et al. 2022) and OPT (Zhang et al. 2022)."""

from typing import Any

from model.config.network import GPTConfig
from model.huggingface.base import Activations, Family, Modules, WeightSource, fused_attention, in_blocks
from model.huggingface.settings import Settings

POSITION_OFFSET = 2
"""Rows of OPT's table of positions before that of the first token, left from a program that counted padding."""

_FIXED = {"norm": "layernorm", "qk_norm": "none", "biases": True}


def _gpt2_modules(config: GPTConfig) -> Modules:
    block = {
        "attention_norm": "ln_1",
        **fused_attention("attn.c_attn", transposed=True),
        "attention_out": WeightSource("attn.c_proj", transposed=True),
        "mlp_norm": "ln_2",
        "mlp_in": WeightSource("mlp.c_fc", transposed=True),
        "mlp_out": WeightSource("mlp.c_proj", transposed=True),
    }
    return {
        "embedding": "transformer.wte",
        "embedding_positions": WeightSource("transformer.wpe", leading_rows=-config.position_offset),
        "final_norm": "transformer.ln_f",
        "head": "lm_head",
        **in_blocks("blocks", "transformer.h.{}", block),
    }


GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    GPTConfig,
    {
        "vocab_size": ("vocab_size", 50_257),
        "context": ("n_positions", 1024),
        "layers": ("n_layer", 12),
        "heads": ("n_head", 12),
        "width": ("n_embd", 768),
        "norm_eps": ("layer_norm_epsilon", 1e-5),
        "tied_head": ("tie_word_embeddings", True),
    },
    Activations(
        "activation_function",
        "gelu_new",
        {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu"},
    ),
    _gpt2_modules,
    {"lm_head.weight": "transformer.wte.weight"},
    body="transformer.",
    no_weights=r"\.attn\.(masked_)?bias$",
    expected={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    fixed={**_FIXED, "positions": "learned"},
    written={
        "n_inner": "hidden",
        "embd_pdrop": "dropout",
        "attn_pdrop": "dropout",
        "resid_pdrop": "dropout",
        "initializer_range": "table_std",
    },
    read_more=lambda settings, named: {"ffn_width": settings.get("n_inner", 4 * named["width"])},
)


def _neox_modules(config: GPTConfig) -> Modules:
    block = {
        "attention_norm": "input_layernorm",
        **fused_attention("attention.query_key_value", heads=config.heads),
        "attention_out": "attention.dense",
        "mlp_norm": "post_attention_layernorm",
        "mlp_in": "mlp.dense_h_to_4h",
        "mlp_out": "mlp.dense_4h_to_h",
    }
    return {
        "embedding": "gpt_neox.embed_in",
        "final_norm": "gpt_neox.final_layer_norm",
        "head": "embed_out",
        **in_blocks("blocks", "gpt_neox.layers.{}", block),
    }


def _read_neox(settings: Settings, named: dict[str, Any]) -> dict[str, Any]:
    del named
    base, scaling = settings.rope()
    if scaling is not None:
        raise settings.unsupported("rope_scaling", scaling.kind, "none with GPTNeoXForCausalLM")
    rope = settings.get("rope_parameters", None) or settings.get("rope_scaling", None) or {}
    share = rope.get("partial_rotary_factor", settings.get("rotary_pct", 0.25))
    return {"rotary_base": base, "rotary_share": float(share)}


NEOX = Family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    GPTConfig,
    {
        "vocab_size": ("vocab_size", 50_432),
        "context": ("max_position_embeddings", 2048),
        "layers": ("num_hidden_layers", 44),
        "heads": ("num_attention_heads", 64),
        "width": ("hidden_size", 6144),
        "ffn_width": ("intermediate_size", 24_576),
        "norm_eps": ("layer_norm_eps", 1e-5),
        "parallel_residual": ("use_parallel_residual", True),
        "tied_head": ("tie_word_embeddings", False),
    },
    Activations(
        "hidden_act", "gelu", {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "relu": "relu"}
    ),
    _neox_modules,
    {"embed_out.weight": "gpt_neox.embed_in.weight"},
    body="gpt_neox.",
    no_weights=r"\.attention\.(masked_bias|bias|rotary_emb\.inv_freq)$",
    expected={"attention_bias": True},
    fixed=_FIXED,
    written={
        "rotary_pct": "rotary_share",
        "rotary_emb_base": "rotary_base",
        "attention_dropout": "dropout",
        "hidden_dropout": "dropout",
        "initializer_range": "table_std",
    },
    read_more=_read_neox,
)


def _opt_modules(config: GPTConfig) -> Modules:
    positions = WeightSource("model.decoder.embed_positions", leading_rows=POSITION_OFFSET - config.position_offset)
    block = {
        "attention_norm": "self_attn_layer_norm",
        "attention_query": "self_attn.q_proj",
        "attention_key": "self_attn.k_proj",
        "attention_value": "self_attn.v_proj",
        "attention_out": "self_attn.out_proj",
        "mlp_norm": "final_layer_norm",
        "mlp_in": "fc1",
        "mlp_out": "fc2",
    }
    return {
        "embedding": "model.decoder.embed_tokens",
        "embedding_positions": positions,
        "from_embedding": "model.decoder.project_in",
        "head_projection": "model.decoder.project_out",
        "final_norm": "model.decoder.final_layer_norm",
        "head": "lm_head",
        **in_blocks("blocks", "model.decoder.layers.{}", block),
    }


def _read_opt(settings: Settings, named: dict[str, Any]) -> dict[str, Any]:
    narrow = settings.get("word_embed_proj_dim", named["width"])
    return {
        "embedding_width": None if narrow == named["width"] else narrow,
        "norm_position": "pre" if settings.get("do_layer_norm_before", True) else "post",
    }


OPT = Family(
    "opt",
    "OPTForCausalLM",
    GPTConfig,
    {
        "vocab_size": ("vocab_size", 50_272),
        "context": ("max_position_embeddings", 2048),
        "layers": ("num_hidden_layers", 12),
        "heads": ("num_attention_heads", 12),
        "width": ("hidden_size", 768),
        "ffn_width": ("ffn_dim", 3072),
        "tied_head": ("tie_word_embeddings", True),
    },
    Activations("activation_function", "relu", {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh"}),
    _opt_modules,
    {"lm_head.weight": "model.decoder.embed_tokens.weight"},
    body="model.",
    expected={"enable_bias": True, "layer_norm_elementwise_affine": True, "_remove_final_layer_norm": False},
    fixed={**_FIXED, "positions": "learned", "position_offset": POSITION_OFFSET},
    written={
        "word_embed_proj_dim": "table_width",
        "dropout": "dropout",
        "attention_dropout": "dropout",
        "init_std": "table_std",
    },
    read_more=_read_opt,
    write_more=lambda config: {"do_layer_norm_before": config.norm_position == "pre"},
)
