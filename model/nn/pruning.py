"""Ablation of parts of a trained GPT, to measure what each contributes (Michel et al. 2019: heads; Men et al. 2024:
layers).

A part is ablated by zeroing its output to the residual stream: the columns of a head in the output projection of
attention, that projection as a whole, or the one of the MLP. The network then computes what it would without the part.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from model.nn.block import Block
from model.nn.gpt import GPT

Kind = Literal["head", "attention", "mlp", "layer"]

_ATTENTION, _MLP = ("attention", "query_norm", "key_norm"), ("mlp", "experts")
"""Prefixes of the names of a block's modules."""


@dataclass(frozen=True)
class Part:
    """A head of a layer, its attention, its MLP, or all of it."""

    kind: Kind
    layer: int
    head: int | None = None

    @property
    def name(self) -> str:
        """`layer 3 head 1`, `layer 3 mlp`, `layer 3`; layers and heads count from 0."""
        what = {"head": f" head {self.head}", "layer": ""}.get(self.kind, f" {self.kind}")
        return f"layer {self.layer}{what}"


def parts_of(network: GPT, kinds: Iterable[Kind] = ("layer", "attention", "mlp", "head")) -> list[Part]:
    """Return every part of these kinds, layer by layer."""
    found: list[Part] = []
    for kind in kinds:
        for layer in range(network.config.layers):
            heads = range(network.config.heads) if kind == "head" else (None,)
            found += [Part(kind, layer, head) for head in heads]
    return found


def removed_parameters(network: GPT, parts: Collection[Part]) -> int:
    """Return how many parameters these parts have, each counted once."""
    whole_layers = {part.layer for part in parts if part.kind == "layer"}
    attentions = {part.layer for part in parts if part.kind == "attention"} - whole_layers
    mlps = {part.layer for part in parts if part.kind == "mlp"} - whole_layers
    heads = {(part.layer, part.head) for part in parts if part.kind == "head"}
    total = sum(_count(_block(network, layer), "") for layer in whole_layers)
    total += sum(_count(_block(network, layer), *_ATTENTION) for layer in attentions)
    total += sum(_count(_block(network, layer), *_MLP) for layer in mlps)
    return total + sum(
        _head_parameters(_block(network, layer)) for layer, _ in heads if layer not in whole_layers | attentions
    )


@contextmanager
def ablated(network: GPT, parts: Collection[Part]) -> Iterator[None]:
    """Ablate the parts within the block, and restore the weights bit for bit after it."""
    changed = [weight for part in parts for weight in _output_weights(network, part)]
    originals = {id(weight): weight.detach().clone() for weight in changed}
    try:
        with torch.no_grad():
            for part in parts:
                _zero_output(network, part)
        yield
    finally:
        with torch.no_grad():
            for weight in changed:
                weight.copy_(originals[id(weight)])


def _zero_output(network: GPT, part: Part) -> None:
    block = _block(network, part.layer)
    if part.head is not None:
        size = block.config.head_size
        block.attention_out.weight[:, part.head * size : (part.head + 1) * size] = 0.0
        return
    for weight in _output_weights(network, part):
        weight.zero_()


def _output_weights(network: GPT, part: Part) -> list[nn.Parameter]:
    block = _block(network, part.layer)
    if part.kind == "head":
        weight = block.attention_out.weight
        assert isinstance(weight, nn.Parameter)
        return [weight]
    attention = list(block.attention_out.parameters())
    mlp = [block.experts.mlp_out] if block.config.experts is not None else list(block.mlp_out.parameters())
    return {"attention": attention, "mlp": mlp, "layer": [*attention, *mlp]}[part.kind]


def _block(network: GPT, layer: int) -> Block:
    block = network.blocks[layer]
    assert isinstance(block, Block)
    return block


def _head_parameters(block: Block) -> int:
    """Return its rows of queries, keys and values and its columns of the output projection; shared parameters stay.

    Keys and values that several heads share are nobody's own.
    """
    own = ["attention_query"]
    if block.config.kv_inner == block.config.inner:
        own += ["attention_key", "attention_value"]
    return _count(block, *own) // block.config.heads + block.config.head_size * block.config.width


def _count(block: Block, *prefixes: str) -> int:
    """Return how many parameters the modules of a block have whose names begin so."""
    return sum(weight.numel() for name, weight in block.named_parameters() if name.startswith(prefixes))
