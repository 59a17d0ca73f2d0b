"""Other ways to compute the same blocks: compiled, and made again in the backward pass instead of kept.

Blocks are where nearly all time and memory go. Parameters keep their names, and what is outside of blocks stays as it
is.
"""

import functools
from collections.abc import Callable, Collection

import torch
import torch._dynamo
import torch._inductor.config
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.blocks import Block

Forward = Callable[..., tuple[Tensor, tuple[Tensor, ...]]]
"""`Block.forward`."""
NEVER_REACHED = 2**16
"""Graphs at which PyTorch would give up on a function, and end the run: by default 8, and 256 in all. How many there
are is decided here, by the sizes that are compiled."""


def wrap_blocks(
    network: nn.Module, *, compiled: bool, recomputed: bool, compiled_rows: Collection[int] | None = None
) -> None:
    """Replace how the blocks of a network are computed, in place.

    `recomputed`: a block keeps its input alone (Chen et al. 2016, https://arxiv.org/abs/1604.06174), a third more
    arithmetic for the memory of the inner results; dropout draws the same once more, since the generator is set back.
    `compiled`: by torch.compile, one graph for all blocks of a stack and for each shape of a batch. Where
    `compiled_rows` are given, batches of other numbers of rows are computed as they are written.
    """
    if compiled:
        torch._dynamo.config.recompile_limit = NEVER_REACHED
        torch._dynamo.config.accumulated_recompile_limit = NEVER_REACHED
        # Processes that compile beside the trainer would outlive one that is killed.
        torch._inductor.config.compile_threads = 1
    for block in network.modules():
        if isinstance(block, Block):
            forward = block.forward
            if compiled:
                forward = _compiled(forward, compiled_rows)
            if recomputed:
                forward = functools.partial(checkpoint, forward, use_reentrant=False)
            block.forward = forward


def _compiled(forward: Forward, rows: Collection[int] | None) -> Forward:
    compiled = torch.compile(forward, dynamic=False, fullgraph=True)
    if rows is None:
        return compiled

    def chosen(x_BTD: Tensor, *rest: object, **named: object) -> tuple[Tensor, tuple[Tensor, ...]]:
        return (compiled if len(x_BTD) in rows else forward)(x_BTD, *rest, **named)

    return chosen
