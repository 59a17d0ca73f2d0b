"""A nightly run as a Prefect flow: the tasks of the pipeline, with checks between them."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed, Failed

from flows.nightly.night import Between, PromotionBlocked, run_nightly, skip_nightly
from flows.nightly.start import start_nightly
from flows.planning.preconditions import start_run
from flows.recipe.schema import Recipe
from flows.reports.live import live_page
from flows.reports.prefect.watcher import prefect_artifacts
from flows.runs.lifecycle import as_bessemer_error, check_crashes, emit_guard_event, emit_run_event, exit_when_run_ends
from flows.runs.pipeline import run_stages
from flows.runs.record import report_result
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
    """Train the current model further on new data, and promote the result where it is no worse.

    Where nothing is new, nothing is done. Returns the record of the nightly run.

    Args:
        recipe: A recipe file, or the name of one that ships.
        root: Folder of all artifacts, runs and nightly runs, or the address of an object store.
        again: Id of a nightly run that was blocked or undone, whose files are to be read again.
        settings: Values that override the recipe's, as `key.path=value`.
    """
    log = get_run_logger()
    try:
        ids = (again,) if again else ()
        with exit_when_run_ends(), start_nightly(recipe, root, ids, settings, log.info, check_crashes) as tonight:
            for warning in tonight.raw.warnings():
                log.warning("%s", warning)
            server = PREFECT_API_URL.value()
            night = skip_nightly(tonight) if tonight.nothing_new else run_nightly(tonight, _run_pipeline, server)
    except PromotionBlocked as error:
        report_result(error)
        emit_run_event("promotion_blocked", run=error.run_id, current=error.current, worse=list(error.worse))
        return Failed(name="PromotionBlocked", message=one_line(error), data=error)  # pyright: ignore[reportReturnType]
    except (BessemerError, OSError) as failed:
        error = as_bessemer_error(failed)
        report_result(error)
        return Failed(name=type(error).__name__, message=one_line(error), data=error)  # pyright: ignore[reportReturnType]
    report_result(asdict(night))
    log.info("nightly run %s: %s, %s", night.run_id, night.state, night.why)
    return Completed(name=night.state.capitalize(), message=night.why, data=asdict(night))  # pyright: ignore[reportReturnType]


def _run_pipeline(recipe: Recipe, root: Path, run_id: str, between: Between) -> dict[str, Any]:
    log = get_run_logger()
    with prefect_artifacts() as shown, live_page() as page:
        run = start_run(recipe, root, run_id=run_id)
        log.info("run %s of recipe %s under %s", run.run_id, recipe.name, root)
        shown.name_run(recipe.name, run.run_id)
        page.begin(run)

        def step(stage: str, *inputs: Any) -> Artifact:
            return run.step(TASKS[stage], *between(run.folder, stage, inputs))

        try:
            with run:
                run_stages(recipe, step)
        except BessemerError as error:
            emit_guard_event(run.record.data["stages"], error)
            raise
        finally:
            log.info("run page: %s", page.end(run))
            shown.summarize(run.record.data)
    return run.record.data
