"""Which part of each weight a rank holds where matrices are cut, told by the weight's name in the network.

Shoeybi et al. 2019, section 3: queries, keys and values by heads, the MLP's first matrix by hidden units, both ways out
by the same units, tables and heads of the vocabulary by pieces. All else every rank holds whole.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.architecture import NetworkConfig
from model.block_shape import is_gated
from model.ranks import Ranks


@dataclass(frozen=True)
class Cut:
    """How one weight is shared."""

    dimension: int | None = None
    """Along which it is cut; None where ranks hold it whole, or only the first does."""
    stacked: int = 1
    """Matrices that lie in it side by side, each of which is cut: queries, keys and values, or gate and value."""
    first_alone: bool = False
    """Whether the first rank holds it and the others nothing: a bias that is added once to a sum over the ranks."""
    partial_gradient: bool = False
    """Whether it is held whole while each rank's gradient speaks of that rank's heads alone."""

    @property
    def is_whole(self) -> bool:
        """Whether every rank holds the same."""
        return self.dimension is None and not self.first_alone

    def part(self, whole: Tensor, rank: int, size: int) -> Tensor | None:
        """What `rank` of `size` holds of a weight, as a view or a copy; None where it holds nothing."""
        if self.first_alone and rank:
            return None
        if self.dimension is None:
            return whole
        own = [_share(matrix, self.dimension, rank, size) for matrix in whole.chunk(self.stacked, self.dimension)]
        return torch.cat(own, self.dimension)

    def joined(self, parts: list[Tensor]) -> Tensor:
        """The whole weight, given what each rank holds of it, in the order of ranks and without those with nothing."""
        if self.dimension is None:
            return parts[0]
        matrices = [part.chunk(self.stacked, self.dimension) for part in parts]
        return torch.cat([own[index] for index in range(self.stacked) for own in matrices], self.dimension)


def bounds(length: int, rank: int, size: int) -> tuple[int, int]:
    """Where the share of `rank` of `size` begins and ends among `length` rows or columns."""
    return length * rank // size, length * (rank + 1) // size


def _share(matrix: Tensor, dimension: int, rank: int, size: int) -> Tensor:
    begin, end = bounds(matrix.shape[dimension], rank, size)
    return matrix.narrow(dimension, begin, end - begin)


def cut_of(name: str, config: NetworkConfig) -> Cut:
    """How the weight of this name is shared by ranks that cut matrices."""
    module, _, kind = name.rpartition(".")
    layer = module.rpartition(".")[2] or name
    if layer in ("attention_in", "cross_attention_query", "cross_attention_memory", "mlp_in"):
        gated = layer == "mlp_in" and is_gated(config.activation)
        return Cut(0, {"attention_in": 3, "cross_attention_memory": 2}.get(layer, 2 if gated else 1))
    if layer in ("attention_out", "cross_attention_out", "mlp_out"):
        return Cut(1) if kind == "weight" else Cut(first_alone=True)
    if layer in ("embedding", "head", "head_bias", "masked_head_bias"):
        return Cut(0)
    if layer.endswith("_distances"):
        return Cut(1)
    return Cut(partial_gradient=layer in ("query_norm", "key_norm"))


def cut_weights(network: nn.Module, config: NetworkConfig, ranks: Ranks) -> None:
    """Leave a network what this rank holds of each weight."""
    for name, parameter in list(network.named_parameters()):
        part = cut_of(name, config).part(parameter.detach(), ranks.rank, ranks.size)
        module, _, kind = name.rpartition(".")
        own = None if part is None else nn.Parameter(part.clone(), requires_grad=parameter.requires_grad)
        setattr(network.get_submodule(module), kind, own)
