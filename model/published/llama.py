"""LLaMA (Touvron et al. 2023) without grouped queries, as `LlamaForCausalLM` names its weights."""

from model.architecture import GPTConfig
from model.published.origin import Origin, linear


def llama_config(*, vocab_size: int, context: int, layers: int, heads: int, width: int, ffn_width: int) -> GPTConfig:
    """A GPT of these sizes with LLaMA's choices."""
    return GPTConfig(
        vocab_size=vocab_size,
        context=context,
        layers=layers,
        heads=heads,
        width=width,
        ffn_width=ffn_width,
        activation="swiglu",
        norm="rmsnorm",
        norm_eps=1e-6,
        embedding_norm=False,
        biases=False,
        tied_head=False,
    )


def llama_origins(config: GPTConfig) -> dict[str, Origin]:
    """Where each weight of ours comes from."""
    origins = {
        "embedding.weight": Origin(("model.embed_tokens.weight",)),
        "final_norm.weight": Origin(("model.norm.weight",)),
        "head.weight": Origin(("lm_head.weight",)),
    }
    for layer in range(config.layers):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        projections = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
        gate_and_value = [f"{theirs}.mlp.{part}_proj" for part in ("gate", "up")]
        origins |= linear(f"{ours}.attention_norm", f"{theirs}.input_layernorm", biases=False)
        origins |= linear(f"{ours}.attention_in", *projections, biases=False)
        origins |= linear(f"{ours}.attention_out", f"{theirs}.self_attn.o_proj", biases=False)
        origins |= linear(f"{ours}.mlp_norm", f"{theirs}.post_attention_layernorm", biases=False)
        origins |= linear(f"{ours}.mlp_in", *gate_and_value, biases=False)
        origins |= linear(f"{ours}.mlp_out", f"{theirs}.mlp.down_proj", biases=False)
    return origins
