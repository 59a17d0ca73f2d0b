"""A ladder of models as a Prefect flow: one task run for each (size, seed), a law through the smaller ones, and what it
says of the largest, which is measured after the prediction is written.

From small to large: a law through the losses of a ladder of small models, and what it says of a larger one.
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

PROVISIONAL = 10**6
"""Tokens, where only the network is asked for."""


@flow(name="scale", persist_result=False, validate_parameters=True)
def scale(
    recipe: str,
    ladder: str,
    root: Path = Path("bessemer-data"),
    seeds: Annotated[int, Field(ge=1)] | None = None,
    limit: Annotated[float, Field(gt=0, le=1)] = 1.0,
    settings: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Train a ladder of models, fit the law of their losses, and hold it against the largest, which it has not seen.

    A ladder that was stopped goes on; what is built is reused. Returns the table as JSON values and where it is
    written.

    Args:
        recipe: A recipe file, or the name of one that ships.
        ladder: A file of sizes, or the name of one that ships.
        root: Folder of all artifacts, runs and ladders.
        seeds: Runs of each size; the file's number by default.
        limit: Share of every source to keep (0 to 1).
        settings: KEY=VALUE that overrule the recipe's in every run.
    """
    root = root.resolve()
    try:
        path, file = locate_recipe(recipe, root), ladder_file(ladder)
        asked = read_ladder(file, seeds)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{path.stem}-{file.stem}")
        rungs = scale_points(asked, path, root, settings, limit)
        folder = root / FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        with tags(f"ladder:{name}"):
            _train_all(asked, rungs, path, root, folder, settings, limit)
        found = write_report(name, asked, rungs, folder)
    except BessemerError as error:
        return Failed(name=type(error).__name__, message=one_line(error), data=error)  # pyright: ignore[reportReturnType]
    return Completed(message=found["told"], data=found)  # pyright: ignore[reportReturnType]


def scale_points(
    asked: LadderConfig, path: Path, root: Path, settings: tuple[str, ...], limit: float
) -> list[ScalePoint]:
    """The sizes with their weights and tokens, smallest first; RecipeError, before anything runs, for one that cannot
    be, or where the recipe's network is no GPT."""
    rungs: list[ScalePoint] = []
    for size in asked.sizes:
        text = asked.run_settings(size, PROVISIONAL, PROVISIONAL, 1)
        parameters = block_weights(load_recipe(path, root, [*settings, *text], limit))
        rungs.append(ScalePoint(size, parameters, asked.tokens_of(parameters)))
    return sorted(rungs, key=lambda rung: rung.parameters)


def block_weights(recipe: Recipe) -> int:
    """Weights of the matrices in blocks: what grows with a network, whatever its vocabulary."""
    import torch

    from model.nn.factory import make_network
    from model.optim.optimizers import grouped

    if recipe.train.model.architecture != "gpt":
        raise RecipeError(
            f"a ladder's law is of a network that predicts text, and train.model.architecture is"
            f" {recipe.train.model.architecture}. Set it to gpt."
        )
    with torch.device("meta"):
        network = make_network(recipe.train.model)
    return sum(parameter.numel() for parameter in grouped(network).hidden)


def check_measured(rung: ScalePoint, measure: str) -> None:
    """Raises GuardError where all runs of a size are done and none came to a number: larger ones would be trained for
    a law that cannot be fitted."""
    if rung.losses(measure):
        return
    causes = sorted({run.cause for run in rung.runs.values() if run.cause})
    known = sorted({name for run in rung.runs.values() for name in run.values})
    why = "; ".join(causes) or f"they measure {', '.join(known)}, and the ladder's `measure` asks for `{measure}`"
    raise GuardError(
        f"scale: no run of {rung.size.name} came to a number ({why}). The law needs one of each size, so larger ones"
        f" were not begun. Mend the cause and call again; runs that came to their end are reused."
    )


def _train_all(
    asked: LadderConfig,
    rungs: list[ScalePoint],
    path: Path,
    root: Path,
    folder: Path,
    settings: tuple[str, ...],
    limit: float,
) -> None:
    """Smallest size first, so that the prediction stands before the largest is trained."""
    most = max(rung.tokens for rung in rungs)
    recipes: dict[tuple[str, int], Recipe] = {}
    for rung in rungs:
        for seed in range(1, asked.seeds + 1):
            text = asked.run_settings(rung.size, rung.tokens, most, seed)
            recipe = load_recipe(path, root, [*settings, *text], limit)
            name = f"{recipe.name}, {rung.size.name}, seed {seed}"[:80]
            recipes[rung.size.name, seed] = recipe.model_copy(update={"name": name})
    by_name = {rung.size.name: rung for rung in rungs}

    def take(size: str, seed: int, came: RunResult) -> None:
        by_name[size].runs[seed] = came
        write_report(folder.name, asked, rungs, folder)
        if len(by_name[size].runs) == asked.seeds:
            check_measured(by_name[size], asked.measure)

    run_variants({key: Variant(recipe) for key, recipe in recipes.items()}, root, folder, take)
