"""Rotary positions (Su et al. 2021): pairs of values of queries and keys rotate with the position of their token.

Scores then depend on distances alone. For texts longer than those of the first training, frequencies are scaled
(`model/config/rotary.py`).
"""

import math

import torch
from torch import Tensor

from model.config.rotary import RotaryScaling


def rotary_table(
    length: int, size: int, base: float = 10_000.0, scaling: RotaryScaling | None = None
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the rotations at positions 0 to `length` - 1, f32[length, size / 2] each.

    `size` is the number of values of a head that are rotated. Pairs rotate ever slower, the slowest about once in
    2 pi `base` tokens.
    """
    factor = 1.0
    if scaling is not None and scaling.kind == "dynamic":
        base = _dynamic_base(base, size, length, scaling)
    frequency = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    if scaling is not None:
        frequency, factor = _scaled(frequency, size, base, scaling)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    return (factor * angle.cos()).float(), (factor * angle.sin()).float()


def _dynamic_base(base: float, size: int, length: int, scaling: RotaryScaling) -> float:
    """Return the base for a text of `length` tokens: larger the longer it is beyond the original context."""
    assert scaling.original_context is not None, "the configuration checks it"
    grown = max(1.0, length / scaling.original_context)
    return base * (scaling.factor * grown - (scaling.factor - 1)) ** (size / (size - 2))


def _scaled(frequency: Tensor, size: int, base: float, scaling: RotaryScaling) -> tuple[Tensor, float]:
    """Return the scaled frequencies, and the factor of cosines and sines."""
    if scaling.kind == "linear":
        return frequency / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(frequency, scaling), 1.0
    if scaling.kind == "yarn":
        return _yarn(frequency, size, base, scaling)
    return frequency, 1.0


def _llama3(frequency: Tensor, scaling: RotaryScaling) -> Tensor:
    """Return frequencies by Llama 3.1: short waves kept, long ones slowed down, a linear transition between them."""
    assert scaling.original_context is not None, "the configuration checks it"
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    waves = scaling.original_context * frequency / (2 * math.pi)  # rotations within the original context
    kept = ((waves - low) / (high - low)).clamp(0, 1)
    return frequency * (kept + (1 - kept) / scaling.factor)


def _yarn(frequency: Tensor, size: int, base: float, scaling: RotaryScaling) -> tuple[Tensor, float]:
    """Return frequencies and factor by YaRN (Peng et al. 2023, sections 3.2 to 3.4)."""

    def pair_that_rotates(times: float) -> float:
        assert scaling.original_context is not None, "the configuration checks it"
        return size * math.log(scaling.original_context / (times * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_that_rotates(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_that_rotates(scaling.beta_slow)), size - 1)
    pair = torch.arange(size // 2, dtype=torch.float64)
    slowed = ((pair - low) / max(high - low, 1e-3)).clamp(0, 1)
    factor = scaling.attention_factor
    if factor is None:
        factor = 0.1 * math.log(scaling.factor) + 1.0
    return frequency * (1 - slowed + slowed / scaling.factor), factor


def apply_rotary(x_BHTE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Rotate the pairs (first half, second half) of each head by the angle of their position.

    Where the tables cover fewer values than a head has, the remaining ones stay as they are.
    """
    size = 2 * cos_TE.shape[-1]
    if size < x_BHTE.shape[-1]:
        return torch.cat((apply_rotary(x_BHTE[..., :size], cos_TE, sin_TE), x_BHTE[..., size:]), dim=-1)
    first, second = x_BHTE.chunk(2, dim=-1)
    return torch.cat((first * cos_TE - second * sin_TE, second * cos_TE + first * sin_TE), dim=-1)
