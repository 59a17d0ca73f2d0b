"""A scaling study as a Prefect flow: a law fitted to the losses of a ladder of small models predicts a larger one.

Each (size, seed) is one task run. The largest size is trained after the prediction for it is written.
"""

import re
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, tags
from prefect.states import Completed, Failed
from pydantic import Field

from flows.experiments.scaling_law import LadderConfig, ScalePoint, ladder_file, read_ladder, write_report
from flows.experiments.trials import RunResult, Variant, run_variants
from flows.recipe.load import load_recipe, locate_recipe
from flows.recipe.schema import Recipe
from model.errors import BessemerError, GuardError, RecipeError
from tasks.execution.outcome import one_line

FOLDER = "ladders"

PLACEHOLDER_TOKENS = 10**6
"""Budget of recipes that are loaded only for the size of their network."""


@flow(name="scale", persist_result=False, validate_parameters=True)
def scale(
    recipe: str,
    ladder: str,
    root: Path = Path("bessemer-data"),
    seeds: Annotated[int, Field(ge=1)] | None = None,
    limit: Annotated[float, Field(gt=0, le=1)] = 1.0,
    settings: tuple[str, ...] = (),
) -> dict[str, Any]:
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
    root = root.resolve()
    try:
        path, file = locate_recipe(recipe, root), ladder_file(ladder)
        config = read_ladder(file, seeds)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{path.stem}-{file.stem}")
        points = scale_points(config, path, root, settings, limit)
        folder = root / FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        with tags(f"ladder:{name}"):
            _train_all(config, points, path, root, folder, settings, limit)
        found = write_report(name, config, points, folder)
    except BessemerError as error:
        return Failed(name=type(error).__name__, message=one_line(error), data=error)  # pyright: ignore[reportReturnType]
    return Completed(message=found["told"], data=found)  # pyright: ignore[reportReturnType]


def scale_points(
    config: LadderConfig, path: Path, root: Path, settings: tuple[str, ...], limit: float
) -> list[ScalePoint]:
    """Return the sizes with their parameters and tokens, smallest first.

    Raises RecipeError, before anything runs, for an invalid size, or where the recipe's network is no GPT.
    """
    points: list[ScalePoint] = []
    for size in config.sizes:
        text = config.run_settings(size, PLACEHOLDER_TOKENS, PLACEHOLDER_TOKENS, 1)
        parameters = block_weights(load_recipe(path, root, [*settings, *text], limit))
        points.append(ScalePoint(size, parameters, config.tokens_of(parameters)))
    return sorted(points, key=lambda point: point.parameters)


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
        f"scale: no run of {point.size.name} has a result ({why}). The law needs one of each size, so larger sizes"
        f" were not started. Fix the cause and run again; finished runs are reused."
    )


def _train_all(
    config: LadderConfig,
    points: list[ScalePoint],
    path: Path,
    root: Path,
    folder: Path,
    settings: tuple[str, ...],
    limit: float,
) -> None:
    """Train the smallest size first, so that the prediction is written before the largest is trained."""
    most = max(point.tokens for point in points)
    recipes: dict[tuple[str, int], Recipe] = {}
    for point in points:
        for seed in range(1, config.seeds + 1):
            text = config.run_settings(point.size, point.tokens, most, seed)
            recipe = load_recipe(path, root, [*settings, *text], limit)
            name = f"{recipe.name}, {point.size.name}, seed {seed}"[:80]
            recipes[point.size.name, seed] = recipe.model_copy(update={"name": name})
    by_name = {point.size.name: point for point in points}

    def on_result(size: str, seed: int, result: RunResult) -> None:
        by_name[size].runs[seed] = result
        write_report(folder.name, config, points, folder)
        if len(by_name[size].runs) == config.seeds:
            check_measured(by_name[size], config.measure)

    run_variants({key: Variant(recipe) for key, recipe in recipes.items()}, root, folder, on_result)
