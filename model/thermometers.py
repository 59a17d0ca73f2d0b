"""What thermometers read of a network while it computes: the smallest and the largest value of each segment.

Readings never leave the device before the end of a step, take no copy of what they read, and are no part of the graph
that gradients flow through.
"""

import torch
from torch import Tensor


def extremes(x: Tensor) -> Tensor:
    """Smallest value with its sign changed, and largest value, f32[2], in one pass; NaN where any value is NaN.

    With its sign changed, what is smallest of several tensors is found by the same maximum as what is largest: over
    micro-batches, stages of a pipeline, and ranks.
    """
    low, high = torch.aminmax(x.detach())
    return torch.stack((-low, high)).float()


def nothing_read(like: Tensor) -> Tensor:
    """Extremes of no values, f32[2] on the device of a tensor: those of any values are larger."""
    return like.new_full((2,), -torch.inf, dtype=torch.float32)


def lows_and_highs(extremes_P2: Tensor) -> tuple[list[float], list[float]]:
    """Smallest and largest value of each thermometer, given their extremes."""
    return (-extremes_P2[:, 0]).tolist(), extremes_P2[:, 1].tolist()


def without_nan(extremes_P2: Tensor) -> Tensor:
    """Infinite where NaN: what a maximum over processes does with a NaN depends on the order of the processes."""
    return extremes_P2.masked_fill(extremes_P2.isnan(), torch.inf)
