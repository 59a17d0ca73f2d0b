"""How weights start: Gaussian as in GPT-2 and BERT, T-Fixup, or as T5's."""

import math

import torch
from torch import nn

from model.config.network import BlockConfig, GPTConfig

EMBEDDING_STD = 1.0
"""What the rows of T5's embedding start from."""


@torch.no_grad()
def initialise_gaussian(
    network: nn.Module, std: float, residual_std: float, generator: torch.Generator, times_as_wide: float = 1.0
) -> None:
    """Matrices and tables from N(0, std), those that end a residual branch from N(0, residual_std); no biases.

    In a network `times_as_wide` as the one that these are for, matrices in blocks keep the variance of what they give:
    theirs is divided by it (Yang et al. 2022, table 8).
    """
    for name, parameter in network.named_parameters():
        if "norm" in name:
            parameter.fill_(1.0 if name.endswith("weight") else 0.0)
        elif name.endswith("bias"):
            parameter.zero_()
        else:
            parameter.normal_(0.0, residual_std if name.endswith("_out.weight") else std, generator=generator)
            if times_as_wide != 1.0 and name.startswith("blocks"):
                parameter.mul_(times_as_wide**-0.5)


@torch.no_grad()
def initialise_t_fixup(network: nn.Module, config: GPTConfig, generator: torch.Generator) -> None:
    """T-Fixup (Huang et al. 2020, section 3.2 and its published program), for a network without norms.

    Matrices from Xavier's uniform distribution, queries and keys with its bound over sqrt(2); tables from
    N(0, 1 / width) times (9 N)^(-1/4), and values, output projections and MLP times 0.67 N^(-1/4), as in their encoder,
    whose blocks have two branches as ours do. N is the number of blocks.
    """
    table_scale = (9 * config.layers) ** -0.25
    branch_scale = 0.67 * config.layers**-0.25
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif name.startswith(("embedding", "new_rows")):
            parameter.normal_(0.0, config.width**-0.5 * table_scale, generator=generator)
        elif name.endswith("attention_in.weight"):
            query, key, value = parameter.chunk(3)
            _xavier(query, math.sqrt(0.5), generator)
            _xavier(key, math.sqrt(0.5), generator)
            _xavier(value, branch_scale, generator)
        elif name.startswith("blocks"):
            _xavier(parameter, branch_scale, generator)
        else:
            _xavier(parameter, 1.0, generator)


@torch.no_grad()
def initialise_t5(network: nn.Module, shape: BlockConfig, generator: torch.Generator) -> None:
    """As T5's program does, whose attention does not scale its scores: queries start smaller by the root of a head's
    size, other matrices from one over the root of their inputs, and the embedding from N(0, 1)."""
    for name, parameter in network.named_parameters():
        if "norm" in name:
            parameter.fill_(1.0)
        elif name == "embedding.weight":
            parameter.normal_(0.0, EMBEDDING_STD, generator=generator)
        elif name.startswith("embedding"):
            parameter.normal_(0.0, shape.width**-0.5, generator=generator)
        else:
            parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
            queries = shape.heads * shape.head_size
            if name.endswith(("attention_in.weight", "attention_query.weight")):
                parameter[:queries] *= shape.head_size**-0.5


def _xavier(matrix: torch.Tensor, gain: float, generator: torch.Generator) -> None:
    bound = gain * math.sqrt(6 / sum(matrix.shape))
    matrix.uniform_(-bound, bound, generator=generator)
