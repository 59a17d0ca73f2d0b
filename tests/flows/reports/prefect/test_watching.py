"""What a run leaves on a real server, and that it goes on when the server does not answer any more."""

import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, get_client, task
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.events.worker import EventsWorker
from prefect.runtime import flow_run

from flows.reports.prefect import watcher as watching
from flows.reports.prefect.watcher import update_interval
from flows.runs.context import heard_by
from flows.runs.events import emit_guard_event, emit_run_event, leaks_over_limit
from model.errors import GuardError, Infra
from tasks.artifacts.artifact import BUILT, REUSED, Artifact
from tasks.artifacts.build import ProgressListener
from tasks.artifacts.limits import SourceWiped

OF_NO_RUN = {"note": "of no run, and sent to nobody"}


class Onlooker(ProgressListener):
    """Another one that listens to the run."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def progress(self, stage: str, done: int, total: int | None, unit: str) -> None:
        self.heard.append(("progress", stage, done))

    def finished(self, stage: str, artifact: Artifact, seconds: float) -> None:
        self.heard.append(("finished", stage, artifact.outcome))


@task(persist_result=False)
def work(shown: watching.PrefectArtifacts, stage: str, total: int | None, outcome: str) -> None:
    shown.note(stage, "building")
    for done in (1, 2, 3):
        time.sleep(0.06)
        shown.progress(stage, done, total, "parts")
    shown.finished(stage, Artifact(Path("/nowhere"), stage, "0123456789abcdef", "content", outcome, "a reason"), 0.2)


@flow
def pipeline() -> str:
    with watching.prefect_artifacts() as shown:
        shown.name_run("Küche & Co", "20260101T000000Z-abcdef")
        work(shown, "clean", 3, BUILT)
        work(shown, "sample", None, BUILT)
        work(shown, "dedup", 3, REUSED)
    with watching.prefect_artifacts() as lost:
        lost._client._client.base_url = "http://127.0.0.1:9/api"
        lost.name_run("foundry", "lost")
        work(lost, "vocab", 3, BUILT)
    emit_run_event("promotion_blocked", because="it is worse")
    emit_guard_event([{"stage": "clean"}], SourceWiped("clean: nothing is left of `notes`"))
    emit_guard_event([{"stage": "train"}], GuardError("train: it took too long"))
    emit_guard_event([{"stage": "train"}], Infra("train: the disk is full"))
    return str(flow_run.id)


@pytest.fixture(scope="module")
def warned() -> Iterator[list[str]]:
    """Warnings in the logs of flow runs."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("prefect.flow_runs").addHandler(handler)
    yield messages
    logging.getLogger("prefect.flow_runs").removeHandler(handler)


@pytest.fixture(scope="module")
def reported(shared_server: None, warned: list[str]) -> dict[str, Any]:
    emit_run_event("spike", **OF_NO_RUN)
    onlooker = Onlooker()
    with pytest.MonkeyPatch.context() as patch, heard_by(onlooker):
        patch.setattr(watching, "SECONDS_BETWEEN_UPDATES", 0.05)
        patch.setattr(watching, "CLOSE_TIMEOUT", 3.0)
        patch.setattr(watching, "stage_markdown", lambda artifact, page: f"made {artifact.stage}")
        run_id = pipeline()
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(run_id)
        of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]))
        artifacts = [(a.type, a.key, a.data) for a in client.read_artifacts(artifact_filter=of_run) if a.type]
        EventsWorker.drain_all(timeout=10)
        chosen = {"filter": {"event": {"prefix": ["bessemer."]}}}
        resource, events = f"prefect.flow-run.{run_id}", list[tuple[str, str, Any]]()
        for _ in range(100):  # the server writes them in lots
            found = client._client.post("/events/filter", json=chosen).json()["events"]
            events = [(e["event"], e["resource"]["prefect.resource.id"], e["payload"]) for e in found]
            events = [event for event in events if event[1] == resource or event[2] == OF_NO_RUN]
            if len(events) >= 3:
                break
            time.sleep(0.2)
    shown = {"run": run_id, "events": events, "name": run.name, "tags": run.tags, "artifacts": artifacts}
    return json.loads(json.dumps({**shown, "heard": onlooker.heard, "warned": warned}))


def test_a_flow_run_is_named_and_tagged_by_its_recipe(reported: dict[str, Any]) -> None:
    assert reported["name"] == "Küche & Co 20260101T000000Z-abcdef"
    assert reported["tags"] == ["Küche & Co"]


def test_progress_is_a_bar_where_the_total_is_known_and_a_count_where_not(reported: dict[str, Any]) -> None:
    assert ["progress", None, 100.0] in reported["artifacts"]
    assert ["markdown", None, "3 parts so far"] in reported["artifacts"]


def test_what_was_built_has_its_page_and_what_was_reused_has_none(reported: dict[str, Any]) -> None:
    pages = [(key, data) for _, key, data in reported["artifacts"] if key]
    assert sorted(pages) == [("k-che-co-clean", "made clean"), ("k-che-co-sample", "made sample")]


def test_a_server_that_is_gone_is_reported_once_and_the_run_goes_on(reported: dict[str, Any]) -> None:
    assert ["finished", "vocab", "built"] in reported["heard"]
    (warning,) = [message for message in reported["warned"] if "Prefect shows no more progress of this run" in message]
    assert "which continues" in warning


def test_what_happens_is_an_event_of_its_flow_run(reported: dict[str, Any]) -> None:
    resource = f"prefect.flow-run.{reported['run']}"
    assert sorted(reported["events"]) == [
        ["bessemer.promotion_blocked", resource, {"because": "it is worse"}],
        ["bessemer.source_wiped", resource, {"stage": "clean", "error": "clean: nothing is left of `notes`"}],
        ["bessemer.stopped", resource, {"stage": "train", "error": "train: it took too long"}],
    ]


def test_leaks_are_reported_where_they_are_many_or_remain() -> None:
    counts = {"items": 100, "leaked": 10, "clean": 90, "unmatchable": 0, "remains": 0}
    found = leaks_over_limit({"few": counts, "many": {**counts, "leaked": 11}, "flagged": {**counts, "remains": 1}})
    assert list(found) == ["many", "flagged"]


def test_the_onlooker_hears_everything(reported: dict[str, Any]) -> None:
    stages = ("clean", "sample", "dedup", "vocab")
    assert [heard for heard in reported["heard"] if heard[0] == "progress"] == [
        ["progress", stage, done] for stage in stages for done in (1, 2, 3)
    ]


def test_a_long_stage_is_not_reported_every_second() -> None:
    for seconds, most in ((20, 21), (3600, 130), (86_400, 200)):
        at, updates = 0.0, 0
        while at < seconds:
            at += update_interval(at)
            updates += 1
        assert updates <= most
    assert update_interval(0) == update_interval(20) == 1.0


def test_the_dashboard_is_light() -> None:
    """The watcher imports neither torch nor numba, which an unchanged run must not pay for."""
    script = "import sys, flows.reports.prefect.watcher; print([m for m in ('torch', 'numba') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"
