"""Tensor parallelism: each rank computes some heads, some hidden units of the MLP and some tokens of the vocabulary.

Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053, section 3: queries, keys and values are sharded by heads, the
MLP's first matrix by hidden units, the output projections by the same units, and the tables of the vocabulary by
tokens; every rank holds all else whole.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.config.network import NetworkConfig
from model.data.row_format import NO_LOSS
from model.distributed.process_group import Ranks
from model.nn.block import Block
from model.nn.factory import Network

COLUMN_PARALLEL = (
    *(f"{kind}attention_{part}" for kind in ("", "cross_") for part in ("query", "key", "value")),
    "mlp_gate",
    "mlp_in",
)

ROW_PARALLEL = ("attention_out", "cross_attention_out", "mlp_out")


def shard_network(network: Network, ranks: Ranks) -> None:
    """Replace a whole network by this rank's part; its methods return the same as before, given the same on every rank.

    Logits are the exception: they are those of this rank's tokens, and `network.vocabulary` computes the loss of them.
    """
    shard_weights(network, network.config, ranks)
    for block in network.modules():
        if isinstance(block, Block):
            _shard_block(block, ranks)
    network.vocabulary = vocabulary = ShardedVocabulary(network.config.vocab_size, ranks)
    if "embedding.weight" in dict(network.named_parameters()):
        network.embedding = ShardedEmbedding(network.embedding.weight.detach(), vocabulary)


def _shard_block(block: Block, ranks: Ranks) -> None:
    kv_heads = block.config.kv_heads
    block.config = replace(
        block.config,
        heads=block.config.heads // ranks.size,
        kv_heads=None if kv_heads is None else kv_heads // ranks.size,
    )
    for name, module in block.named_children():
        if name in COLUMN_PARALLEL:
            module.register_forward_pre_hook(partial(_copy_input, ranks))
        elif name in ROW_PARALLEL:
            module.register_forward_hook(partial(_reduce_output, ranks))


def _copy_input(ranks: Ranks, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    del module
    return (copy_to_ranks(inputs[0], ranks), *inputs[1:])


def _reduce_output(ranks: Ranks, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    del module, inputs
    return reduce_from_ranks_(output.float(), ranks)


def shard_weights(network: nn.Module, config: NetworkConfig, ranks: Ranks) -> None:
    """Replace each weight of a network by this rank's part."""
    for name, parameter in list(network.named_parameters()):
        part = sharding_of(name, config).part(parameter.detach(), ranks.rank, ranks.size)
        module, _, kind = name.rpartition(".")
        own = None if part is None else nn.Parameter(part.clone(), requires_grad=parameter.requires_grad)
        setattr(network.get_submodule(module), kind, own)


@dataclass(frozen=True)
class WeightSharding:
    """How one weight is divided among tensor ranks."""

    dimension: int | None = None
    """Dimension that is split; None where ranks hold it whole, or only the first does."""
    first_alone: bool = False
    """Whether only the first rank holds it: a bias that is added once to a sum over the ranks."""
    partial_gradient: bool = False
    """Whether it is held whole, while each rank's gradient comes from that rank's heads alone."""

    @property
    def is_whole(self) -> bool:
        """Whether every rank holds all of it."""
        return self.dimension is None and not self.first_alone

    def part(self, whole: Tensor, rank: int, size: int) -> Tensor | None:
        """Return the part of `rank` of `size`, as a view or a copy; None where it holds none."""
        if self.first_alone and rank:
            return None
        if self.dimension is None:
            return whole
        begin, end = shard_bounds(whole.shape[self.dimension], rank, size)
        return whole.narrow(self.dimension, begin, end - begin)

    def join(self, parts: list[Tensor]) -> Tensor:
        """Return the whole weight, given the parts of the ranks that hold any, in rank order."""
        return parts[0] if self.dimension is None else torch.cat(parts, self.dimension)


def shard_bounds(length: int, rank: int, size: int) -> tuple[int, int]:
    """Return where the part of `rank` of `size` begins and ends among `length` rows or columns."""
    return length * rank // size, length * (rank + 1) // size


