"""The road as a Prefect flow.

`flows.recipe.stages.walk` is the road itself: each stage is one retryable Prefect task that leaves an Arrow artifact.
Reuse lives in the artifact's identity, so rerunning is the same flow with `from_stage`, `until`, `only` or `force`."""

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.logging import get_run_logger
from prefect.states import Completed, Failed

from flows.metrics.formatting import tally
from flows.planning.start_run import start_run
from flows.recipe.form import (
    EVERY_STAGE,
    ROADS_END,
    WHOLE_ROAD,
    Changes,
    FromStage,
    OnlyStage,
    RecipeOrName,
    Share,
    UntilStage,
    chosen_stretch,
    settings,
)
from flows.recipe.load import open_recipe
from flows.recipe.schema import Recipe
from flows.reports.page.page import write_run_page
from flows.reports.prefect.watcher import prefect_artifacts
from flows.runs.lifecycle import check_crashes, ended_with_its_run, tell_error, worth_another_run
from flows.runs.pipeline import walk
from flows.runs.record import leave_end
from flows.runs.roots import open_root
from model.errors import BessemerError
from tasks.execution.outcome import one_line
from tasks.prefect_tasks import TASKS


@flow(name="pretrain", persist_result=False, validate_parameters=True)
def pretrain(
    recipe: RecipeOrName,
    from_stage: FromStage = WHOLE_ROAD,
    until: UntilStage = ROADS_END,
    only: OnlyStage = EVERY_STAGE,
    force: bool = False,
    limit: Share = 1.0,
    changes: Changes = Changes(),  # noqa: B008  # frozen
    run_id: str = "",
    root: Path = Path("bessemer-data"),
) -> dict[str, Any]:
    """Raw text in, a trained and evaluated language model out, with the record of every document.

    What is built already under the same identity is reused. Returns the run's record.

    Args:
        recipe: A recipe file, or the name of one that ships: quickstart, multilingual.
        from_stage: Go from this stage on; earlier ones must exist.
        until: End with this stage.
        only: Build this stage alone; earlier ones must exist.
        force: Rebuild the selected stages and compare with what stands.
        limit: Share of every source to keep (0 to 1); 0.01 is a quick pass over everything.
        changes: Values that overrule the recipe's: the most used settings, and the others of each stage under its name.
            What stays empty, or `as in the recipe`, is as the recipe says.
        run_id: Name of the run's folder; made from the time where empty.
        root: Folder of all artifacts and runs, or the address of an object store.
    """
    log = get_run_logger()
    asked = chosen_stretch(from_stage, until, only)
    try:
        root = open_root(root).resolve()
        check_crashes()
        chosen = recipe if isinstance(recipe, Recipe) else open_recipe(recipe, root, settings(changes), limit)
        with ended_with_its_run(), prefect_artifacts() as shown:
            run = start_run(chosen, root, **asked, force=force, run_id=run_id)
            log.info("run %s of recipe %s under %s", run.run_id, chosen.name, root)
            shown.name_run(chosen.name, run.run_id)
            try:
                with run:
                    walk(chosen, lambda stage, *inputs: run.step(TASKS[stage], *inputs))
            except BessemerError as error:
                tell_error(run.record.data["stages"], error)
                raise
            finally:
                log.info("run page: %s", write_run_page(run))
                shown.summarize(run.record.data)
    except (BessemerError, OSError) as failed:
        error = worth_another_run(failed)
        leave_end(error)
        # Prefect gives the caller what a returned state holds: the record, or the error to raise.
        return Failed(name=type(error).__name__, message=one_line(error), data=error)  # pyright: ignore[reportReturnType]
    leave_end(run.record.data)
    done = tally(run.record.data["stages"])
    return Completed(message=done, data=run.record.data)  # pyright: ignore[reportReturnType]
