"""The learning rate as a pure function of the share of tokens read: the data clock, not a step counter.

Steps that are skipped move the clock too, so what a token meets depends on its place in ORDER alone.
"""

import math

from model.config import ScheduleConfig


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
