"""An ablation as a Prefect flow: a recipe under each of a list of changes and several seeds, one task run each."""

import re
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, tags
from prefect.states import Completed, Failed
from pydantic import Field

from flows.experiments.ablation_config import BASE, ONLY_SECOND, AblationConfig, changes_file, read_changes
from flows.experiments.ablation_report import write_report
from flows.experiments.trials import RunResult, Variant, as_setting, run_variants
from flows.recipe.load import load_recipe, locate_recipe
from flows.recipe.schema import Recipe
from model.errors import BessemerError
from tasks.common.confinement import allow
from tasks.execution.outcome import one_line

FOLDER = "ablations"

Runs = dict[str, dict[int, RunResult]]
"""Change -> seed -> metrics of its run."""


@flow(name="ablate", persist_result=False, validate_parameters=True)
def ablate(
    recipe: str,
    changes: str,
    root: Path = Path("bessemer-data"),
    seeds: Annotated[int, Field(ge=1)] | None = None,
    limit: Annotated[float, Field(gt=0, le=1)] = 1.0,
    settings: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Run a recipe under each of a list of changes and several seeds, and compare them with the recipe itself.

    An interrupted ablation continues; existing artifacts are reused. Returns the table as JSON values and the paths of
    its files.

    Args:
        recipe: A recipe file, or the name of one that ships.
        changes: A file of changes, or the name of one that ships: data, experts, network, t5, vocabulary.
        root: Folder of all artifacts, runs and ablations.
        seeds: Runs of each change; the file's number by default.
        limit: Share of every source to keep (0 to 1).
        settings: KEY=VALUE that override the recipe's in every run.
    """
    root = root.resolve()
    try:
        path, file = locate_recipe(recipe, root), changes_file(changes)
        config = read_changes(file, seeds)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{path.stem}-{file.stem}")
        variants = variants_of(config, path, root, settings, limit)
        folder = root / FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        with tags(f"ablation:{name}"):
            runs = _run_all(config, variants, root, folder)
        found = write_report(name, config, runs, folder)
    except BessemerError as error:
        return Failed(name=type(error).__name__, message=one_line(error), data=error)  # pyright: ignore[reportReturnType]
    return Completed(message=found["told"], data=found)  # pyright: ignore[reportReturnType]


def variants_of(
    config: AblationConfig, path: Path, root: Path, settings: tuple[str, ...], limit: float
) -> dict[tuple[str, int], Variant]:
    """Return the variant of each (change, seed); raise RecipeError for an invalid one before anything runs."""
    base = load_recipe(path, root, settings, limit)
    found: dict[tuple[str, int], Variant] = {}

    def load(change: str, seed: int, sets: list[str], suffix: str) -> Recipe:
        recipe = load_recipe(path, root, [*settings, *sets], limit)
        return recipe.model_copy(update={"name": f"{recipe.name}, {change}, seed {seed}{suffix}"[:80]})

    for seed in range(base.seed, base.seed + config.seeds):
        first = load(BASE, seed, config.settings(BASE, seed), "")
        for change in config.names:
            if config.then is None:
                found[change, seed] = Variant(load(change, seed, config.settings(change, seed), ""))
                continue
            sets = config.settings_of_second(change, seed, first.chunk.budget_tokens)
            second = load(change, seed, sets, ", second run")
            if change == ONLY_SECOND:
                found[change, seed] = Variant(second)
                continue

            def second_recipe(model: Path, change: str = change, seed: int = seed, sets: list[str] = sets) -> Recipe:
                allow(model)
                return load(change, seed, [*sets, as_setting("train.base_model", str(model))], ", second run")

            found[change, seed] = Variant(load(change, seed, config.settings(change, seed), ""), second_recipe)
    return found


def _run_all(config: AblationConfig, variants: dict[tuple[str, int], Variant], root: Path, folder: Path) -> Runs:
    """Run all changes seed by seed, so that a table of fewer seeds exists early."""
    runs: Runs = {change: {} for change in config.names}

    def on_result(change: str, seed: int, result: RunResult) -> None:
        runs[change][seed] = result
        write_report(folder.name, config, runs, folder)

    run_variants(variants, root, folder, on_result)
    return runs
