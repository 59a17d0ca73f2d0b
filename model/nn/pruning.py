"""Parts of a trained GPT taken out, to see what each is worth (Michel et al. 2019, heads; Men et al. 2024, layers).

A part is taken out by taking away what it adds to the residual stream: the columns of a head in the matrix behind
attention, or that matrix as a whole, or the one behind the MLP. What the part computed before is then read by nobody,
so that the network is that of its size without the part.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from model.nn.block import Block
from model.nn.gpt import GPT

Kind = Literal["head", "attention", "mlp", "layer"]


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
    """Every part of these kinds, layer by layer."""
    found: list[Part] = []
    for kind in kinds:
        for layer in range(network.config.layers):
            heads = range(network.config.heads) if kind == "head" else (None,)
            found += [Part(kind, layer, head) for head in heads]
    return found


def removed_parameters(network: GPT, parts: Iterable[Part]) -> int:
    """Numbers that the network does not need without these parts, each counted once."""
    whole_layers = {part.layer for part in parts if part.kind == "layer"}
    attentions = {part.layer for part in parts if part.kind == "attention"} - whole_layers
    mlps = {part.layer for part in parts if part.kind == "mlp"} - whole_layers
    heads = {(part.layer, part.head) for part in parts if part.kind == "head"}
    total = sum(_count(_block(network, layer)) for layer in whole_layers)
    total += sum(_count(*_attention(_block(network, layer))) for layer in attentions)
    total += sum(_count(*_mlp(_block(network, layer))) for layer in mlps)
    return total + sum(_of_head(_block(network, layer)) for layer, _ in heads if layer not in whole_layers | attentions)


@contextmanager
def ablated(network: GPT, parts: Iterable[Part]) -> Iterator[None]:
    """Within this block the network is without the parts; behind it, it has its very bits again."""
    changed = [weight for part in parts for weight in _written_to(network, part)]
    kept = {id(weight): weight.detach().clone() for weight in changed}
    try:
        with torch.no_grad():
            for part in parts:
                _take_out(network, part)
        yield
    finally:
        with torch.no_grad():
            for weight in changed:
                weight.copy_(kept[id(weight)])


def _take_out(network: GPT, part: Part) -> None:
    block = _block(network, part.layer)
    if part.head is not None:
        size = block.shape.head_size
        block.attention_out.weight[:, part.head * size : (part.head + 1) * size] = 0.0
        return
    for weight in _written_to(network, part):
        weight.zero_()


def _written_to(network: GPT, part: Part) -> list[nn.Parameter]:
    block = _block(network, part.layer)
    if part.kind == "head":
        weight = block.attention_out.weight
        assert isinstance(weight, nn.Parameter)
        return [weight]
    attention, mlp = list(block.attention_out.parameters()), list(block.mlp_out.parameters())
    return {"attention": attention, "mlp": mlp, "layer": [*attention, *mlp]}[part.kind]


def _block(network: GPT, layer: int) -> Block:
    block = network.blocks[layer]
    assert isinstance(block, Block)
    return block


def _attention(block: Block) -> tuple[nn.Module, ...]:
    norms = (block.query_norm, block.key_norm) if block.shape.qk_norm else ()
    return (block.attention_norm, block.attention_in, block.attention_out, *norms)


def _mlp(block: Block) -> tuple[nn.Module, ...]:
    return (block.mlp_norm, block.mlp_in, block.mlp_out)


def _of_head(block: Block) -> int:
    """Its rows of queries, keys and values, and its columns behind attention; what all heads share stays."""
    biases = 3 if block.shape.biases else 0
    return block.shape.head_size * (4 * block.shape.width + biases)


def _count(*modules: nn.Module) -> int:
    return sum(weight.numel() for module in modules for weight in module.parameters())
