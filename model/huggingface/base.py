"""The building blocks of a conversion: where each of our weights comes from, and a class of `transformers` as a whole.

A weight map has, for each weight of ours, the published tensor that it is, or is a part of. It is applied in both
directions.

Imports no PyTorch before weights are converted, since `bessemer plan` says whether a network can be exported.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from model.config.network import BERTConfig, GPTConfig, T5Config
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

Modules = Mapping[str, str | WeightSource]
"""Our modules -> those of a class, or where it stores them otherwise the source of their weights without `.weight`. In
names of blocks `{}` is the number; modules that a network lacks are passed over."""

Names = Mapping[str, tuple[str, Any]]
"""Our settings that a class has under a name of its own: ours -> (theirs, its default)."""


@dataclass(frozen=True)
class Activations:
    """The setting with a class's non-linearity, its default, and what its values are called here."""

    key: str
    default: str
    meanings: Mapping[str, str]


def _nothing(*_: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Family:
    """A class of `transformers`: how its settings and weights convert to and from ours.

    Configurations are ours, of the family's architecture.
    """

    model_type: str
    """`model_type` of its `config.json`."""
    class_name: str
    """Name of the class with all its heads."""
    kind: type[GPTConfig | BERTConfig | T5Config]
    """The architecture."""
    names: Names
    activations: Activations
    modules: Callable[[Any], Modules]
    tied: Mapping[str, str]
    """Published names of a tied head -> the names of the tensors that they may repeat."""
    repeated: Mapping[str, str] = field(default_factory=dict)
    """Likewise names that may repeat another whatever the head."""
    body: str = ""
    """Prefix of the names of all weights except the heads'; files saved from the body alone lack it."""
    no_weights: str = r"(?!)"
    """Regular expression of published tensors that are computed, or never used."""
    expected: Mapping[str, Any] = field(default_factory=dict)
    """Settings whose other values no network here supports."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """What all networks of the class have, as our settings."""
    written: Mapping[str, str] = field(default_factory=dict)
    """Settings that are written and not read, since they matter to training alone -> ours."""
    read_more: Callable[[Settings, dict[str, Any]], dict[str, Any]] = _nothing
    """Return our other settings, given those of `names`; InputError where ours has no equivalent."""
    write_more: Callable[[Any], dict[str, Any]] = _nothing
    """Return the other settings of our configuration."""

    def read(self, settings: Settings) -> Any:
        """Convert the settings of a `config.json` to our configuration; InputError where ours has no equivalent."""
        for name, only in self.expected.items():
            settings.expect(name, only)
        named = {ours: settings.get(theirs, default) for ours, (theirs, default) in self.names.items()}
        activation = settings.lookup(self.activations.key, self.activations.meanings, self.activations.default)
        more = self.read_more(settings, named)
        return settings.build(self.kind, **{**self.fixed, **named, "activation": activation, **more})

    def write(self, config: Any) -> dict[str, Any]:
        """Convert our configuration to the nearest settings; reading them restores all that the class can compute."""
        settings = {
            theirs: getattr(config, "hidden" if ours == "ffn_width" else ours)
            for ours, (theirs, _) in self.names.items()
        }
        names = [theirs for theirs, ours in self.activations.meanings.items() if ours == config.activation]
        settings[self.activations.key] = names[0] if names else self.activations.default
        settings |= {theirs: getattr(config, ours) for theirs, ours in self.written.items()}
        return settings | self.write_more(config)

    def weight_map(self, config: Any, ours: Collection[str]) -> dict[str, WeightSource]:
        """Return the source of each weight of our network, whose names are `ours`."""
        return weight_sources(self.modules(config), config, ours)

    def aliases(self, config: Any) -> dict[str, str]:
        """Return published names whose tensors may repeat another, mapped to that other name."""
        return {**self.repeated, **(self.tied if getattr(config, "tied_head", True) else {})}


def in_blocks(ours: str, theirs: str, modules: Modules) -> dict[str, WeightSource]:
    """Return modules of a block, by their names in each block."""
    sources = ((name, _source(theirs_of_block)) for name, theirs_of_block in modules.items())
    return {f"{ours}.{{}}.{name}": replace(source, name=f"{theirs}.{source.name}") for name, source in sources}


def fused_attention(theirs: str, *, transposed: bool = False, heads: int = 0) -> dict[str, WeightSource]:
    """Return the sources of queries, keys and values that the published network has in one layer."""
    parts = enumerate(("query", "key", "value"))
    return {f"attention_{name}": WeightSource(theirs, transposed, part, 3, heads) for part, name in parts}


def weight_sources(modules: Modules, config: Any, own: Collection[str]) -> dict[str, WeightSource]:
    """Return the source of each weight in `own`: block after block where neighbours are of one stack."""
    found: dict[str, WeightSource] = {}
    for stack, of_stack in groupby(modules.items(), lambda item: item[0].rpartition("{}")[0]):
        members = [(ours, _source(theirs)) for ours, theirs in of_stack]
        for layer in map(str, range(config.layers if stack else 1)):
            for template, source in members:
                ours, theirs = template.replace("{}", layer), source.name.replace("{}", layer, 1)
                if ours in own:
                    found[ours] = replace(source, name=theirs)
                for kind in ("weight", "bias"):
                    if f"{ours}.{kind}" in own:
                        transposed = source.transposed and kind == "weight"
                        found[f"{ours}.{kind}"] = replace(source, name=f"{theirs}.{kind}", transposed=transposed)
    return found


def _source(theirs: str | WeightSource) -> WeightSource:
    return theirs if isinstance(theirs, WeightSource) else WeightSource(theirs)


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
