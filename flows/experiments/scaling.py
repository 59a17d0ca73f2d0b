"""A scaling study as a Prefect flow: a law fitted to the losses of a ladder of small models predicts a larger one.

Each (size, seed) is one task run. The largest size is trained after the prediction for it is written. A ladder is a
TOML file, given by path or by the name of a shipped one:

seeds = 2                        # runs of each size; `--seeds` overrides it
tokens_per_parameter = 20        # what each model reads; or `tokens`, the same for all

[base]                           # settings of all runs
"train.model.mup_base_width" = 64

[[sizes]]                        # four or more; the largest is held back
width = 64
layers = 2
heads = 4
"""

from pathlib import Path
from typing import Annotated

from prefect import flow, tags
from pydantic import Field, model_validator

from flows.experiments.scaling_law import LadderFound, ScalePoint, write_ladder
from flows.experiments.studies import SHIPPED, Setting, read_config, study_name
from flows.experiments.trials import RunResult, Variant, run_variants
from flows.recipe.load import as_setting, load_recipe, locate_recipe, shipped_file
from flows.recipe.schema import Recipe
from flows.runs.lifecycle import FlowEnd, end_of_flow
from model.errors import GuardError, RecipeError
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
    sizes: tuple[Size, ...] = Field(min_length=LEAST_SIZES)
    """The networks, four or more: the largest is held back, and the law is fitted to the others."""

    @model_validator(mode="after")
    def _enough_to_fit(self) -> "LadderConfig":
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


@flow(name="scale", persist_result=False, validate_parameters=True)
def scale(
    recipe: str,
    ladder: str,
    root: Path = Path("bessemer-data"),
    seeds: Annotated[int, Field(ge=1)] | None = None,
    limit: Annotated[float, Field(gt=0, le=1)] = 1.0,
    settings: tuple[str, ...] = (),
) -> LadderFound:
    """Train a ladder of models, fit a law to their losses, and compare its prediction with the largest model.

    An interrupted study continues; existing artifacts are reused. Returns the table as JSON values and the paths of its
    files.

    Args:
        recipe: A recipe file, or the name of one that ships.
        ladder: A file of sizes, or the name of one that ships.
        root: Folder of all artifacts, runs and ladders.
        seeds: Runs of each size; the file's number by default.
        limit: Share of every source to keep (0 to 1).
        settings: KEY=VALUE that override the recipe's in every run.
    """

    def work() -> FlowEnd[LadderFound]:
        home = root.resolve()
        path, file = locate_recipe(recipe, home), shipped_file(ladder, LADDERS, "ladder")
        config = read_config(LadderConfig, file, seeds=seeds)
        folder = home / FOLDER / study_name(path.stem, file.stem)
        sizes = {size.name: size for size in config.sizes}
        points = scale_points(config, path, home, settings, limit)
        per_parameter = None if config.tokens else config.tokens_per_parameter
        by_name, most = {point.size: point for point in points}, max(point.tokens for point in points)

        def variant(point: ScalePoint, seed: int) -> Variant:
            text = config.run_settings(sizes[point.size], point.tokens, most, seed)
            made = load_recipe(path, home, [*settings, *text], limit)
            return Variant(made.model_copy(update={"name": f"{made.name}, {point.size}, seed {seed}"[:80]}))

        def on_result(size: str, seed: int, result: RunResult) -> None:
            by_name[size].runs[seed] = result
            write_ladder(folder, config.measure, per_parameter, points)
            if len(by_name[size].runs) == config.seeds:
                check_measured(by_name[size], config.measure)

        # The smallest size first, so that the prediction is written before the largest is trained.
        seeds_of = range(1, config.seeds + 1)
        variants = {(point.size, seed): variant(point, seed) for point in points for seed in seeds_of}
        with tags(f"ladder:{folder.name}"):
            run_variants(variants, home, folder, on_result)
        found = write_ladder(folder, config.measure, per_parameter, points)
        return FlowEnd(found, found["outcome"])

    return end_of_flow(work)


def scale_points(
    config: LadderConfig, path: Path, root: Path, settings: tuple[str, ...], limit: float
) -> list[ScalePoint]:
    """Return the sizes with their parameters and tokens, smallest first.

    Raises RecipeError, before anything runs, for an invalid size, for sizes of too few different numbers of
    parameters or two largest ones, or where the recipe's network is no GPT.
    """
    points: list[ScalePoint] = []
    for size in config.sizes:
        text = config.run_settings(size, PLACEHOLDER_TOKENS, PLACEHOLDER_TOKENS, 1)
        parameters = block_weights(load_recipe(path, root, [*settings, *text], limit))
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


def check_measured(point: ScalePoint, measure: str) -> None:
    """Raise GuardError where all runs of a size are done and none has a loss, since the law could not be fitted."""
    if point.losses(measure):
        return
    causes = sorted({run.cause for run in point.runs.values() if run.cause})
    known = sorted({name for run in point.runs.values() for name in run.values})
    why = "; ".join(causes) or f"they measure {', '.join(known)}, and the ladder's `measure` asks for `{measure}`"
    raise GuardError(
        f"scale: no run of {point.size} has a result ({why}). The law needs one of each size, so larger sizes"
        f" were not started. Fix the cause and run again; finished runs are reused."
    )
