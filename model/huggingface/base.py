"""The building blocks of a conversion: where each of our weights comes from, and a class of `transformers` as a whole.

A weight map has, for each weight of ours, the published tensor that it is, or is a part of. It is applied in both
directions.

Imports no PyTorch before weights are converted, since `bessemer plan` says whether a network can be exported.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from model.huggingface.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class WeightSource:
    """The published tensor, or the part of one, that a weight of ours is."""

    name: str
    transposed: bool = False
    """Whether it is stored with inputs before outputs (GPT-2's Conv1D)."""
    part: int = 0
    """Which of `parts` equal parts of the published outputs ours is: 0 for queries, 1 for keys, 2 for values."""
    parts: int = 1
    heads: int = 0
    """Number of heads where the parts alternate by head (GPT-NeoX), instead of following each other."""
    leading_rows: int = 0
    """Rows that the published table has before ours (OPT's positions); negative where ours has more."""
    reversed_rows: bool = False
    """Whether the published rows are in reverse order (BERT's next-sentence head)."""
    experts: int = 0
    """Number of published tensors that ours stacks, each with inputs before outputs; `name` has `{}` for the number of
    the expert."""

    @property
    def names(self) -> list[str]:
        """The published tensors that ours is made of."""
        return [self.name.format(number) for number in range(self.experts)] if self.experts else [self.name]

    def add_to(self, weights: "dict[str, Tensor]", ours: str, name: str, published: "Tensor") -> None:
        """Set our weight, or the part of it that the published tensor `name` is."""
        if not self.experts:
            weights[ours] = self.to_native(published).contiguous()
            return
        if ours not in weights:
            weights[ours] = published.new_empty(self.experts, *reversed(published.shape))
        weights[ours][self.names.index(name)] = published.T

    def to_native(self, published: "Tensor") -> "Tensor":
        """Return our weight."""
        ours = published.T if self.transposed else published
        if self.parts > 1:
            ours = ours.unflatten(0, (self.heads or 1, self.parts, -1))[:, self.part].flatten(0, 1)
        ours = _shifted(ours, -self.leading_rows)
        return ours.flip(0) if self.reversed_rows else ours

    def to_published(self, parts: Sequence["Tensor"]) -> "Tensor":
        """Return the published tensor, given all weights of ours that are parts of it; missing rows are zeros."""
        import torch

        theirs = [_shifted(ours.flip(0) if self.reversed_rows else ours, self.leading_rows) for ours in parts]
        joined = torch.stack([part.unflatten(0, (self.heads or 1, -1)) for part in theirs], dim=1).flatten(0, 2)
        return (joined.T if self.transposed else joined).contiguous()


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
    tied: Mapping[str, str]
    """Published names of a tied head -> the names of the tensors that they may repeat."""
    repeated: Mapping[str, str] = field(default_factory=dict)
    """Likewise names that may repeat another whatever the head."""
    body: str = ""
    """Prefix of the names of all weights except the heads'; files saved from the body alone lack it."""
    no_weights: str = r"(?!)"
    """Regular expression of published tensors that are computed, or never used."""

    def aliases(self, config: Any) -> dict[str, str]:
        """Return published names whose tensors may repeat another, mapped to that other name."""
        return {**self.repeated, **(self.tied if getattr(config, "tied_head", True) else {})}


Names = Mapping[str, tuple[str, Any]]
"""Our settings that a class has under a name of its own: ours -> (theirs, its default)."""


def read_named(settings: Settings, names: Names) -> dict[str, Any]:
    """Return our values of the settings in a `config.json`."""
    return {ours: settings.get(theirs, default) for ours, (theirs, default) in names.items()}


def write_named(config: Any, names: Names) -> dict[str, Any]:
    """Return the settings of a `config.json` that have our values."""
    return {theirs: getattr(config, "hidden" if ours == "ffn_width" else ours) for ours, (theirs, _) in names.items()}


def name_of(activation: str, meanings: Mapping[str, str], default: str) -> str:
    """Return the first name that a class has for our activation; its default where it has none."""
    return next((theirs for theirs, ours in meanings.items() if ours == activation), default)


def linear(ours: str, theirs: str, *, biases: bool, transposed: bool = False) -> dict[str, WeightSource]:
    """Return the sources of a linear layer's weight, and of its bias."""
    weight_map = {f"{ours}.weight": WeightSource(f"{theirs}.weight", transposed)}
    if biases:
        weight_map[f"{ours}.bias"] = WeightSource(f"{theirs}.bias")
    return weight_map


def fused(ours: Sequence[str], theirs: str, *, transposed: bool = False, heads: int = 0) -> dict[str, WeightSource]:
    """Return the sources of several linear layers of ours, with biases, that the published network has in one."""
    weight_map: dict[str, WeightSource] = {}
    for part, name in enumerate(ours):
        weight_map[f"{name}.weight"] = WeightSource(f"{theirs}.weight", transposed, part, len(ours), heads)
        weight_map[f"{name}.bias"] = WeightSource(f"{theirs}.bias", False, part, len(ours), heads)
    return weight_map


def by_published_name(weight_map: WeightMap) -> dict[str, list[str]]:
    """Return published tensor -> our weights that are it, or its parts in their order, or that it is a part of."""
    ours_of: dict[str, list[str]] = {}
    for ours, source in weight_map.items():
        for name in source.names:
            ours_of.setdefault(name, []).append(ours)
    return ours_of


def export_weights(weights: Mapping[str, "Tensor"], weight_map: WeightMap) -> dict[str, "Tensor"]:
    """Convert our weights to published ones, by name, without aliases.

    Shapes are those of the result also where `weights` are on the meta device.
    """
    return {
        name: published_tensor(name, ours, weights, weight_map) for name, ours in by_published_name(weight_map).items()
    }


def published_tensor(
    name: str, ours: Sequence[str], weights: Mapping[str, "Tensor"], weight_map: WeightMap
) -> "Tensor":
    """Return the published tensor `name`, which our weights `ours` are, or are parts of, or contain."""
    source = weight_map[ours[0]]
    if source.experts:
        return weights[ours[0]][source.names.index(name)].T.contiguous()
    return source.to_published([weights[part] for part in ours])


def _shifted(table: "Tensor", rows: int) -> "Tensor":
    """Return the table with `rows` rows of zeros prepended, or without its first `-rows` rows."""
    if rows > 0:
        import torch

        return torch.cat((table.new_zeros(rows, *table.shape[1:]), table))
    return table[-rows:]
