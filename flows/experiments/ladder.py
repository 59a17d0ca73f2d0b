"""A ladder of a scaling study: a TOML file, given by path or by the name of a shipped one. Loads no Prefect.

seeds = 2                        # runs of each size; `--seeds` overrides it
tokens_per_parameter = 20        # what each model reads; or `tokens`, the same for all

[base]                           # settings of all runs
"train.model.mup_base_width" = 64

[[sizes]]                        # four or more; the largest is held back
width = 64
layers = 2
heads = 4
"""

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, model_validator

from flows.experiments.scaling_law import ScalePoint
from flows.experiments.studies import SHIPPED, Setting, named_in_errors, read_config, study_name
from flows.recipe.load import as_setting, load_recipe, locate_recipe, shipped_file
from flows.recipe.schema import Recipe
from model.errors import RecipeError
from tasks.common.config import StrictConfig

FOLDER = "ladders"

LADDERS = SHIPPED / FOLDER

LEAST_SIZES = 4
"""Three determine the law, and the largest is held back."""

PLACEHOLDER_TOKENS = 10**6
"""Budget of recipes that are loaded only for the size of their network."""


class Size(StrictConfig):
    """The size of a network; everything else is the recipe's."""

    width: int = Field(ge=8, le=2**16)
    layers: int = Field(ge=1, le=512)
    heads: int = Field(ge=1, le=512)

    @property
    def name(self) -> str:
        """Name of the size in runs and tables."""
        return f"{self.layers} layers of {self.width}"

    @property
    def settings(self) -> dict[str, Setting]:
        return {f"train.model.{key}": value for key, value in self.model_dump().items()}


class LadderConfig(StrictConfig):
    """The contents of the file."""

    seeds: int = Field(default=2, ge=1, le=100)
    """Runs of each size, under consecutive seeds."""
    tokens_per_parameter: float = Field(default=20.0, gt=0, le=10_000)
    """Tokens that a model reads for each of its parameters in blocks (Hoffmann et al. 2022: 20)."""
    tokens: int | None = Field(default=None, gt=0)
    """Tokens that every model reads, instead of a number per parameter. The law is then of size alone (Kaplan et al.
    2020, section 3.2), and its E is the loss that this amount of text leaves for a network of any size."""
    measure: str = "bits per byte"
    """The loss of the law: a held-out metric as the ablation's table names it, or `training loss`."""
    base: dict[str, Setting] = Field(default_factory=dict)
    """Settings that override the recipe's in every run."""
    sizes: tuple[Size, ...]
    """The networks, four or more: the largest is held back, and the law is fitted to the others."""

    @model_validator(mode="after")
    def _enough_to_fit(self) -> "LadderConfig":
        if len(self.sizes) < LEAST_SIZES:
            raise ValueError(f"a ladder needs {LEAST_SIZES} sizes at least; it has {len(self.sizes)}")
        if len({size.name for size in self.sizes}) < len(self.sizes):
            raise ValueError("two sizes are the same")
        if (len(self.sizes) - 1) * self.seeds < 4:
            each = f"{self.seeds} {'seed' if self.seeds == 1 else 'seeds'}"
            raise ValueError(
                f"{len(self.sizes)} sizes of {each}, the largest held back, leave {(len(self.sizes) - 1) * self.seeds}"
                f" runs to fit, too few for three unknowns and their scatter; take two seeds, or more sizes"
            )
        return self

    def tokens_of(self, parameters: int) -> int:
        """Return the tokens that a model with this number of parameters in blocks reads."""
        return self.tokens or round(self.tokens_per_parameter * parameters)

    def run_settings(self, size: Size, tokens: int, most_tokens: int, seed: int) -> list[str]:
        """Return the settings of a run, as `--set` takes them; all keep the text for a run of `most_tokens`."""
        budgets = {"budget_tokens": most_tokens, "chunk.budget_tokens": tokens}
        values = {**self.base, **size.settings, **budgets, "train.seed": seed}
        return [as_setting(key, value) for key, value in values.items()]


@dataclass(frozen=True)
class Ladder:
    """A ladder of a recipe, the folder of its report, and its sizes, smallest first."""

    config: LadderConfig
    recipe: Path
    folder: Path
    points: list[ScalePoint]


def read_ladder(
    recipe: str, ladder: str, root: Path, seeds: int | None, limit: float, settings: tuple[str, ...]
) -> Ladder:
    """Return the ladder in a file for a recipe; RecipeError where its sizes do not fit the recipe."""
    home = root.resolve()
    path, file = locate_recipe(recipe, home), shipped_file(ladder, LADDERS, "ladder")
    config = read_config(LadderConfig, file, seeds=seeds)
    folder = home / FOLDER / study_name(path.stem, file.stem)
    return Ladder(config, path, folder, scale_points(config, path, home, settings, limit, str(file)))


def scale_points(
    config: LadderConfig, path: Path, root: Path, settings: tuple[str, ...], limit: float, file: str = "ladder"
) -> list[ScalePoint]:
    """Return the sizes with their parameters and tokens, smallest first.

    Raises RecipeError, before anything runs, for an invalid size, for sizes of too few different numbers of
    parameters or two largest ones, or where the recipe's network is no GPT.
    """
    load_recipe(path, root, settings, limit)  # An error of the recipe alone is not one of a size.
    points: list[ScalePoint] = []
    for size in config.sizes:
        text = config.run_settings(size, PLACEHOLDER_TOKENS, PLACEHOLDER_TOKENS, 1)
        with named_in_errors(f"{file}, {size.name}", path, text):
            sized = load_recipe(path, root, [*settings, *text], limit)
        parameters = block_weights(sized)
        points.append(ScalePoint(size.name, parameters, config.tokens_of(parameters)))
    points.sort(key=lambda point: point.parameters)
    different = len({point.parameters for point in points})
    if different < LEAST_SIZES:
        sizes = ", ".join(f"{point.parameters:,} of {point.size}" for point in points)
        raise RecipeError(
            f"scale: the law needs {LEAST_SIZES} different numbers of weights in blocks, and the ladder has"
            f" {different}: {sizes}. Change sizes that have the same number"
        )
    second, largest = points[-2:]
    if second.parameters == largest.parameters:
        raise RecipeError(
            f"scale: the size that is held back and predicted must be larger than all others: {second.size} has as many"
            f" weights in blocks ({largest.parameters:,}) as {largest.size}. Change one of them"
        )
    return points


def block_weights(recipe: Recipe) -> int:
    """Return the number of parameters of the matrices in blocks, which does not depend on the vocabulary."""
    import torch

    from model.nn.factory import make_network
    from model.optim.optimizers import group_parameters

    if recipe.train.model.architecture != "gpt":
        raise RecipeError(
            f"a scaling law needs a network that predicts text, and train.model.architecture is"
            f" {recipe.train.model.architecture}. Set it to gpt."
        )
    with torch.device("meta"):
        network = make_network(recipe.train.model)
    return sum(parameter.numel() for parameter in group_parameters(network).hidden)
