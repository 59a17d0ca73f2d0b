"""Decoders of LLaMA's shape: Llama, Mistral, Qwen 2 and 3, OLMo 2, and all of their classes (TinyLlama, SmolLM2), and
with experts Mixtral, OLMoE and Qwen 3 MoE.

RMSNorm, gated MLP and rotary positions are common to them (Touvron et al. 2023). They differ in heads of keys and
values, biases, norms of queries and keys, the place of norms, windows, and experts.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from model.config.block import NormPosition, QKNorm
from model.config.network import GPTConfig
from model.huggingface.base import Activations, Family, Modules, Names, WeightSource, in_blocks
from model.huggingface.settings import Settings

_ACTIVATIONS = Activations(
    "hidden_act",
    "silu",
    {"silu": "swiglu", "gelu": "geglu", "gelu_new": "geglu_tanh", "gelu_pytorch_tanh": "geglu_tanh"},
)


@dataclass(frozen=True)
class _Experts:
    """How a class with experts names them, and its defaults."""

    count_key: str
    count: int
    per_token: int
    module: str
    """Name of the router and the experts within a block."""
    names: tuple[str, str, str]
    """Matrices of gate, input and output."""
    ffn_key: str = "intermediate_size"
    ffn_width: int = 0
    has_normalisation: bool = False
    """Whether `norm_topk_prob` decides if the weights of a token's experts sum to 1; otherwise they do."""


@dataclass(frozen=True)
class _Shape:
    """What is particular to one class, and its defaults for settings that a file may lack."""

    model_type: str
    class_name: str
    sizes: Mapping[str, int]
    """Defaults: vocab_size, hidden_size, intermediate_size, max_position_embeddings, and where the class has one that
    is not derived, num_key_value_heads or head_dim."""
    norm_eps: float = 1e-6
    qk_norm: QKNorm = "none"
    norm_position: NormPosition = "pre"
    qkv_biases: bool | None = None
    """Whether queries, keys and values have biases and nothing else has; None where `attention_bias` decides."""
    has_mlp_bias: bool = False
    """Whether the class has `mlp_bias`."""
    experts: _Experts | None = None
    window: str = ""
    """`all`: `sliding_window` holds for every block (Mistral); `later`: from `max_window_layers` on, where
    `use_sliding_window` is set (Qwen). Other classes read no window."""
    window_size: int | None = None
    """Default of `sliding_window`; null in a file is no window."""
    rotary_base: float = 10_000.0


