"""A night as a Prefect flow: the road's tasks, with what a night knows before each."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed, Failed

from flows.nightly.night import Between, PromotionBlocked, idle, spend
from flows.nightly.start import begun
from flows.planning.start_run import start_run
from flows.recipe.schema import Recipe
from flows.reports.page.page import write_run_page
from flows.reports.prefect.watcher import prefect_artifacts
from flows.runs.lifecycle import check_crashes, ended_with_its_run, tell_error, tell_event, worth_another_run
from flows.runs.pipeline import walk
from flows.runs.record import leave_end
from model.errors import BessemerError
from tasks.artifacts.artifact import Artifact
from tasks.execution.outcome import one_line
from tasks.prefect_tasks import TASKS


@flow(name="nightly", persist_result=False, validate_parameters=True)
def nightly(
    recipe: str,
    root: Path = Path("bessemer-data"),
    again: str = "",
    settings: Sequence[str] = (),
) -> dict[str, Any]:
    """Train the current model further on what came since the last night, and promote the result where it is no worse.

    Where nothing is new, nothing is done. Returns the night's record.

    Args:
        recipe: A recipe file, or the name of one that ships.
        root: Folder of all artifacts, runs and nights, or the address of an object store.
        again: Id of a night that was blocked or taken back, whose files are to be read once more.
        settings: Values that overrule the recipe's, as `key.path=value`.
    """
    log = get_run_logger()
    try:
        told = (again,) if again else ()
        with ended_with_its_run(), begun(recipe, root, told, settings, log.info, check_crashes) as tonight:
            for remark in tonight.raw.remarks():
                log.warning("%s", remark)
            server = PREFECT_API_URL.value()
            night = idle(tonight) if tonight.nothing_new else spend(tonight, _down_the_road, server)
    except PromotionBlocked as error:
        leave_end(error)
        tell_event("promotion_blocked", run=error.run_id, current=error.current, worse=list(error.worse))
        return Failed(name="PromotionBlocked", message=one_line(error), data=error)  # pyright: ignore[reportReturnType]
    except (BessemerError, OSError) as failed:
        error = worth_another_run(failed)
        leave_end(error)
        return Failed(name=type(error).__name__, message=one_line(error), data=error)  # pyright: ignore[reportReturnType]
    leave_end(asdict(night))
    log.info("night %s: %s, %s", night.run_id, night.state, night.why)
    return Completed(name=night.state.capitalize(), message=night.why, data=asdict(night))  # pyright: ignore[reportReturnType]


def _down_the_road(recipe: Recipe, root: Path, run_id: str, between: Between) -> dict[str, Any]:
    log = get_run_logger()
    with prefect_artifacts() as shown:
        run = start_run(recipe, root, run_id=run_id)
        log.info("run %s of recipe %s under %s", run.run_id, recipe.name, root)
        shown.name_run(recipe.name, run.run_id)

        def step(stage: str, *inputs: Any) -> Artifact:
            return run.step(TASKS[stage], *between(run.folder, stage, inputs))

        try:
            with run:
                walk(recipe, step)
        except BessemerError as error:
            tell_error(run.record.data["stages"], error)
            raise
        finally:
            log.info("run page: %s", write_run_page(run))
            shown.summarize(run.record.data)
    return run.record.data
