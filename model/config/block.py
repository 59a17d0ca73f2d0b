"""What every block of a network is made of, whatever its architecture.

Imports no PyTorch, since checking a recipe imports it.
"""

from dataclasses import dataclass
from typing import Literal

Norm = Literal["layernorm", "rmsnorm", "none"]

NormPosition = Literal["pre", "post", "branch"]

QKNorm = Literal["none", "head", "all"]

Activation = Literal["relu", "gelu", "gelu_tanh", "geglu", "geglu_tanh", "swiglu"]

DISTANCE_BUCKETS, FARTHEST_DISTANCE = 32, 128
"""T5's buckets of relative positions for each head; the last one holds all distances from 128 tokens on."""


@dataclass(frozen=True)
class BlockConfig:
    """Sizes and options of a block."""

    width: int
    heads: int
    head_size: int
    hidden: int
    activation: Activation
    norm: Norm
    norm_eps: float
    kv_heads: int | None = None
    """Heads of keys and values, each read by heads / kv_heads queries; None for one per query."""
    norm_position: NormPosition = "pre"
    input_norm: bool = True
    """Whether the input of attention is normalised; False in YaLM-100B's first block, whose input already is."""
    parallel_residual: bool = False
    """Whether attention and MLP read the same stream, instead of one after the other."""
    qk_norm: QKNorm = "none"
    biases: bool = True
    qkv_biases: bool | None = None
    """Whether queries, keys and values have biases; None: as `biases`."""
    window: int | None = None
    """Tokens that a query sees, itself included; None for all before it."""
    experts: int | None = None
    """Copies of the MLP, of which each token uses `experts_per_token`; None for one MLP."""
    experts_per_token: int = 2
    experts_sum_to_one: bool = True
    dropout: float = 0.0
    score_scale: float | None = None
    """Factor of attention scores; 1 / sqrt(E) by default, 1 in T5."""
    cross_attention: bool = False
    """Whether the block also attends to an encoder."""

    @property
    def inner(self) -> int:
        """Values of all heads of queries."""
        return self.heads * self.head_size

    @property
    def kv_inner(self) -> int:
        """Values of all heads of keys, and of values."""
        return (self.kv_heads or self.heads) * self.head_size


def is_gated(activation: Activation) -> bool:
    """Return whether one half of the MLP's hidden layer multiplies the other (Shazeer 2020)."""
    return activation in ("geglu", "geglu_tanh", "swiglu")
