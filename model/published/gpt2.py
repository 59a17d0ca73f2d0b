"""GPT-2 (Radford et al. 2019), as `GPT2LMHeadModel` names its weights."""

from model.architecture import GPTConfig
from model.published.origin import Origin, linear

GPT2_COPIES = frozenset({"lm_head.weight"})
"""The head is the embedding."""


def gpt2_config(*, vocab_size: int, context: int, layers: int, heads: int, width: int) -> GPTConfig:
    """A GPT of these sizes with GPT-2's choices."""
    return GPTConfig(
        vocab_size=vocab_size,
        context=context,
        layers=layers,
        heads=heads,
        width=width,
        positions="learned",
        activation="gelu_tanh",
        embedding_norm=False,
    )


def gpt2_origins(config: GPTConfig) -> dict[str, Origin]:
    """Where each weight of ours comes from."""
    origins = {
        "embedding.weight": Origin(("transformer.wte.weight",)),
        "embedding_positions.weight": Origin(("transformer.wpe.weight",)),
        **linear("final_norm", "transformer.ln_f", biases=True),
    }
    for layer in range(config.layers):
        ours, theirs = f"blocks.{layer}", f"transformer.h.{layer}"
        origins |= linear(f"{ours}.attention_norm", f"{theirs}.ln_1", biases=True)
        origins |= linear(f"{ours}.attention_in", f"{theirs}.attn.c_attn", biases=True, transposed=True)
        origins |= linear(f"{ours}.attention_out", f"{theirs}.attn.c_proj", biases=True, transposed=True)
        origins |= linear(f"{ours}.mlp_norm", f"{theirs}.ln_2", biases=True)
        origins |= linear(f"{ours}.mlp_in", f"{theirs}.mlp.c_fc", biases=True, transposed=True)
        origins |= linear(f"{ours}.mlp_out", f"{theirs}.mlp.c_proj", biases=True, transposed=True)
    return origins
