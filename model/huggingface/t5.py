"""T5 and T5 v1.1 (Raffel et al. 2020), as `T5ForConditionalGeneration`."""

from typing import Any

from model.config.block import DISTANCE_BUCKETS, FARTHEST_DISTANCE, is_gated
from model.config.network import T5Config
from model.huggingface.base import Activations, Family, Modules, in_blocks
from model.huggingface.settings import Settings

CONTEXT = 512
"""Tokens of the encoder's input in training, which `config.json` does not record."""

_DISTANCES = {
    "relative_attention_num_buckets": DISTANCE_BUCKETS,
    "relative_attention_max_distance": FARTHEST_DISTANCE,
}


def _modules(config: T5Config) -> Modules:
    stacks: dict[str, Any] = {}
    for stack, mlp_place in (("encoder", 1), ("decoder", 2)):
        mlp = f"{mlp_place}.DenseReluDense"
        ins = {"mlp_gate": f"{mlp}.wi_0", "mlp_in": f"{mlp}.wi_1"}
        block = {
            "attention_norm": "0.layer_norm",
            **_attention("attention", "0.SelfAttention"),
            "cross_attention_norm": "1.layer_norm",
            **_attention("cross_attention", "1.EncDecAttention"),
            "mlp_norm": f"{mlp_place}.layer_norm",
            **(ins if is_gated(config.activation) else {"mlp_in": f"{mlp}.wi"}),
            "mlp_out": f"{mlp}.wo",
        }
        distances = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
        stacks |= {f"embedding_{stack}_distances": distances, f"{stack}_norm": f"{stack}.final_layer_norm"}
        stacks |= in_blocks(f"{stack}_blocks", f"{stack}.block.{{}}.layer", block)
    return {"embedding": "shared", "head": "lm_head", **stacks}


def _attention(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}_{part}": f"{theirs}.{part[0]}" for part in ("query", "key", "value", "out")}


def _read(settings: Settings, named: dict[str, Any]) -> dict[str, Any]:
    settings.expect("num_decoder_layers", named["layers"])
    # Some files wrongly say that the head is tied; those also say that its input is not scaled.
    tied = settings.get("tie_word_embeddings", True) and settings.get("scale_decoder_outputs", True)
    return {"head_size": settings.get("d_kv", 64), "tied_head": tied}


def _write(config: T5Config) -> dict[str, Any]:
    return {"num_decoder_layers": config.layers, "d_kv": config.block(decoder=False).head_size, **_DISTANCES}


T5_FAMILY = Family(
    "t5",
    "T5ForConditionalGeneration",
    T5Config,
    {
        "vocab_size": ("vocab_size", 32_128),
        "context": ("n_positions", CONTEXT),
        "layers": ("num_layers", 6),
        "heads": ("num_heads", 8),
        "width": ("d_model", 512),
        "ffn_width": ("d_ff", 2048),
        "norm_eps": ("layer_norm_epsilon", 1e-6),
    },
    Activations(
        "feed_forward_proj",
        "relu",
        {"relu": "relu", "gelu": "gelu", "gated-gelu": "geglu_tanh", "gated-silu": "swiglu"},
    ),
    _modules,
    {"lm_head.weight": "shared.weight"},
    # Encoder and decoder read the shared embedding.
    {"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"},
    no_weights=r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",
    expected=_DISTANCES,
    written={"tie_word_embeddings": "tied_head", "dropout_rate": "dropout"},
    read_more=_read,
    write_more=_write,
)