_LLAMA = _Shape(
    "llama",
    "LlamaForCausalLM",
    {"vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "max_position_embeddings": 2048},
    has_mlp_bias=True,
)
_MISTRAL = _Shape(
    "mistral",
    "MistralForCausalLM",
    {"vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 14_336, "max_position_embeddings": 131_072,
     "num_key_value_heads": 8},
    qkv_biases=False,
    window="all",
    window_size=4096,
)  # fmt: skip
_QWEN2 = _Shape(
    "qwen2",
    "Qwen2ForCausalLM",
    {"vocab_size": 151_936, "hidden_size": 4096, "intermediate_size": 22_016, "max_position_embeddings": 32_768,
     "num_key_value_heads": 32},
    qkv_biases=True,
    window="later",
    window_size=4096,
)  # fmt: skip
_QWEN3 = _Shape(
    "qwen3",
    "Qwen3ForCausalLM",
    {"vocab_size": 151_936, "hidden_size": 4096, "intermediate_size": 22_016, "max_position_embeddings": 32_768,
     "num_key_value_heads": 32, "head_dim": 128},
    qk_norm="head",
    window="later",
    window_size=4096,
)  # fmt: skip
_OLMO2 = _Shape(
    "olmo2",
    "Olmo2ForCausalLM",
    {"vocab_size": 50_304, "hidden_size": 4096, "intermediate_size": 11_008, "max_position_embeddings": 2048},
    norm_eps=1e-5,
    qk_norm="all",
    norm_position="branch",
)


_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
_MIXTRAL = replace(
    _MISTRAL,
    model_type="mixtral",
    class_name="MixtralForCausalLM",
    norm_eps=1e-5,
    window_size=None,
    rotary_base=1e6,
    experts=_Experts("num_local_experts", 8, 2, "block_sparse_moe", ("w1", "w3", "w2")),
)
_OLMOE = _Shape(
    "olmoe",
    "OlmoeForCausalLM",
    {"vocab_size": 50_304, "hidden_size": 2048, "intermediate_size": 2048, "max_position_embeddings": 4096,
     "num_hidden_layers": 16, "num_attention_heads": 16},
    norm_eps=1e-5,
    qk_norm="all",
    qkv_biases=False,
    experts=_Experts("num_experts", 64, 8, "mlp", _PROJECTIONS, has_normalisation=True),
)  # fmt: skip
_QWEN3_MOE = replace(
    _QWEN3,
    model_type="qwen3_moe",
    class_name="Qwen3MoeForCausalLM",
    sizes={"vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 32_768,
           "num_hidden_layers": 24, "num_key_value_heads": 4},
    qkv_biases=False,
    experts=_Experts(
        "num_experts", 128, 8, "mlp", _PROJECTIONS, "moe_intermediate_size", 768, has_normalisation=True
    ),
    window="",
)  # fmt: skip


def _modules(shape: _Shape, config: GPTConfig) -> Modules:
    norms = ("input_layernorm", "post_attention_layernorm")
    if shape.norm_position == "branch":
        norms = ("post_attention_layernorm", "post_feedforward_layernorm")
    block: dict[str, str | WeightSource] = {
        "attention_norm": norms[0],
        "attention_query": "self_attn.q_proj",
        "attention_key": "self_attn.k_proj",
        "attention_value": "self_attn.v_proj",
        "query_norm": "self_attn.q_norm",
        "key_norm": "self_attn.k_norm",
        "attention_out": "self_attn.o_proj",
        "mlp_norm": norms[1],
        "mlp_gate": "mlp.gate_proj",
        "mlp_in": "mlp.up_proj",
        "mlp_out": "mlp.down_proj",
    }
    if shape.experts is not None and config.experts is not None:
        module = shape.experts.module
        block["experts.router"] = f"{module}.gate"
        for part, name in zip(("gate", "in", "out"), shape.experts.names, strict=True):
            source = WeightSource(f"{module}.experts.{{}}.{name}.weight", experts=config.experts)
            block[f"experts.mlp_{part}"] = source
    return {
        "embedding": "model.embed_tokens",
        "final_norm": "model.norm",
        "head": "lm_head",
        **in_blocks("blocks", "model.layers.{}", block),
    }


def _names(shape: _Shape) -> Names:
    sizes = shape.sizes
    return {
        "vocab_size": ("vocab_size", sizes["vocab_size"]),
        "context": ("max_position_embeddings", sizes["max_position_embeddings"]),
        "layers": ("num_hidden_layers", sizes.get("num_hidden_layers", 32)),
        "heads": ("num_attention_heads", sizes.get("num_attention_heads", 32)),
        "width": ("hidden_size", sizes["hidden_size"]),
        "norm_eps": ("rms_norm_eps", shape.norm_eps),
        "tied_head": ("tie_word_embeddings", False),
    }


def _read(shape: _Shape, settings: Settings, named: dict[str, Any]) -> dict[str, Any]:
    heads, context = named["heads"], named["context"]
    biases, qkv_biases = _read_biases(shape, settings)
    base, scaling = settings.rope(shape.rotary_base)
    if scaling is not None and scaling.original_context is not None and context == scaling.original_context:
        # This file says how long texts were before scaling.
        context = int(scaling.factor * scaling.original_context)
    return {
        "context": context,
        "kv_heads": settings.get("num_key_value_heads", shape.sizes.get("num_key_value_heads", heads)),
        "head_size": settings.get("head_dim", shape.sizes.get("head_dim", named["width"] // heads)),
        "biases": biases,
        "qkv_biases": None if qkv_biases == biases else qkv_biases,
        "rotary_base": base,
        "rotary_scaling": scaling,
        **_read_window(shape, settings),
        **_read_experts(shape, settings),
    }


def _read_biases(shape: _Shape, settings: Settings) -> tuple[bool, bool]:
    """Return whether matrices have biases, and whether queries, keys and values have."""
    if shape.qkv_biases is not None:
        return False, shape.qkv_biases
    attention = bool(settings.get("attention_bias", False))
    mlp = bool(settings.get("mlp_bias", False)) if shape.has_mlp_bias else False
    if mlp != attention:
        raise settings.unsupported("attention_bias", attention, f"the value of mlp_bias, which is {mlp}")
    return mlp, attention


def _read_experts(shape: _Shape, settings: Settings) -> dict[str, Any]:
    """Return the size of the MLP, and how many of them there are."""
    theirs = shape.experts
    if theirs is None:
        return {"ffn_width": settings.get("intermediate_size", shape.sizes["intermediate_size"])}
    for name in ("attention_bias", "use_sliding_window"):
        settings.expect(name, False)
    settings.expect("decoder_sparse_step", 1)
    settings.expect("mlp_only_layers", [])
    settings.expect("clip_qkv", None)
    count = settings.get(theirs.count_key, settings.get("num_local_experts", theirs.count))
    return {
        "ffn_width": settings.get(theirs.ffn_key, theirs.ffn_width or shape.sizes["intermediate_size"]),
        "experts": count,
        "experts_per_token": settings.get("num_experts_per_tok", theirs.per_token),
        "experts_sum_to_one": not theirs.has_normalisation or bool(settings.get("norm_topk_prob", False)),
    }


def _read_window(shape: _Shape, settings: Settings) -> dict[str, Any]:
    """Return `window` and the first block that has it."""
    window = settings.get("sliding_window", None if settings.has("sliding_window") else shape.window_size)
    is_read = shape.window == "all" or (shape.window == "later" and settings.get("use_sliding_window", False))
    if window is None or not is_read:
        return {}
    begin = settings.get("max_window_layers", 28) if shape.window == "later" else 0
    if (kinds := settings.get("layer_types", None)) is not None:
        begin = kinds.index("sliding_attention") if "sliding_attention" in kinds else len(kinds)
        if "full_attention" in kinds[begin:] or (begin and shape.window == "all"):
            known = "windows in all blocks" if shape.window == "all" else "windows from one block on to the last"
            raise settings.unsupported("layer_types", kinds, known)
    return {} if begin >= settings.get("num_hidden_layers", 32) else {"window": window, "window_from_layer": begin}


def _write(shape: _Shape, config: GPTConfig) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "num_key_value_heads": config.kv_heads or config.heads,
        "intermediate_size": config.hidden,
        **_write_rope(config),
    }
    if shape.model_type not in ("olmo2", "olmoe") or config.size_of_head * config.heads != config.width:
        settings["head_dim"] = config.size_of_head
    if shape.experts is not None:
        settings |= _write_experts(shape.experts, config)
    if shape.qkv_biases is None:
        settings["attention_bias"] = config.biases and shape.has_mlp_bias
    if shape.has_mlp_bias:
        settings["mlp_bias"] = config.biases
    if shape.window:
        settings["sliding_window"] = config.window
    if shape.window == "later":
        settings["use_sliding_window"] = config.window is not None
        settings["max_window_layers"] = config.layers if config.window is None else config.window_from_layer
    if config.rotary_scaling is not None and config.rotates_by_length:
        settings["max_position_embeddings"] = config.rotary_scaling.original_context
    return settings


def _write_experts(theirs: _Experts, config: GPTConfig) -> dict[str, Any]:
    settings: dict[str, Any] = {
        theirs.count_key: config.experts or theirs.count,
        "num_experts_per_tok": config.experts_per_token,
        "router_aux_loss_coef": config.balance,
        theirs.ffn_key: config.hidden,
    }
    if theirs.has_normalisation:
        settings["norm_topk_prob"] = config.experts_sum_to_one
    return settings


def _write_rope(config: GPTConfig) -> dict[str, Any]:
    """Return base and scaling under the names of today's `transformers`, and under those of version 4."""
    scaling = config.rotary_scaling
    if scaling is None:
        default = {"rope_type": "default", "rope_theta": config.rotary_base}
        return {"rope_theta": config.rotary_base, "rope_parameters": default}
    parameters: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind in ("llama3", "yarn"):
        parameters["original_max_position_embeddings"] = scaling.original_context
    if scaling.kind == "llama3":
        parameters["low_freq_factor"] = scaling.low_frequency_factor
        parameters["high_freq_factor"] = scaling.high_frequency_factor
    if scaling.kind == "yarn":
        parameters |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
        if scaling.attention_factor is not None:
            parameters["attention_factor"] = scaling.attention_factor
    return {
        "rope_theta": config.rotary_base,
        "rope_scaling": parameters,
        "rope_parameters": {**parameters, "rope_theta": config.rotary_base},
    }


def _family(shape: _Shape) -> Family:
    return Family(
        shape.model_type,
        shape.class_name,
        GPTConfig,
        _names(shape),
        _ACTIVATIONS,
        functools.partial(_modules, shape),
        {"lm_head.weight": "model.embed_tokens.weight"},
        body="model.",
        no_weights=r"\.rotary_emb\.inv_freq$",
        fixed={"norm": "rmsnorm", "norm_position": shape.norm_position, "qk_norm": shape.qk_norm},
        written={"attention_dropout": "dropout", "initializer_range": "table_std"},
        read_more=functools.partial(_read, shape),
        write_more=functools.partial(_write, shape),
    )


LLAMA, MISTRAL, QWEN2, QWEN3, OLMO2 = (_family(shape) for shape in (_LLAMA, _MISTRAL, _QWEN2, _QWEN3, _OLMO2))

MIXTRAL, OLMOE, QWEN3_MOE = (_family(shape) for shape in (_MIXTRAL, _OLMOE, _QWEN3_MOE))
