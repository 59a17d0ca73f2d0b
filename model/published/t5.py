"""T5 and T5 v1.1 (Raffel et al. 2020), as `T5ForConditionalGeneration` names its weights."""

from model.architecture import T5Config
from model.block_shape import is_gated
from model.published.origin import Origin, linear

T5_COPIES = frozenset({"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"})
"""Encoder and decoder read the shared embedding."""
T5_TIED_COPIES = T5_COPIES | {"lm_head.weight"}
"""In the first T5 the head is the embedding too."""


def t5_origins(config: T5Config) -> dict[str, Origin]:
    """Where each weight of ours comes from."""
    origins = {"embedding.weight": Origin(("shared.weight",))}
    if not config.tied_head:
        origins["head.weight"] = Origin(("lm_head.weight",))
    for stack in ("encoder", "decoder"):
        distances = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        origins[f"embedding_{stack}_distances.weight"] = Origin((distances,))
        origins |= linear(f"{stack}_norm", f"{stack}.final_layer_norm", biases=False)
        for layer in range(config.layers):
            origins |= _of_block(f"{stack}_blocks.{layer}", f"{stack}.block.{layer}.layer", stack == "decoder", config)
    return origins


def _of_block(ours: str, theirs: str, is_decoder: bool, config: T5Config) -> dict[str, Origin]:
    attention = f"{theirs}.0.SelfAttention"
    origins = {
        **linear(f"{ours}.attention_norm", f"{theirs}.0.layer_norm", biases=False),
        **linear(f"{ours}.attention_in", *(f"{attention}.{part}" for part in "qkv"), biases=False),
        **linear(f"{ours}.attention_out", f"{attention}.o", biases=False),
    }
    if is_decoder:
        cross = f"{theirs}.1.EncDecAttention"
        origins |= linear(f"{ours}.cross_attention_norm", f"{theirs}.1.layer_norm", biases=False)
        origins |= linear(f"{ours}.cross_attention_query", f"{cross}.q", biases=False)
        origins |= linear(f"{ours}.cross_attention_memory", f"{cross}.k", f"{cross}.v", biases=False)
        origins |= linear(f"{ours}.cross_attention_out", f"{cross}.o", biases=False)
    place = 2 if is_decoder else 1
    mlp = f"{theirs}.{place}.DenseReluDense"
    ins = [f"{mlp}.wi_0", f"{mlp}.wi_1"] if is_gated(config.activation) else [f"{mlp}.wi"]
    origins |= linear(f"{ours}.mlp_norm", f"{theirs}.{place}.layer_norm", biases=False)
    origins |= linear(f"{ours}.mlp_in", *ins, biases=False)
    origins |= linear(f"{ours}.mlp_out", f"{mlp}.wo", biases=False)
    return origins
