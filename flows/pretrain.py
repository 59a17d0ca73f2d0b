"""The pipeline as a Prefect flow: raw text in, a trained and evaluated language model out.

`flows.runs.pipeline.run_stages` is the pipeline itself, eight stages in order; here each of them runs a retryable
Prefect task (`tasks.prefect_tasks`) that publishes an Arrow artifact. An artifact that exists under the same identity
is reused, so a rerun is the same flow, with `from_stage`, `until`, `only` or `force` where less or more is wanted."""

from functools import partial
from pathlib import Path

from prefect import flow

from flows.metrics.formatting import count_outcomes
from flows.planning.preconditions import start_run
from flows.recipe.form import (
    EVERY_STAGE,
    FIRST_STAGE,
    LAST_STAGE,
    Changes,
    OneStage,
    OnlyStage,
    RecipeOrName,
    Share,
    as_settings,
    stage_selection,
)
from flows.recipe.load import open_recipe
from flows.recipe.schema import Recipe
from flows.reports.prefect.watcher import shown_run
from flows.runs.lifecycle import FlowEnd, check_crashes, end_of_flow, exit_when_run_ends
from flows.runs.pipeline import run_stages
from flows.runs.record import RunData
from flows.runs.roots import open_root
from tasks.prefect_tasks import TASKS


@flow(name="pretrain", persist_result=False, validate_parameters=True)
def pretrain(
    recipe: RecipeOrName,
    from_stage: OneStage = FIRST_STAGE,
    until: OneStage = LAST_STAGE,
    only: OnlyStage = EVERY_STAGE,
    force: bool = False,
    limit: Share = 1.0,
    changes: Changes = Changes(),  # noqa: B008  # frozen
    run_id: str = "",
    root: Path = Path("bessemer-data"),
) -> RunData:
    """Train and evaluate a language model from raw text, with a record of every document.

    Artifacts that exist under the same identity are reused. Returns the run's record.

    Args:
        recipe: A recipe file, or the name of one that ships: quickstart, multilingual.
        from_stage: Start at this stage; artifacts of earlier ones must exist.
        until: End after this stage.
        only: Build only this stage; artifacts of earlier ones must exist.
        force: Rebuild the selected stages and compare with the published artifacts.
        limit: Share of every source to keep (0 to 1); 0.01 is a quick pass over everything.
        changes: Values that replace the recipe's: the most used ones, and the others of each stage under its name.
            Fields left empty, or at `as in the recipe`, keep the recipe's value.
        run_id: Name of the run's folder; derived from the time where empty.
        root: Folder of all artifacts and runs, or the address of an object store.
    """

    def work() -> FlowEnd[RunData]:
        selection = stage_selection(from_stage, until, only)
        folder = open_root(root).resolve()
        check_crashes()
        resolved = recipe if isinstance(recipe, Recipe) else open_recipe(recipe, folder, as_settings(changes), limit)
        start = partial(start_run, resolved, folder, **selection, force=force, run_id=run_id)
        with exit_when_run_ends(), shown_run(resolved.name, start) as run:
            run_stages(resolved, lambda stage, *inputs: run.step(TASKS[stage], *inputs))
        return FlowEnd(run.record.data, count_outcomes(run.record.data["stages"]))

    return end_of_flow(work)
