"""Listens to a run and tells the Prefect server; whatever goes wrong with that, the run goes on.

Requests to a server from a thread of their own, in their order, so that nobody waits for the answers.

Prefect's client tries a request again for a minute and more when a server is gone (measured: over 60 s with 3.8.8), and
a stage that asked by itself would stand still for as long.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any
from uuid import UUID

from flows.metrics.formatting import escape_markdown
from flows.reports.prefect.artifacts import run_markdown, stage_markdown
from flows.runs.lifecycle import emit_leak_events
from flows.runs.record import CURRENT_LISTENER
from prefect import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging import get_run_logger
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import ProgressListener
from tasks.execution.outcome import cause_of

SECONDS_BETWEEN_UPDATES = 1.0
"""Each update is a request, which costs the server 10 to 30 ms, and an event of 4 kB in its database."""

SHARE_BETWEEN_UPDATES = 0.05
"""Of the time since the stage began: a day of a stage is 200 updates and not 86,400."""

SECONDS_TO_ANSWER = 10.0

SECONDS_TO_CLOSE = 15.0


@dataclass
class _Progress:
    """The progress artifact of a running stage; it has none before the first second is over."""

    task_run: UUID | None
    told: float
    began: float
    artifact: UUID | None = None
    counted: bool = False
    on_its_way: bool = False
    last: tuple[int, int | None, str] | None = None


class Dashboard(ProgressListener):
    """Keeps the artifacts of one flow run up to date, and passes what it hears on to another watcher.

    Artifacts on a server are a view of the run and never part of it: a request that fails ends the telling with one
    line in the run's log.
    """

    def __init__(self, onlooker: ProgressListener) -> None:
        self._onlooker = onlooker
        self._log = get_run_logger()
        # Settings of its own keep Prefect from handing out the flow's client, which another thread uses.
        self._client = get_client(httpx_settings={"timeout": SECONDS_TO_ANSWER}, sync_client=True)
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        self._flow_run = context.flow_run.id
        self._tags = context.flow_run.tags
        self._prefix = ""
        self._stages: dict[str, _Progress] = {}
        self._courier = Courier(self._log)

    def name_run(self, recipe: str, run_id: str) -> None:
        """Call the flow run by its recipe and run id, and tag it with the recipe."""
        self._prefix = _key(recipe)
        tags = sorted({*self._tags, recipe})
        self._courier.send(lambda: self._client.update_flow_run(self._flow_run, name=f"{recipe} {run_id}", tags=tags))

    def progress(self, stage: str, done: int, total: int | None, unit: str) -> None:
        self._onlooker.progress(stage, done, total, unit)
        shown = self._stage(stage)
        shown.last = (done, total, unit)
        now = time.monotonic()
        if now - shown.told >= pause_after(now - shown.began) and not shown.on_its_way:
            shown.told = now
            shown.on_its_way = True
            self._courier.send(lambda: self._show_progress(stage, shown))

    def note(self, stage: str, sentence: str) -> None:
        self._onlooker.note(stage, sentence)
        self._stage(stage)
        self._log.info("%s: %s", stage, sentence)

    def finished(self, stage: str, artifact: Artifact, seconds: float) -> None:
        self._onlooker.finished(stage, artifact, seconds)
        if artifact.reused:
            return  # The build that made it has its artifact on its own run; the summary shows it with the others.
        if stage == "decontaminate":
            emit_leak_events(artifact)
        shown = self._stage(stage)

        def tell() -> None:
            if shown.artifact is not None:
                self._show_progress(stage, shown)
            self._create(
                "markdown",
                shown.task_run,
                stage,
                f"{stage}: {escape_markdown(cause_of(artifact))}",
                stage_markdown(artifact),
            )

        self._courier.send(tell)

    def summarize(self, record: dict[str, Any]) -> None:
        """Write the summary of the run, which the flow run shows."""
        self._courier.send(
            lambda: self._create("markdown", None, "run", "what became of the run", run_markdown(record))
        )

    def _stage(self, stage: str) -> _Progress:
        if stage not in self._stages:
            context = TaskRunContext.get()
            now = time.monotonic()
            self._stages[stage] = _Progress(context.task_run.id if context else None, told=now, began=now)
        return self._stages[stage]

    def _show_progress(self, stage: str, shown: _Progress) -> None:
        """A bar where the total is known, else a sentence that counts."""
        assert shown.last is not None
        shown.on_its_way = False
        done, total, unit = shown.last
        words = f"{done:,} of {total:,} {unit}" if total else f"{done:,} {unit} so far"
        data: Any = min(100.0, 100.0 * done / total) if total else words
        if shown.artifact is None or shown.counted != bool(total):
            shown.counted = bool(total)
            kind = "progress" if total else "markdown"
            shown.artifact = self._create(kind, shown.task_run, None, f"{stage}: {words}", data)
        else:
            update = ArtifactUpdate(data=data, description=f"{stage}: {words}")
            self._client.update_artifact(shown.artifact, update)

    def _create(self, kind: str, task_run: UUID | None, name: str | None, description: str, data: Any) -> UUID:
        key = f"{self._prefix}-{_key(name)}" if name else None
        artifact = ArtifactCreate(
            type=kind, key=key, description=description, data=data, flow_run_id=self._flow_run, task_run_id=task_run
        )
        return self._client.create_artifact(artifact).id

    def close(self) -> None:
        """Wait for what is still to be told, though not for ever."""
        self._courier.close(SECONDS_TO_CLOSE)


@contextmanager
def dashboard() -> Iterator[Dashboard]:
    """A dashboard of the current flow run, which listens to the runs begun inside this block."""
    shown = Dashboard(CURRENT_LISTENER.get())
    token = CURRENT_LISTENER.set(shown)
    try:
        yield shown
    finally:
        CURRENT_LISTENER.reset(token)
        shown.close()


def pause_after(seconds: float) -> float:
    """Seconds between two updates of a stage that has run for so many."""
    return max(SECONDS_BETWEEN_UPDATES, SHARE_BETWEEN_UPDATES * seconds)


def _key(name: str) -> str:
    """A name as Prefect allows it in an artifact's key: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"


class Courier:
    """Carries out calls in order; the first that fails, or is not done in time, is told once and is the last."""

    def __init__(self, log: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self._log = log
        self._calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._gave_up = False
        self._thread = threading.Thread(target=self._work, name="dashboard", daemon=True)
        self._thread.start()

    def send(self, call: Callable[[], Any]) -> None:
        """Have `call` carried out soon."""
        self._calls.put(call)

    def close(self, seconds: float) -> None:
        """Wait until all calls are carried out, at most so long."""
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
            self._log.warning("the server shows nothing more of this run, which goes on: %s", why)
