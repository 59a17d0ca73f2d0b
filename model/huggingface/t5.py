"""T5 and T5 v1.1 (Raffel et al. 2020), as `T5ForConditionalGeneration`."""

from typing import Any

from model.config.network import DISTANCE_BUCKETS, FARTHEST_DISTANCE, T5Config, is_gated
from model.huggingface.base import Family, WeightSource, linear, name_of, read_named, write_named
from model.huggingface.settings import Settings

CONTEXT = 512
"""Tokens of the encoder's input in training, which `config.json` does not record."""

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gated-gelu": "geglu_tanh", "gated-silu": "swiglu"}


_NAMES = {
    "vocab_size": ("vocab_size", 32_128),
    "context": ("n_positions", CONTEXT),
    "layers": ("num_layers", 6),
    "heads": ("num_heads", 8),
    "width": ("d_model", 512),
    "ffn_width": ("d_ff", 2048),
    "norm_eps": ("layer_norm_epsilon", 1e-6),
}


def t5_weight_map(config: T5Config) -> dict[str, WeightSource]:
    weight_map = {"embedding.weight": WeightSource("shared.weight")}
    if not config.tied_head:
        weight_map["head.weight"] = WeightSource("lm_head.weight")
    for stack in ("encoder", "decoder"):
        distances = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        weight_map[f"embedding_{stack}_distances.weight"] = WeightSource(distances)
        weight_map |= linear(f"{stack}_norm", f"{stack}.final_layer_norm", biases=False)
        for layer in range(config.layers):
            weight_map |= _block_weight_map(
                f"{stack}_blocks.{layer}", f"{stack}.block.{layer}.layer", stack == "decoder", config
            )
    return weight_map


def _block_weight_map(ours: str, theirs: str, is_decoder: bool, config: T5Config) -> dict[str, WeightSource]:
    weight_map = {
        **linear(f"{ours}.attention_norm", f"{theirs}.0.layer_norm", biases=False),
        **_attention_weight_map(f"{ours}.attention", f"{theirs}.0.SelfAttention"),
    }
    if is_decoder:
        weight_map |= linear(f"{ours}.cross_attention_norm", f"{theirs}.1.layer_norm", biases=False)
        weight_map |= _attention_weight_map(f"{ours}.cross_attention", f"{theirs}.1.EncDecAttention")
    place = 2 if is_decoder else 1
    mlp = f"{theirs}.{place}.DenseReluDense"
    ins = {"gate": "wi_0", "in": "wi_1"} if is_gated(config.activation) else {"in": "wi"}
    weight_map |= linear(f"{ours}.mlp_norm", f"{theirs}.{place}.layer_norm", biases=False)
    for part, name in {**ins, "out": "wo"}.items():
        weight_map |= linear(f"{ours}.mlp_{part}", f"{mlp}.{name}", biases=False)
    return weight_map


def _attention_weight_map(ours: str, theirs: str) -> dict[str, WeightSource]:
    weight_map: dict[str, WeightSource] = {}
    for part, name in {"query": "q", "key": "k", "value": "v", "out": "o"}.items():
        weight_map |= linear(f"{ours}_{part}", f"{theirs}.{name}", biases=False)
    return weight_map


def _read(settings: Settings) -> T5Config:
    named = read_named(settings, _NAMES)
    settings.expect("num_decoder_layers", named["layers"])
    settings.expect("relative_attention_num_buckets", DISTANCE_BUCKETS)
    settings.expect("relative_attention_max_distance", FARTHEST_DISTANCE)
    # Some files wrongly say that the head is tied; those also say that its input is not scaled.
    tied = settings.get("tie_word_embeddings", True) and settings.get("scale_decoder_outputs", True)
    return settings.build(
        T5Config,
        **named,
        head_size=settings.get("d_kv", 64),
        activation=settings.lookup("feed_forward_proj", _ACTIVATIONS, "relu"),
        tied_head=tied,
    )


def _write(config: T5Config) -> dict[str, Any]:
    return {
        **write_named(config, _NAMES),
        "num_decoder_layers": config.layers,
        "d_kv": config.block(decoder=False).head_size,
        "feed_forward_proj": name_of(config.activation, _ACTIVATIONS, "relu"),
        "tie_word_embeddings": config.tied_head,
        "relative_attention_num_buckets": DISTANCE_BUCKETS,
        "relative_attention_max_distance": FARTHEST_DISTANCE,
        "dropout_rate": config.dropout,
    }


T5_FAMILY = Family(
    "t5",
    "T5ForConditionalGeneration",
    _read,
    _write,
    t5_weight_map,
    {"lm_head.weight": "shared.weight"},
    # Encoder and decoder read the shared embedding.
    {"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"},
    no_weights=r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",
)
