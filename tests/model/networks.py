"""The network of small training runs."""

from model.config.network import GPTConfig

EVERY_KIND = GPTConfig(
    vocab_size=48,
    context=16,
    layers=2,
    heads=2,
    width=16,
    norm="layernorm",
    activation="gelu",
    qk_norm="none",
    biases=True,
    embedding_norm=True,
    init_std=0.02,
)
"""LayerNorms, biases and small initial weights: the most kinds of parameters, and the least rounding."""
