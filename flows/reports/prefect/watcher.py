"""Keep a run's page and its Prefect artifacts up to date while it works; a failure here never ends the run.

Requests are sent in order from a background thread. Prefect's client retries a request for over a minute when the
server is unreachable (measured with 3.8.8), and a stage must not wait for that.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from uuid import UUID

from flows.metrics.formatting import escape_markdown
from flows.reports.live import live_page
from flows.reports.prefect.artifacts import run_markdown, stage_markdown
from flows.runs.context import CURRENT_LISTENER, heard_by
from flows.runs.events import emit_guard_event, emit_leak_events
from flows.runs.record import PAGE, RunData
from flows.runs.run import StageRun
from model.errors import BessemerError
from prefect import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging import get_run_logger
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import ProgressListener
from tasks.execution.outcome import cause_of

SECONDS_BETWEEN_UPDATES = 1.0
"""Each update costs the server 10 to 30 ms, and an event of 4 kB in its database."""

SHARE_BETWEEN_UPDATES = 0.05
"""Share of the stage's running time between updates: a stage of a day sends 200 updates instead of 86,400."""

REQUEST_TIMEOUT = 10.0
"""Seconds."""

CLOSE_TIMEOUT = 15.0
"""Seconds."""


@dataclass
class _Progress:
    """Progress of a running stage, and its artifact, which is created with the first update."""

    task_run: UUID | None
    updated: float
    began: float
    artifact: UUID | None = None
    has_total: bool = False
    is_queued: bool = False
    last: tuple[int, int | None, str] | None = None


class PrefectArtifacts(ProgressListener):
    """Keeps the artifacts of one flow run up to date, and passes events on to another watcher.

    The artifacts are a view of the run and never part of it: after a request that fails, no more are sent, and the
    run's log has one warning.
    """

    def __init__(self, listener: ProgressListener) -> None:
        self._listener = listener
        self._log = get_run_logger()
        # With settings of its own Prefect returns a new client, not that of the flow, which another thread uses.
        self._client = get_client(httpx_settings={"timeout": REQUEST_TIMEOUT}, sync_client=True)
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        self._flow_run = context.flow_run.id
        self._tags = context.flow_run.tags
        self._prefix = ""
        self._page: str | None = None
        self._stages: dict[str, _Progress] = {}
        self._sender = BackgroundSender(self._log)

    def name_run(self, recipe: str, run_id: str, page: Path | None = None) -> None:
        """Name the flow run by its recipe and run id, and tag it with the recipe; its artifacts lead to the page."""
        self._prefix, self._page = _key(recipe), None if page is None else str(page)
        tags = sorted({*self._tags, recipe})
        self._sender.send(lambda: self._client.update_flow_run(self._flow_run, name=f"{recipe} {run_id}", tags=tags))

    def progress(self, stage: str, done: int, total: int | None, unit: str) -> None:
        self._listener.progress(stage, done, total, unit)
        shown = self._stage(stage)
        shown.last = (done, total, unit)
        now = time.monotonic()
        if now - shown.updated >= update_interval(now - shown.began) and not shown.is_queued:
            shown.updated = now
            shown.is_queued = True
            self._sender.send(lambda: self._show_progress(stage, shown))

    def note(self, stage: str, sentence: str) -> None:
        self._listener.note(stage, sentence)
        self._stage(stage)
        self._log.info("%s: %s", stage, sentence)

    def finished(self, stage: str, artifact: Artifact, seconds: float) -> None:
        self._listener.finished(stage, artifact, seconds)
        if artifact.reused:
            return  # The run that built it has the stage's Markdown; the summary lists the stage.
        if stage == "decontaminate":
            emit_leak_events(artifact)
        shown = self._stage(stage)

        def create() -> None:
            if shown.artifact is not None:
                self._show_progress(stage, shown)
            description = f"{stage}: {escape_markdown(cause_of(artifact))}"
            self._create("markdown", shown.task_run, stage, description, stage_markdown(artifact, self._page))

        self._sender.send(create)

    def summarize(self, record: RunData) -> None:
        """Write the summary of the run as an artifact of the flow run."""
        self._sender.send(lambda: self._create("markdown", None, "run", "summary of the run", run_markdown(record)))

    def _stage(self, stage: str) -> _Progress:
        if stage not in self._stages:
            context = TaskRunContext.get()
            now = time.monotonic()
            self._stages[stage] = _Progress(context.task_run.id if context else None, updated=now, began=now)
        return self._stages[stage]

    def _show_progress(self, stage: str, shown: _Progress) -> None:
        """Show a progress bar where the total is known, else a sentence with the count."""
        assert shown.last is not None
        shown.is_queued = False
        done, total, unit = shown.last
        text = f"{done:,} of {total:,} {unit}" if total else f"{done:,} {unit} so far"
        data: Any = min(100.0, 100.0 * done / total) if total else text
        if shown.artifact is None or shown.has_total != bool(total):
            shown.has_total = bool(total)
            kind = "progress" if total else "markdown"
            shown.artifact = self._create(kind, shown.task_run, None, f"{stage}: {text}", data)
        else:
            update = ArtifactUpdate(data=data, description=f"{stage}: {text}")
            self._client.update_artifact(shown.artifact, update)

    def _create(self, kind: str, task_run: UUID | None, name: str | None, description: str, data: Any) -> UUID:
        key = f"{self._prefix}-{_key(name)}" if name else None
        artifact = ArtifactCreate(
            type=kind, key=key, description=description, data=data, flow_run_id=self._flow_run, task_run_id=task_run
        )
        return self._client.create_artifact(artifact).id

    def close(self) -> None:
        """Wait for the requests that are queued, at most CLOSE_TIMEOUT seconds."""
        self._sender.close(CLOSE_TIMEOUT)


def _key(name: str) -> str:
    """Return a name as Prefect allows it in an artifact's key: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"


@contextmanager
def prefect_artifacts() -> Iterator[PrefectArtifacts]:
    """Write Prefect artifacts of the current flow run for the runs started inside this block."""
    artifacts = PrefectArtifacts(CURRENT_LISTENER.get())
    with closing(artifacts), heard_by(artifacts):
        yield artifacts


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


def update_interval(seconds: float) -> float:
    """Return the seconds between two updates of a stage that has run for `seconds`."""
    return max(SECONDS_BETWEEN_UPDATES, SHARE_BETWEEN_UPDATES * seconds)


class BackgroundSender:
    """Runs calls in order on a thread; the first that fails or takes too long is logged once and is the last."""

    def __init__(self, log: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self._log = log
        self._calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._gave_up = False
        self._thread = threading.Thread(target=self._work, name="prefect-artifacts", daemon=True)
        self._thread.start()

    def send(self, call: Callable[[], Any]) -> None:
        """Queue a call."""
        self._calls.put(call)

    def close(self, seconds: float) -> None:
        """Wait until all queued calls have run, at most `seconds`."""
        self._calls.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._give_up(f"no answer within {seconds:.0f} s")

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if self._gave_up:
                continue
            try:
                call()
            except Exception as error:  # A view of the run must never end the run.
                self._give_up(repr(error))

    def _give_up(self, why: str) -> None:
        if not self._gave_up:
            self._gave_up = True
            self._log.warning("Prefect shows no more progress of this run, which continues: %s", why)
