"""A run of stages within a flow, with its page and its Prefect artifacts, as all flows that run stages have it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flows.reports.live import live_page
from flows.reports.prefect.watcher import prefect_artifacts
from flows.runs.lifecycle import emit_guard_event
from flows.runs.record import PAGE
from flows.runs.run import StageRun
from model.errors import BessemerError
from prefect.logging import get_run_logger


@contextmanager
def shown_run(name: str, start: Callable[[], StageRun]) -> Iterator[StageRun]:
    """Yield the run that `start` returns, whose stages are called within the block.

    Its page and artifacts are kept up to date, and written a last time however the run ends.
    """
    log = get_run_logger()
    with prefect_artifacts() as shown, live_page() as page:
        run = start()
        log.info("run %s, %s under %s", run.run_id, name, run.context.root)
        shown.name_run(name, run.run_id, run.folder / PAGE)
        page.begin(run)
        try:
            with run:
                yield run
        except BessemerError as error:
            emit_guard_event(run.record.data["stages"], error)
            raise
        finally:
            log.info("run page: %s", page.end(run))
            shown.summarize(run.record.data)
