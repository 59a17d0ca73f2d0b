"""What the server does about runs that crash: the automations are valid, written once, and do their work."""

import errno
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow.ipc
import pytest
from prefect.server.events.schemas.automations import AutomationCreate
from prefect.server.events.schemas.events import Resource, ResourceSpecification
from prefect.states import Cancelled, Completed, Crashed, Failed

from flows import pretrain
from flows.nightly import flow as nightly
from flows.nightly.history import NOTHING, PROMOTED, TOO_LITTLE
from flows.runs.lifecycle import as_bessemer_error, machine_failed
from flows.service.api import read_automations
from flows.service.files import shipped
from model.errors import BessemerError, Infra, InputError
from tests.command import bessemer

SECONDS = 400.0


def test_prefect_takes_them_as_they_are() -> None:
    found = [AutomationCreate.model_validate(automation) for automation in read_automations()]
    assert [automation.name for automation in found] == [
        "bessemer-end-silent-runs",
        "bessemer-restart-crashed-runs",
        "bessemer-retry-runs-that-never-began",
    ]
    assert all(automation.enabled for automation in found)
    assert shipped("automations.yaml").is_file()


def test_every_end_of_a_run_is_known_to_what_looks_for_silent_ones() -> None:
    assert pretrain  # these two load all that may end a run
    assert nightly
    silent, restart, retry = (automation["trigger"]["expect"] for automation in read_automations())
    classes = {found.__name__ for found in below(BessemerError)}
    ends = {"Completed", "Failed", "Cancelling", "Cancelled", "Crashed", "heartbeat"} | classes
    ends |= {state.capitalize() for state in (PROMOTED, NOTHING, TOO_LITTLE)}
    assert set(silent) == {f"prefect.flow-run.{end}" for end in ends} | {"bessemer.disowned"}
    retried = {found.__name__ for found in below(BessemerError) if found.retryable}
    assert set(restart) == {f"prefect.flow-run.{end}" for end in {"Crashed"} | retried}
    assert retry == ["prefect.flow-run.Crashed"]


@pytest.mark.parametrize(("began", "seconds"), [(0, 300), (1, 5), (2, 5)])
def test_a_crash_is_followed_by_one_run_later_where_it_came_before_the_first_line(began: int, seconds: int) -> None:
    reported = Resource({"prefect.resource.id": "prefect.flow-run.1", "prefect.run-count": str(began)})
    restarts = [one for one in read_automations() if one["actions"][0]["type"] == "run-deployment"]
    matching = [one for one in restarts if ResourceSpecification(one["trigger"]["match"]).matches(reported)]
    assert [one["actions"][0]["schedule_after"] for one in matching] == [seconds]


def test_no_run_that_has_ended_is_called_crashed() -> None:
    """Prefect refuses that itself, unless it is forced."""
    (action,) = read_automations()[0]["actions"]
    assert (action["state"], action["force"]) == ("CRASHED", False)


def below(error: type[BessemerError]) -> Iterator[type[BessemerError]]:
    """Every class that a run may be ended by; those of tests are no part of the program."""
    for found in error.__subclasses__():
        yield from (found, *below(found)) if found.__module__.split(".")[0] in ("flows", "tasks", "model") else ()


def test_only_the_machines_failures_count_as_crashes() -> None:
    assert machine_failed(Crashed())
    assert machine_failed(Failed(name="Infra"))
    for other in (Failed(), Failed(name="RecipeError"), Completed(), Completed(name="Infra"), Cancelled(), None):
        assert not machine_failed(other)


def test_a_full_disk_is_worth_another_run_wherever_it_was_met() -> None:
    reported = as_bessemer_error(OSError(errno.ENOSPC, "No space left on device", "/root/runs/page.html"))
    assert isinstance(reported, Infra)
    assert str(reported).startswith("/root/runs/page.html: No space left on device")
    wrong = InputError("no such file")
    assert as_bessemer_error(wrong) is wrong
    with pytest.raises(PermissionError):
        as_bessemer_error(PermissionError(errno.EACCES, "Permission denied"))


