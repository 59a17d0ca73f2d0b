"""Scaling of rotary positions: how a network reads texts longer than those it was first trained on.

Formulas are in `model/nn/rotary.py`. Imports no PyTorch, since checking a recipe imports it.
"""

from typing import Literal

from pydantic import Field, model_validator

from model.config import BaseConfig


class RotaryScaling(BaseConfig):
    """Slower rotations for positions beyond those of the first training."""

    kind: Literal["linear", "dynamic", "llama3", "yarn"]
    """`linear` divides all frequencies by `factor` (Chen et al. 2023); `dynamic` raises the base with the length of the
    text (NTK-aware scaling); `llama3` divides the slow ones, with a transition (Llama 3.1); `yarn` divides the slow
    ones and lowers attention's temperature (Peng et al. 2023)."""
    factor: float = Field(ge=1, le=1024)
    """How many times as long the texts may become."""
    original_context: int | None = Field(default=None, ge=8, le=2**20)
    """Tokens of the longest sequence before scaling; all kinds but `linear` need it."""
    low_frequency_factor: float = Field(default=1.0, gt=0)
    """`llama3`: waves longer than `original_context` over this are slowed down in full."""
    high_frequency_factor: float = Field(default=4.0, gt=0)
    """`llama3`: waves shorter than `original_context` over this stay as they are."""
    beta_fast: float = Field(default=32.0, gt=0)
    """`yarn`: pairs that rotate more often than this within `original_context` stay as they are."""
    beta_slow: float = Field(default=1.0, gt=0)
    """`yarn`: pairs that rotate less often than this are slowed down in full."""
    attention_factor: float | None = Field(default=None, gt=0)
    """`yarn`: factor of queries and keys; by default 0.1 ln(factor) + 1."""

    @model_validator(mode="after")
    def _original_context_is_known(self) -> "RotaryScaling":
        if self.kind != "linear" and self.original_context is None:
            raise ValueError(f'kind = "{self.kind}" needs original_context, the longest sequence before scaling')
        if self.kind == "llama3" and self.low_frequency_factor >= self.high_frequency_factor:
            raise ValueError("low_frequency_factor must be below high_frequency_factor; Llama 3.1 has 1 and 4")
        if self.kind == "yarn" and self.beta_slow >= self.beta_fast:
            raise ValueError("beta_slow must be below beta_fast; YaRN's paper has 1 and 32")
        return self
