"""The building blocks of a conversion: where each of our weights comes from, and a class of `transformers` as a whole.

A weight map has, for each weight of ours, the published tensors that it is made of. It is applied in both directions.
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
    """The published tensors that one weight of ours is made of: equal parts, concatenated along the first dimension."""

    names: tuple[str, ...]
    transposed: bool = False
    """Whether they are stored with inputs before outputs (GPT-2's Conv1D)."""
    fused_heads: int = 0
    """Number of heads where the published tensor interleaves query, key and value by head (GPT-NeoX); ours has all
    queries first."""
    leading_rows: int = 0
    """Rows that the published table has before ours (OPT's positions); negative where ours has more."""
    reversed_rows: bool = False
    """Whether the published rows are in reverse order (BERT's next-sentence head)."""

    def to_native(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return our weight, given the published tensors in the order of `names`."""
        ours = torch.cat([tensor.T if self.transposed else tensor for tensor in tensors])
        if self.fused_heads:
            ours = ours.unflatten(0, (self.fused_heads, 3, -1)).transpose(0, 1).flatten(0, 2)
        ours = _shifted(ours, -self.leading_rows)
        return ours.flip(0) if self.reversed_rows else ours

    def to_published(self, ours: Tensor) -> list[Tensor]:
        """Return the published tensors, given our weight; rows that ours does not have are zeros."""
        theirs = _shifted(ours.flip(0) if self.reversed_rows else ours, self.leading_rows)
        if self.fused_heads:
            theirs = theirs.unflatten(0, (3, self.fused_heads, -1)).transpose(0, 1).flatten(0, 2)
        parts = theirs.chunk(len(self.names))
        return [(part.T if self.transposed else part).contiguous() for part in parts]

    def published_shapes(self, ours: Tensor) -> list[tuple[int, ...]]:
        """Return the shapes of the published tensors, given our weight, of which only the shape is used."""
        return [tuple(tensor.shape) for tensor in self.to_published(ours.to("meta"))]


WeightMap = Mapping[str, WeightSource]


@dataclass(frozen=True)
class Family:
    """A class of `transformers`: how its settings and weights convert to and from ours.

    Configurations are ours, of the family's architecture.
    """

    model_type: str
    """`model_type` of its `config.json`."""
    class_name: str
    """Name of the class with all its heads."""
    read: Callable[[Settings], Any]
    """Convert its settings to our configuration; InputError where ours has no equivalent."""
    write: Callable[[Any], dict[str, Any]]
    """Convert our configuration to the nearest settings; reading them restores all that the class can compute."""
    weight_map: Callable[[Any], dict[str, WeightSource]]
    """Return the source of each weight of ours."""
    aliases: Callable[[Any], Mapping[str, str]]
    """Return published names whose tensors may repeat another, mapped to that other name (tied weights)."""
    body: str = ""
    """Prefix of the names of all weights except the heads'; files saved from the body alone lack it."""
    no_weights: str = r"(?!)"
    """Regular expression of published tensors that are computed, or never used."""


def linear(
    ours: str, *theirs: str, biases: bool, transposed: bool = False, fused_heads: int = 0
) -> dict[str, WeightSource]:
    """Return the sources of a linear layer's weight, and of its bias."""
    weight_map = {f"{ours}.weight": WeightSource(tuple(f"{name}.weight" for name in theirs), transposed, fused_heads)}
    if biases:
        weight_map[f"{ours}.bias"] = WeightSource(tuple(f"{name}.bias" for name in theirs), fused_heads=fused_heads)
    return weight_map


def import_weights(
    published: Mapping[str, Tensor], weight_map: WeightMap, aliases: Mapping[str, str] | None = None
) -> dict[str, Tensor]:
    """Convert published weights to ours, by name.

    `aliases` are published names that repeat another tensor, such as a tied head, and may be missing. Raises InputError
    for a tensor that is missing or unexpected: a network with another part would compute something else.
    """
    needed = {name for source in weight_map.values() for name in source.names}
    missing, left_over = sorted(needed - published.keys()), sorted(published.keys() - needed - (aliases or {}).keys())
    if missing or left_over:
        raise InputError(
            f"these weights are not of the requested network: {some(missing)} missing, {some(left_over)} unexpected."
            f" Compare the two configurations: number of layers, biases, tied head."
        )
    return {ours: source.to_native([published[name] for name in source.names]) for ours, source in weight_map.items()}


def export_weights(weights: Mapping[str, Tensor], weight_map: WeightMap) -> dict[str, Tensor]:
    """Convert our weights to published ones, by name: the inverse of `import_weights`, without aliases."""
    return {
        name: part
        for ours, source in weight_map.items()
        for name, part in zip(source.names, source.to_published(weights[ours]), strict=True)
    }


def _shifted(table: Tensor, rows: int) -> Tensor:
    """Return the table with `rows` rows of zeros prepended, or without its first `-rows` rows."""
    if rows > 0:
        return torch.cat((table.new_zeros(rows, *table.shape[1:]), table))
    return table[-rows:]


def some(names: Sequence[str]) -> str:
    """Return the number of names and the first three of them, for messages."""
    shown = ", ".join(names[:3])
    return f"{len(names)} ({shown}{', ...' if len(names) > 3 else ''})" if names else "none"