class Service:
    """A service that runs, and what its API says."""

    def __init__(self, root: Path, recipe: Path, ask: Callable[..., Any]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.root, self.recipe = root, recipe
        self.ask = partial(ask, root, self.port)

    def up(self, folder: Path | None = None) -> str:
        words = ("serve", "start", "--root", self.root, "--recipe", self.recipe, "--port", str(self.port))
        return bessemer(*words, folder=folder).stdout

    def start(self) -> None:
        """A run of the pipeline with a training long enough to be found at work."""
        (deployment,) = self.ask("/deployments/filter", {"deployments": {"name": {"any_": ["00-pretrain"]}}})
        train = {"checkpoint_steps": 5, "model": {"width": 96, "layers": 4}}
        changes = {"budget_tokens": "200K", "chunk": {"max_epochs": 16.0}, "train": train}
        parameters = {**deployment["parameters"], "changes": changes}
        self.ask(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": parameters})

    def runs(self) -> list[dict[str, Any]]:
        """All, in the order in which they were made."""
        return self.ask("/flow_runs/filter", {"sort": "EXPECTED_START_TIME_ASC"})

    def states(self) -> list[str]:
        """Of all runs, in the order in which they were made."""
        return [run["state"]["type"] for run in self.runs()]

    def worker(self) -> int:
        return json.loads((self.root / "service" / "worker.json").read_text())["pid"]

    def engines(self) -> list[psutil.Process]:
        """Processes of runs that the worker started; their trainers are children of these."""
        return psutil.Process(self.worker()).children()

    def wait_for_checkpoint(self) -> None:
        wait_until(lambda: bool(list(self.root.glob("work/*/scratch/train/checkpoints/step-*"))))


def wait_until(true: Any, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds} seconds in vain"
        time.sleep(0.5)


@pytest.fixture
def service(foundry: Path, tmp_path: Path, ask: Callable[..., Any]) -> Iterator[Service]:
    found = Service(tmp_path / "root", foundry / "foundry.toml", ask)
    try:
        found.up()
        yield found
    finally:
        bessemer("serve", "stop", "--now", "--root", found.root, code=None)


@pytest.mark.prove
def test_a_run_whose_process_is_killed_is_started_again_and_goes_on(service: Service) -> None:
    service.start()
    service.wait_for_checkpoint()
    for engine in service.engines():
        engine.kill()
    wait_until(lambda: service.states() == ["CRASHED", "COMPLETED"])
    assert "resume" in events(service.root)


@pytest.mark.prove
def test_a_run_that_dies_with_its_worker_goes_on_with_the_next_worker(service: Service) -> None:
    service.start()
    service.wait_for_checkpoint()
    engines, worker = service.engines(), service.worker()
    os.kill(worker, signal.SIGKILL)
    for engine in engines:
        engine.kill()
    wait_until(lambda: service.worker() != worker)
    # Nobody said that it crashed: the automation finds that it is silent.
    wait_until(lambda: service.states() == ["CRASHED", "COMPLETED"])
    assert "resume" in events(service.root)


@pytest.mark.prove
def test_a_run_that_a_lost_machine_left_behind_goes_on_when_the_service_comes_up(service: Service) -> None:
    known = {one["name"]: one["id"] for one in service.ask("/automations/filter", {})}
    assert set(known) == {one["name"] for one in read_automations()}
    service.start()
    service.wait_for_checkpoint()
    pids = [json.loads((service.root / "service" / f"{name}.json").read_text())["pid"] for name in ("keeper", "server")]
    lost = [*service.engines(), *(psutil.Process(pid) for pid in (*pids, service.worker()))]
    lost += [child for process in lost for child in process.children(recursive=True)]
    for process in lost:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(lost, timeout=30)
    assert "1 run left behind by an earlier service" in service.up()
    # Changed in their places: there is no moment in which the server knows of none.
    assert {one["name"]: one["id"] for one in service.ask("/automations/filter", {})} == known
    wait_until(lambda: service.states() == ["CRASHED", "COMPLETED"])
    assert "resume" in events(service.root)


@pytest.mark.prove
def test_a_run_that_never_began_is_tried_again_minutes_later(service: Service, tmp_path: Path) -> None:
    """Its worker does not have the folder any more in which the deployment was written."""
    bessemer("serve", "stop", "--root", service.root)
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    service.up(nowhere)
    nowhere.rmdir()
    service.start()
    wait_until(lambda: len(service.runs()) == 2)
    first, second = service.runs()
    assert (first["state"]["type"], first["run_count"]) == ("CRASHED", 0)
    ended = datetime.fromisoformat(first["state"]["timestamp"])
    due = datetime.fromisoformat(second["expected_start_time"])
    assert 290 < (due - ended).total_seconds() < 360
    time.sleep(20)
    assert service.states() == ["CRASHED", "SCHEDULED"]


def events(root: Path) -> list[str]:
    """Kinds of EVENTS of the one training that ended."""
    (file,) = root.glob("artifacts/train/*/events.arrow")
    return pyarrow.ipc.open_file(file).read_all()["kind"].to_pylist()
