"""Tensor parallelism: every rank computes some heads, some hidden units of the MLP and some pieces of the vocabulary.

Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053, section 3. PyTorch's own (`torch.distributed.tensor.parallel`)
cuts a matrix at one place, and ours hold queries, keys and values, or gate and value, in one.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from model.blocks import Block
from model.networks import Network
from model.parallel.cuts import cut_weights
from model.parallel.exchange import added_up_, read_by_all
from model.parallel.vocabulary import EmbeddingPart, VocabularyPart
from model.ranks import Ranks

WAYS_IN = ("attention_in", "cross_attention_query", "cross_attention_memory", "mlp_in")
WAYS_OUT = ("attention_out", "cross_attention_out", "mlp_out")


def cut_network(network: Network, ranks: Ranks) -> None:
    """Make of a whole network this rank's part; all its methods give what they gave, given the same on every rank.

    Logits are the exception: they are those of this rank's pieces, which `network.vocabulary` makes sense of.
    """
    cut_weights(network, network.config, ranks)
    for block in network.modules():
        if isinstance(block, Block):
            _cut_block(block, ranks)
    network.vocabulary = vocabulary = VocabularyPart(network.config.vocab_size, ranks)
    if "embedding.weight" in dict(network.named_parameters()):
        network.embedding = EmbeddingPart(network.embedding.weight.detach(), vocabulary)


def _cut_block(block: Block, ranks: Ranks) -> None:
    block.shape = replace(block.shape, heads=block.shape.heads // ranks.size)
    for name, module in block.named_children():
        if name in WAYS_IN:
            module.register_forward_pre_hook(partial(_read, ranks))
        elif name in WAYS_OUT:
            module.register_forward_hook(partial(_add_up, ranks))


def _read(ranks: Ranks, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    del module
    return (read_by_all(inputs[0], ranks), *inputs[1:])


def _add_up(ranks: Ranks, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    del module, inputs
    return added_up_(output.float(), ranks)
