"""Tensor parallelism: every rank computes some heads, some hidden units of the MLP and some pieces of the vocabulary.

Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053, section 3. PyTorch's own (`torch.distributed.tensor.parallel`)
cuts a matrix at one place, and ours hold queries, keys and values, or gate and value, in one.

Which part of each weight a rank holds where matrices are cut, told by the weight's name in the network.

Shoeybi et al. 2019, section 3: queries, keys and values by heads, the MLP's first matrix by hidden units, both ways out
by the same units, tables and heads of the vocabulary by pieces. All else every rank holds whole.

What ranks that cut the same matrices tell each other within forward and backward passes.

Megatron-LM's two conjugate operators (Shoeybi et al. 2019, section 3): where a product by columns begins, the backward
pass adds up; where a product by rows ends, the forward pass does.

A vocabulary whose pieces are shared by ranks: no rank ever has the logits of all.

Shoeybi et al. 2019, section 3: what travels is one number a prediction, and not one for each of V pieces.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.config.network import NetworkConfig, is_gated
from model.data.row_format import NO_LOSS
from model.distributed.process_group import Ranks
from model.nn.block import Block
from model.nn.factory import Network

COLUMN_PARALLEL = ("attention_in", "cross_attention_query", "cross_attention_memory", "mlp_in")

ROW_PARALLEL = ("attention_out", "cross_attention_out", "mlp_out")


def shard_network(network: Network, ranks: Ranks) -> None:
    """Make of a whole network this rank's part; all its methods give what they gave, given the same on every rank.

    Logits are the exception: they are those of this rank's pieces, which `network.vocabulary` makes sense of.
    """
    shard_weights(network, network.config, ranks)
    for block in network.modules():
        if isinstance(block, Block):
            _cut_block(block, ranks)
    network.vocabulary = vocabulary = ShardedVocabulary(network.config.vocab_size, ranks)
    if "embedding.weight" in dict(network.named_parameters()):
        network.embedding = ShardedEmbedding(network.embedding.weight.detach(), vocabulary)


def _cut_block(block: Block, ranks: Ranks) -> None:
    block.shape = replace(block.shape, heads=block.shape.heads // ranks.size)
    for name, module in block.named_children():
        if name in COLUMN_PARALLEL:
            module.register_forward_pre_hook(partial(_read, ranks))
        elif name in ROW_PARALLEL:
            module.register_forward_hook(partial(_add_up, ranks))


def _read(ranks: Ranks, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    del module
    return (copy_to_ranks(inputs[0], ranks), *inputs[1:])


def _add_up(ranks: Ranks, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    del module, inputs
    return reduce_from_ranks_(output.float(), ranks)


@dataclass(frozen=True)
class WeightSharding:
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


def shard_bounds(length: int, rank: int, size: int) -> tuple[int, int]:
    """Where the share of `rank` of `size` begins and ends among `length` rows or columns."""
    return length * rank // size, length * (rank + 1) // size


def _share(matrix: Tensor, dimension: int, rank: int, size: int) -> Tensor:
    begin, end = shard_bounds(matrix.shape[dimension], rank, size)
    return matrix.narrow(dimension, begin, end - begin)


def sharding_of(name: str, config: NetworkConfig) -> WeightSharding:
    """How the weight of this name is shared by ranks that cut matrices."""
    module, _, kind = name.rpartition(".")
    layer = module.rpartition(".")[2] or name
    if layer in ("attention_in", "cross_attention_query", "cross_attention_memory", "mlp_in"):
        gated = layer == "mlp_in" and is_gated(config.activation)
        return WeightSharding(0, {"attention_in": 3, "cross_attention_memory": 2}.get(layer, 2 if gated else 1))
    if layer in ("attention_out", "cross_attention_out", "mlp_out"):
        return WeightSharding(1) if kind == "weight" else WeightSharding(first_alone=True)
    if layer in ("embedding", "head", "head_bias", "masked_head_bias"):
        return WeightSharding(0)
    if layer.endswith("_distances"):
        return WeightSharding(1)
    return WeightSharding(partial_gradient=layer in ("query_norm", "key_norm"))


def shard_weights(network: nn.Module, config: NetworkConfig, ranks: Ranks) -> None:
    """Leave a network what this rank holds of each weight."""
    for name, parameter in list(network.named_parameters()):
        part = sharding_of(name, config).part(parameter.detach(), ranks.rank, ranks.size)
        module, _, kind = name.rpartition(".")
        own = None if part is None else nn.Parameter(part.clone(), requires_grad=parameter.requires_grad)
        setattr(network.get_submodule(module), kind, own)


class _SumBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # A copy: the same gradient may be on its way to another branch.
        return ctx.ranks.sum_(gradients[0].clone(memory_format=torch.contiguous_format)), None


class _SumForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.mark_dirty(x)
        return ranks.sum_(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def copy_to_ranks(x: Tensor, ranks: Ranks) -> Tensor:
    """`x`, the same on every rank, of which each rank computes something else: its gradients add up over the ranks."""
    return _SumBackward.apply(x, ranks)


def reduce_from_ranks_(x: Tensor, ranks: Ranks) -> Tensor:
    """The sum over the ranks of what each has in `x`, in place; all go on with it and get the same gradient."""
    return _SumForward.apply(x, ranks)


class ShardedVocabulary:
    """The pieces of this rank, from `begin` on; `model.nn.vocab_layers.Vocabulary` says what it is asked."""

    gradient_at_once = False

    def __init__(self, vocab_size: int, ranks: Ranks) -> None:
        self.begin, self.end = shard_bounds(vocab_size, ranks.rank, ranks.size)
        self.ranks = ranks
        self._vocab_size = vocab_size

    def read(self, hidden: Tensor) -> Tensor:
        """Its gradient adds up over the ranks, of which each has other logits."""
        return copy_to_ranks(hidden, self.ranks)

    def nats(self, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        """The target's logit comes from the rank that has it."""
        counts = targets_N != NO_LOSS
        logits_nV, targets_n = logits_NV[counts].float(), targets_N[counts]
        own = (targets_n >= self.begin) & (targets_n < self.end)
        place = (targets_n - self.begin).clamp(0, self.end - self.begin - 1)
        found = logits_nV.gather(1, place[:, None])[:, 0] * own
        return (self.log_normaliser(logits_nV) - reduce_from_ranks_(found, self.ranks)).sum()

    def log_normaliser(self, logits_NV: Tensor) -> Tensor:
        """Denominators are added up in units of the largest logit of all ranks, so that none is too large."""
        logits_NV = logits_NV.float()
        largest_N = self.ranks.max_(logits_NV.detach().amax(-1))
        return largest_N + reduce_from_ranks_((logits_NV - largest_N[:, None]).exp().sum(-1), self.ranks).log()

    def argmax(self, logits_NV: Tensor) -> Tensor:
        """The first piece among those that no rank has a larger logit than."""
        own_N, place_N = logits_NV.detach().float().max(-1)
        largest_N = self.ranks.max_(own_N.clone())
        first_N = torch.where(own_N == largest_N, place_N + self.begin, self._vocab_size)
        return -self.ranks.max_(-first_N)


class ShardedEmbedding(nn.Embedding):
    """Rows of the table for this rank's pieces; tokens of the others look up zeros, and the sum has all rows."""

    def __init__(self, weight: Tensor, vocabulary: ShardedVocabulary) -> None:
        rows, width = weight.shape
        super().__init__(rows, width, _weight=weight)
        self._vocabulary = vocabulary

    def forward(self, input: Tensor) -> Tensor:
        """Rows f32[..., D] of tokens i64[...]."""
        begin, end = self._vocabulary.begin, self._vocabulary.end
        own = (input >= begin) & (input < end)
        rows = F.embedding((input - begin).clamp(0, end - begin - 1), self.weight)
        return reduce_from_ranks_(rows * own[..., None], self._vocabulary.ranks)
