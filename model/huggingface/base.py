"""What one class of `transformers` is: its settings and its weights, against ours.

Weights taken over from a network with other names, and given back.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from model.errors import InputError
from model.huggingface.settings import Settings

NO_ALIASES: Mapping[str, str] = {}


@dataclass(frozen=True)
class WeightSource:
    """The published tensors that one weight of ours is made of: equal parts, one below the other."""

    names: tuple[str, ...]
    transposed: bool = False
    """Whether they are stored with inputs before outputs (GPT-2's Conv1D)."""
    fused_heads: int = 0
    """Heads whose query, key and value stand together in the one published tensor (GPT-NeoX); ours has all queries
    first."""
    leading_rows: int = 0
    """Rows that the published table has before ours (OPT's positions); negative where ours has more."""
    reversed_rows: bool = False
    """Whether the published rows stand in the other order (BERT's answers)."""

    def to_native(self, tensors: Sequence[Tensor]) -> Tensor:
        """Our weight, made of the tensors of these names."""
        ours = torch.cat([tensor.T if self.transposed else tensor for tensor in tensors])
        if self.fused_heads:
            ours = ours.unflatten(0, (self.fused_heads, 3, -1)).transpose(0, 1).flatten(0, 2)
        ours = _shifted(ours, -self.leading_rows)
        return ours.flip(0) if self.reversed_rows else ours

    def to_published(self, ours: Tensor) -> list[Tensor]:
        """The published tensors, made of our weight; rows that we do not have are zeros."""
        theirs = _shifted(ours.flip(0) if self.reversed_rows else ours, self.leading_rows)
        if self.fused_heads:
            theirs = theirs.unflatten(0, (3, self.fused_heads, -1)).transpose(0, 1).flatten(0, 2)
        parts = theirs.chunk(len(self.names))
        return [(part.T if self.transposed else part).contiguous() for part in parts]

    def published_shapes(self, ours: Tensor) -> list[tuple[int, ...]]:
        """The shapes of the published tensors that our weight, of which only the shape counts, is made of."""
        return [tuple(tensor.shape) for tensor in self.to_published(ours.to("meta"))]


@dataclass(frozen=True)
class Family:
    """A class of networks, read from a folder and written into one.

    Configurations are ours, of the family's architecture.
    """

    model_type: str
    """`model_type` of its `config.json`."""
    class_name: str
    """The class that has all its heads."""
    read: Callable[[Settings], Any]
    """Our configuration of its settings; InputError where we have none."""
    write: Callable[[Any], dict[str, Any]]
    """The settings nearest to our configuration: reading them gives it back, but for what the class cannot compute."""
    weight_map: Callable[[Any], dict[str, WeightSource]]
    """Where each weight of ours comes from."""
    aliases: Callable[[Any], Mapping[str, str]]
    """Published names that may hold again what stands under another."""
    body: str = ""
    """First part of the names of all weights but the heads'; files saved from the body alone lack it."""
    no_weights: str = r"(?!)"
    """Regular expression of published tensors that are computed, or never used."""


WeightMap = Mapping[str, WeightSource]


def linear(
    ours: str, *theirs: str, biases: bool, transposed: bool = False, fused_heads: int = 0
) -> dict[str, WeightSource]:
    """The origins of a linear layer's weight, and of its bias."""
    weight_map = {f"{ours}.weight": WeightSource(tuple(f"{name}.weight" for name in theirs), transposed, fused_heads)}
    if biases:
        weight_map[f"{ours}.bias"] = WeightSource(tuple(f"{name}.bias" for name in theirs), fused_heads=fused_heads)
    return weight_map


def import_weights(
    published: Mapping[str, Tensor], weight_map: WeightMap, aliases: Mapping[str, str] | None = None
) -> dict[str, Tensor]:
    """Our weights by name, made of the published ones.

    `aliases` are published names that hold again what stands under another, such as a tied head, which may be left out.
    Raises InputError for a tensor that is missing or has no place here: a network with another part would compute
    something else.
    """
    needed = {name for source in weight_map.values() for name in source.names}
    missing, left_over = sorted(needed - published.keys()), sorted(published.keys() - needed - (aliases or {}).keys())
    if missing or left_over:
        raise InputError(
            f"these weights are not of the network that was asked for: {some(missing)} missing, {some(left_over)}"
            f" with no place in it. Compare the two configurations: number of layers, biases, tied head."
        )
    return {ours: source.to_native([published[name] for name in source.names]) for ours, source in weight_map.items()}


def export_weights(weights: Mapping[str, Tensor], weight_map: WeightMap) -> dict[str, Tensor]:
    """The published weights by name, made of ours: what `import_weights` took, without its copies."""
    return {
        name: part
        for ours, source in weight_map.items()
        for name, part in zip(source.names, source.to_published(weights[ours]), strict=True)
    }


def some(names: Sequence[str]) -> str:
    """How many names, and the first three of them."""
    shown = ", ".join(names[:3])
    return f"{len(names)} ({shown}{', ...' if len(names) > 3 else ''})" if names else "none"


def _shifted(table: Tensor, rows: int) -> Tensor:
    """With so many rows of zeros before it; without its first ones where negative."""
    if rows > 0:
        return torch.cat((table.new_zeros(rows, *table.shape[1:]), table))
    return table[-rows:]
