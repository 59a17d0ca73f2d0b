"""The learning rate as a pure function of the share of tokens read: the data clock, not a step counter."""

import math

from model.config import ScheduleConfig


def learning_rate(share: float, config: ScheduleConfig) -> float:
    """The rate after `share` (0 to 1) of all tokens: linear warm-up, half cosine, constant at the end."""
    if share < config.warmup_share:
        return config.start_lr + (config.peak_lr - config.start_lr) * share / config.warmup_share
    progress = min(1.0, (share - config.warmup_share) / (1.0 - config.warmup_share))
    return config.end_lr + (config.peak_lr - config.end_lr) * (1.0 + math.cos(math.pi * progress)) / 2.0
