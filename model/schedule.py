"""Learning rate and clipping as pure functions of the share of tokens read: the data clock, not a step counter.

Steps that are skipped move the clock too, so what a token meets depends on its place in ORDER alone.
"""

import math
from dataclasses import dataclass

from model.config import ClipConfig, ScheduleConfig


@dataclass(frozen=True)
class Pace:
    """How a step goes, as the data clock says."""

    lr: float
    """Learning rate."""
    max_norm: float = 1.0
    """Largest norm of the gradient; a longer one is scaled down to it."""
    row_pieces: int = 1
    """Rows of the batch that were one row of SEQUENCES; so many more pass through the model at once."""


def clip_norm(share: float, config: ClipConfig) -> float:
    """The largest norm of a gradient; a step that ends at `early_share` still belongs to the early part."""
    return config.early_norm if config.early_share and share <= config.early_share else config.max_norm


def learning_rate(share: float, config: ScheduleConfig) -> float:
    """The rate after `share` (0 to 1) of all tokens; beyond the end, that of the end."""
    if share < config.warmup_share:
        return config.start_lr + (config.peak_lr - config.start_lr) * share / config.warmup_share
    progress = min(1.0, (share - config.warmup_share) / (1.0 - config.warmup_share))
    if config.kind == "cosine":
        return config.end_lr + (config.peak_lr - config.end_lr) * (1.0 + math.cos(math.pi * progress)) / 2.0
    if config.kind == "linear":
        return config.peak_lr + (config.end_lr - config.peak_lr) * progress
    if config.kind == "step":
        passed = sum(share >= step for step in config.steps)
        return max(config.end_lr, config.peak_lr * config.step_factor**passed)
    if config.kind == "warmup_stable_decay":
        # Hagele et al., 2024 (arXiv 2405.18392), section 3.
        fallen = max(0.0, min(1.0, (share - (1.0 - config.decay_share)) / config.decay_share))
        return config.peak_lr + (config.end_lr - config.peak_lr) * fallen
    return config.peak_lr
