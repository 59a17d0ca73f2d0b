"""Sizes and choices of a block of the networks; without PyTorch, since recipes are checked by it."""

from dataclasses import dataclass
from typing import Literal

Activation = Literal["relu", "gelu", "gelu_tanh", "geglu", "geglu_tanh", "swiglu"]
Norm = Literal["layernorm", "rmsnorm", "none"]


def is_gated(activation: Activation) -> bool:
    """Whether one half of the MLP's hidden layer multiplies the other (Shazeer 2020)."""
    return activation in ("geglu", "geglu_tanh", "swiglu")


@dataclass(frozen=True)
class BlockShape:
    """Sizes and choices of a block."""

    width: int
    heads: int
    head_size: int
    hidden: int
    activation: Activation
    norm: Norm
    norm_eps: float
    post_norm: bool = False
    input_norm: bool = True
    """Whether what attention reads is normalised; not so in YaLM-100B's first block, whose input is already."""
    parallel_residual: bool = False
    """Whether attention and MLP read the same stream, instead of one after the other."""
    qk_norm: bool = False
    biases: bool = True
    dropout: float = 0.0
    score_scale: float | None = None
    """What scores of attention are multiplied by; 1 / sqrt(E) by default, 1 in T5."""
    cross_attention: bool = False
    """Whether the block also attends to an encoder."""


def check_heads(width: int, heads: int) -> None:
    """Raises ValueError where heads do not divide the width, with a width near by that they divide."""
    if width % heads:
        raise ValueError(
            f"width {width} is not a multiple of heads = {heads}. Choose width {heads * max(1, round(width / heads))}"
        )