def sharding_of(name: str, config: NetworkConfig) -> WeightSharding:
    """Return how the weight of this name is divided among tensor ranks."""
    module, _, kind = name.rpartition(".")
    layer = module.rpartition(".")[2] or name
    if layer in COLUMN_PARALLEL:
        return WeightSharding(0)
    if layer in ROW_PARALLEL:
        return WeightSharding(1) if kind == "weight" else WeightSharding(first_alone=True)
    if layer in ("embedding", "head", "head_bias", "masked_head_bias"):
        return WeightSharding(0)
    if layer.endswith("_distances"):
        return WeightSharding(1)
    return WeightSharding(partial_gradient=layer in ("query_norm", "key_norm"))


def copy_to_ranks(x: Tensor, ranks: Ranks) -> Tensor:
    """Return `x`, the same on every rank, and sum its gradient over the ranks (Megatron-LM's operator f)."""
    return _CopyToRanks.apply(x, ranks)


def reduce_from_ranks_(x: Tensor, ranks: Ranks) -> Tensor:
    """Sum `x` over the ranks in place, and pass its gradient through (Megatron-LM's operator g)."""
    return _ReduceFromRanks.apply(x, ranks)


class _CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # A copy, because another branch may use the same gradient.
        return ctx.ranks.sum_(gradients[0].clone(memory_format=torch.contiguous_format)), None


class _ReduceFromRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.mark_dirty(x)
        return ranks.sum_(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class ShardedVocabulary:
    """The vocabulary sharded by tokens, of which this rank has [begin, end); implements `vocab_layers.Vocabulary`.

    No rank has the logits of all tokens: what is exchanged is a few numbers for each prediction (Shoeybi et al. 2019,
    section 3).
    """

    gradient_at_once = False

    def __init__(self, vocab_size: int, ranks: Ranks) -> None:
        self.begin, self.end = shard_bounds(vocab_size, ranks.rank, ranks.size)
        self.ranks = ranks
        self._vocab_size = vocab_size

    def read(self, hidden: Tensor) -> Tensor:
        """Return the stream, whose gradient is summed over the ranks, since each has other logits."""
        return copy_to_ranks(hidden, self.ranks)

    def nats(self, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        """Return the cross entropy; the target's logit comes from the rank that has it."""
        counts = targets_N != NO_LOSS
        logits_nV, targets_n = logits_NV[counts].float(), targets_N[counts]
        own = (targets_n >= self.begin) & (targets_n < self.end)
        index = (targets_n - self.begin).clamp(0, self.end - self.begin - 1)
        target_logits = logits_nV.gather(1, index[:, None])[:, 0] * own
        return (self.log_normaliser(logits_nV) - reduce_from_ranks_(target_logits, self.ranks)).sum()

    def log_normaliser(self, logits_NV: Tensor) -> Tensor:
        """Return logsumexp over all ranks; the largest logit of all is subtracted first, so that nothing overflows."""
        logits_NV = logits_NV.float()
        largest_N = self.ranks.max_(logits_NV.detach().amax(-1))
        return largest_N + reduce_from_ranks_((logits_NV - largest_N[:, None]).exp().sum(-1), self.ranks).log()

    def argmax(self, logits_NV: Tensor) -> Tensor:
        """Return the first token with the largest logit over all ranks."""
        own_N, index_N = logits_NV.detach().float().max(-1)
        largest_N = self.ranks.max_(own_N.clone())
        first_N = torch.where(own_N == largest_N, index_N + self.begin, self._vocab_size)
        return -self.ranks.max_(-first_N)


class ShardedEmbedding(nn.Embedding):
    """The embedding rows of this rank's tokens; other tokens give zeros, and the sum over ranks has all rows."""

    def __init__(self, weight: Tensor, vocabulary: ShardedVocabulary) -> None:
        rows, width = weight.shape
        super().__init__(rows, width, _weight=weight)
        self._vocabulary = vocabulary

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows f32[..., D] of tokens i64[...]."""
        begin, end = self._vocabulary.begin, self._vocabulary.end
        own = (input >= begin) & (input < end)
        rows = F.embedding((input - begin).clamp(0, end - begin - 1), self.weight)
        return reduce_from_ranks_(rows * own[..., None], self._vocabulary.ranks)
