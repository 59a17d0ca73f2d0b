"""A nightly run as a Prefect flow: the tasks of the pipeline, with checks between them."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from prefect import flow
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_API_URL

from flows.nightly.history import Night
from flows.nightly.night import Between, PromotionBlocked, run_nightly, skip_nightly
from flows.nightly.start import start_nightly
from flows.planning.preconditions import start_run
from flows.recipe.schema import Recipe
from flows.reports.prefect.watcher import shown_run
from flows.runs.events import emit_run_event
from flows.runs.lifecycle import FlowEnd, check_crashes, end_of_flow, exit_when_run_ends
from flows.runs.pipeline import run_stages
from flows.runs.record import RunData
from tasks.prefect_tasks import TASKS


@flow(name="nightly", persist_result=False, validate_parameters=True)
def nightly(recipe: str, root: Path = Path("bessemer-data"), again: str = "", settings: Sequence[str] = ()) -> Night:
    """Train the current model further on new data, and promote the result where it is no worse.

    Where nothing is new, nothing is done. Returns the record of the nightly run.

    Args:
        recipe: A recipe file, or the name of one that ships.
        root: Folder of all artifacts, runs and nightly runs, or the address of an object store.
        again: Ids of nightly runs that were blocked or undone, whose files are to be read again, separated by blanks.
        settings: Values that override the recipe's, as `key.path=value`.
    """
    log = get_run_logger()

    def work() -> FlowEnd[Night]:
        with (
            exit_when_run_ends(),
            start_nightly(recipe, root, again.split(), settings, log.info, check_crashes) as tonight,
        ):
            for warning in tonight.warnings():
                log.warning("%s", warning)
            server = PREFECT_API_URL.value()
            try:
                night = skip_nightly(tonight) if tonight.nothing_new else run_nightly(tonight, _run_pipeline, server)
            except PromotionBlocked as error:
                emit_run_event("promotion_blocked", run=error.run_id, current=error.current, worse=list(error.worse))
                raise
        log.info("nightly run %s: %s, %s", night.run_id, night.state, night.why)
        for warning in night.warnings:
            log.warning("%s", warning)
        return FlowEnd(night, night.why, night.state.capitalize())

    return end_of_flow(work)


def _run_pipeline(recipe: Recipe, root: Path, run_id: str, between: Between) -> RunData:
    with shown_run(recipe.name, partial(start_run, recipe, root, run_id=run_id)) as run:
        run_stages(recipe, lambda stage, *inputs: run.step(TASKS[stage], *between(run.folder, stage, inputs)))
    return run.record.data
