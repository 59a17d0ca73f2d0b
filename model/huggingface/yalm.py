"""YaLM-100B (Yandex 2022): the source of each weight of ours in its published files.

Files are named by layer: 0 is the embedding, 1 the norm after it, 3 to 82 the blocks, 84 the output. They are pickles,
which are not read here, and `transformers` has no class for the network; the names are those of its published program.
"""

from model.config.network import GPTConfig
from model.huggingface.base import WeightSource, fused, linear

FIRST_BLOCK = 3
"""Number of the file that holds the first block."""


def yalm_weight_map(config: GPTConfig) -> dict[str, WeightSource]:
    """Return the source of each weight of ours, as `layer_NN.name`."""
    output = f"layer_{FIRST_BLOCK + config.layers + 1:02}"
    weight_map = {
        "embedding.weight": WeightSource("layer_00.word_embeddings.weight"),
        **linear("embedding_norm", "layer_01.input_layernorm", biases=True),
        **linear("final_norm", f"{output}.input_layer_norm", biases=True),
        **linear("head_projection", f"{output}.dense", biases=True),
        **linear("head_norm", f"{output}.output_layer_norm", biases=True),
        "head_bias": WeightSource(f"{output}.output_bias"),
    }
    for layer in range(config.layers):
        ours, theirs = f"blocks.{layer}", f"layer_{FIRST_BLOCK + layer:02}"
        projections = [f"{ours}.attention_{part}" for part in ("query", "key", "value")]
        if layer:
            weight_map |= linear(f"{ours}.attention_norm", f"{theirs}.input_layernorm", biases=True)
        weight_map |= fused(projections, f"{theirs}.attention.query_key_value", biases=True, heads=config.heads)
        weight_map |= linear(f"{ours}.attention_out", f"{theirs}.attention.dense", biases=True)
        weight_map |= linear(f"{ours}.mlp_norm", f"{theirs}.post_attention_layernorm", biases=True)
        weight_map |= linear(f"{ours}.mlp_gate", f"{theirs}.mlp.dense_ffn_hidden", biases=True)
        weight_map |= linear(f"{ours}.mlp_in", f"{theirs}.mlp.dense_ffn_gate", biases=True)
        weight_map |= linear(f"{ours}.mlp_out", f"{theirs}.mlp.dense_ffn_output", biases=True)
    return weight_map
