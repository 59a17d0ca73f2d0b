"""Weight initialisation: Gaussian as in GPT-2 and BERT, T-Fixup, and T5's."""

import math

import torch
from torch import nn

from model.config.network import BlockConfig, GPTConfig

EMBEDDING_STD = 1.0
"""Standard deviation of T5's embedding."""


@torch.no_grad()
def initialise_gpt(network: nn.Module, config: GPTConfig, generator: torch.Generator) -> None:
    """Draw tables and heads from N(0, `table_std`), matrices in blocks from N(0, `matrix_std`); zero the biases.

    Matrices that end a residual branch have that over sqrt(2 layers), so that the stream's variance does not grow with
    depth (GPT-2, section 2.3). In a network `width_multiplier` times as wide as the one that the learning rate was
    chosen for, the variance of matrices in blocks is divided by that factor, so that their outputs keep theirs (Yang et
    al. 2022, table 8).
    """
    for name, parameter in network.named_parameters():
        if _is_norm_or_bias(name, parameter):
            continue
        std = config.matrix_std if name.startswith("blocks") else config.table_std
        if name.endswith(("_out.weight", "experts.mlp_out")):
            std /= math.sqrt(2 * config.layers)
        parameter.normal_(0.0, std, generator=generator)
        if config.width_multiplier != 1.0 and name.startswith("blocks"):
            parameter.mul_(config.width_multiplier**-0.5)


@torch.no_grad()
def initialise_bert(network: nn.Module, std: float, generator: torch.Generator) -> None:
    """Draw matrices and tables from N(0, std); zero the biases (Devlin et al. 2019)."""
    for name, parameter in network.named_parameters():
        if not _is_norm_or_bias(name, parameter):
            parameter.normal_(0.0, std, generator=generator)


def _is_norm_or_bias(name: str, parameter: torch.Tensor) -> bool:
    """Return whether a parameter is a norm's or a bias, after setting it: norms to 1, biases to 0."""
    if "norm" in name:
        parameter.fill_(1.0 if name.endswith("weight") else 0.0)
        return True
    if name.endswith("bias"):
        parameter.zero_()
        return True
    return False


@torch.no_grad()
def initialise_t_fixup(network: nn.Module, config: GPTConfig, generator: torch.Generator) -> None:
    """Initialise a network without norms by T-Fixup (Huang et al. 2020, section 3.2 and their program).

    Matrices are drawn from Xavier's uniform distribution, queries and keys with its bound over sqrt(2). Tables are N(0,
    1 / width) times (9 N)^(-1/4); values, output projections and MLP are scaled by 0.67 N^(-1/4), as in the paper's
    encoder, whose blocks have two branches as well. N is the number of blocks.
    """
    table_scale = (9 * config.layers) ** -0.25
    branch_scale = 0.67 * config.layers**-0.25
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif name.startswith(("embedding", "new_rows")):
            parameter.normal_(0.0, config.width**-0.5 * table_scale, generator=generator)
        elif name.endswith(("attention_query.weight", "attention_key.weight")):
            _xavier(parameter, math.sqrt(0.5), generator)
        elif name.startswith("blocks"):
            _xavier(parameter, branch_scale, generator)
        else:
            _xavier(parameter, 1.0, generator)


@torch.no_grad()
def initialise_t5(network: nn.Module, config: BlockConfig, generator: torch.Generator) -> None:
    """Initialise as T5's program does, whose attention does not scale its scores.

    Matrices are drawn with a standard deviation of one over the root of their inputs, queries with that over the root
    of a head's size, and the embedding from N(0, 1).
    """
    for name, parameter in network.named_parameters():
        if "norm" in name:
            parameter.fill_(1.0)
        elif name == "embedding.weight":
            parameter.normal_(0.0, EMBEDDING_STD, generator=generator)
        elif name.startswith("embedding"):
            parameter.normal_(0.0, config.width**-0.5, generator=generator)
        else:
            parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
            if name.endswith("attention_query.weight"):
                parameter *= config.head_size**-0.5


def _xavier(matrix: torch.Tensor, gain: float, generator: torch.Generator) -> None:
    bound = gain * math.sqrt(6 / sum(matrix.shape))
    matrix.uniform_(-bound, bound, generator=generator)
