"""Other ways to compute the same blocks: compiled, and made again in the backward pass instead of kept.

Blocks are where nearly all time and memory go. Parameters keep their names, and what is outside of blocks stays as it
is.
"""

import functools

import torch
import torch._dynamo
import torch._inductor.config
from torch import nn
from torch.utils.checkpoint import checkpoint

from model.blocks import Block

MOST_SHAPES = 64
"""Shapes of a batch for which blocks are compiled: lengths of rows, and the sizes of last, smaller batches. After so
many, PyTorch would give up."""


def wrap_blocks(network: nn.Module, *, compiled: bool, recomputed: bool) -> None:
    """Replace how the blocks of a network are computed, in place.

    `recomputed`: a block keeps its input alone (Chen et al. 2016, https://arxiv.org/abs/1604.06174), a third more
    arithmetic for the memory of the inner results; dropout draws the same once more, since the generator is set back.
    `compiled`: by torch.compile, one graph for all blocks of a stack and for each shape of a batch.
    """
    if compiled:
        torch._dynamo.config.recompile_limit = MOST_SHAPES
        # Processes that compile beside the trainer would outlive one that is killed.
        torch._inductor.config.compile_threads = 1
    for block in network.modules():
        if isinstance(block, Block):
            forward = block.forward
            if compiled:
                forward = torch.compile(forward, dynamic=False, fullgraph=True)
            if recomputed:
                forward = functools.partial(checkpoint, forward, use_reentrant=False)
            block.forward = forward
