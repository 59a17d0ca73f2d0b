"""Who may give commands to a service that runs: nobody without the password, and with it no other code is started.

`pytest -s` prints what was tried and what became of it.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flows.recipe.load import load_recipe
from flows.recipe.stages import STAGES
from flows.service.worker import expected_deployments
from tests.command import bessemer
from tests.model.forked_trainers import stages_fork_trainers

SECONDS = 600.0
NOBODY = 65534
CLIENT = Path(__file__).with_name("stranger.py")
SOCKETS = (
    "/api/events/in",
    "/api/events/out",
    "/api/logs/out",
    "/api/task_runs/subscriptions/scheduled",
    "/api/work_pools/bessemer/workers/connect",
)


class Service:
    """A service that runs, and what its API says to whom has the password."""

    def __init__(self, root: Path, recipe: Path, ask: Callable[..., Any]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.root, self.recipe = root, recipe
        self.ask = partial(ask, root, self.port)

    @property
    def password(self) -> str:
        return (self.root / "service" / "password").read_text().strip()

    def deployment(self, name: str) -> dict[str, Any]:
        (found,) = self.ask("/deployments/filter", {"deployments": {"name": {"any_": [name]}}})
        return found

    def start(self, name: str, **more: Any) -> str:
        return self.ask(f"/deployments/{self.deployment(name)['id']}/create_flow_run", more)["id"]

    def end(self, run: str) -> dict[str, Any]:
        """The run's state when it has ended."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            (found,) = self.ask("/flow_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
            if found["end_time"]:
                return found["state"]
            time.sleep(0.5)
        raise AssertionError(f"run {run} did not end: {self.log('worker')}")

    def log(self, name: str) -> str:
        return (self.root / "service" / f"{name}.log").read_text()

    def up(self) -> str:
        return bessemer("serve", "start", "--root", self.root, "--recipe", self.recipe, "--port", self.port).stdout


@pytest.fixture(scope="module")
def service(
    foundry: Path, tmp_path_factory: pytest.TempPathFactory, ask: Callable[..., Any], build: Callable[..., Any]
) -> Iterator[Service]:
    """A service of a root whose artifacts all exist."""
    text = (foundry / "foundry.toml").read_text().replace("{recipe}", str(foundry)).replace('"40K"', '"8K"')
    recipe = tmp_path_factory.mktemp("recipe") / "small.toml"
    recipe.write_text(f"{text}threads = 1\n")
    found = Service(tmp_path_factory.mktemp("root"), recipe, ask)
    with stages_fork_trainers():
        build("evaluate", load_recipe(recipe, found.root), found.root)
    try:
        reported = found.up()
        assert str(found.root / "service" / "password") in reported
        assert found.password.partition(":")[2] not in reported
        yield found
    finally:
        bessemer("serve", "stop", "--now", "--root", found.root, code=None)


def as_nobody(service: Service, tries: list[dict[str, Any]]) -> list[str]:
    """What each try of another local user was answered."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    asked = json.dumps({"port": service.port, "uid": NOBODY, "tries": tries})
    done = subprocess.run(
        [sys.executable, CLIENT], input=asked, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_nobody_commands_it_without_the_password(service: Service) -> None:
    own = f"127.0.0.1:{service.port}"
    evil = f"evil.example:{service.port}"
    whos = [
        ("foreign Host, right password", {"host": evil, "password": service.password}),
        (
            "foreign Host and Origin (rebinding)",
            {"host": evil, "origin": f"http://{evil}", "password": service.password},
        ),
        (
            "foreign Origin, right password",
            {"host": own, "origin": "http://evil.example", "password": service.password},
        ),
        ("no password", {"host": own}),
        ("wrong password", {"host": own, "password": "bessemer:wrong"}),
    ]
    ways = [
        ("HTTP", "/api/deployments/filter"),
        ("HTTP", "/api/admin/settings"),
        *(("socket", path) for path in SOCKETS),
    ]
    tries = [{"who": who, "way": way, "path": path, **more} for way, path in ways for who, more in whos]
    tries += [{"who": "own Origin, right password", "way": "HTTP", "path": "/api/deployments/filter", "host": own,
               "origin": f"http://{own}", "password": service.password}]  # fmt: skip
    tries += [{"who": "own Origin, right password", "way": "socket", "path": "/api/events/out", "host": own,
               "origin": f"http://{own}", "password": service.password}]  # fmt: skip
    tries += [{"who": "reading the password", "way": "file", "path": str(service.root / "service" / "password")}]
    before = service.log("server").count(" refused ")
    answers = as_nobody(service, tries)
    print(f"\n{'as uid 65534':37} {'way':7} {'address':42} answer")
    for tried, answer in zip(tries, answers, strict=True):
        print(f"{tried['who']:37} {tried['way']:7} {tried['path'].removeprefix(str(service.root)):42} {answer}")
    refused = {("HTTP", True): "403", ("HTTP", False): "401", ("socket", True): "403", ("socket", False): "closed"}
    for tried, answer in zip(tries[:-3], answers[:-3], strict=True):
        assert answer.startswith(refused[tried["way"], tried["who"].startswith("foreign")]), (tried, answer)
    assert answers[-3:] == ["200", "accepted", "PermissionError"]
    logged = service.log("server").count(" refused ") - before
    print(f"{logged} lines of server.log say what was refused")
    assert logged == len(tries) - 3
    assert service.password.partition(":")[2] not in service.log("server")


def test_no_route_answers_without_the_password(service: Service) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/openapi.json", timeout=60) as answer:
        paths = json.load(answer)["paths"]
    routes = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    answered = []
    for method, path in routes:
        request = urllib.request.Request(f"http://127.0.0.1:{service.port}/api{path}", b"{}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status = answer.status
        except urllib.error.HTTPError as error:
            status = error.code
        answered += [(method, path, status)] if status != 401 else []
    print(f"{len(routes)} routes; without the password these answer: {answered}")
    assert len(routes) > 150
    assert {path for _, path, _ in answered} == {"/health", "/ready"}
    own = f"http://127.0.0.1:{service.port}"
    with urllib.request.urlopen(
        urllib.request.Request(f"{own}/api/health", headers={"Origin": own}), timeout=60
    ) as answer:
        assert "Access-Control-Allow-Origin" not in answer.headers, "Prefect's own is any origin"


def scheduled_run(service: Service) -> dict[str, Any]:
    """The run of a schedule, under a parameter that is not the recipe's, both given in the UI."""
    deployment = service.deployment("06-rerun-chunk")
    assert deployment["parameters"]["from_stage"] == "chunk"
    changed = {**deployment["parameters"], "from_stage": "train"}
    service.ask(f"/deployments/{deployment['id']}", {"parameters": changed}, "PATCH")
    due = datetime.now(UTC) + timedelta(seconds=15)
    schedule = {"interval": 3600, "anchor_date": due.isoformat(), "timezone": "UTC"}
    service.ask(f"/deployments/{deployment['id']}/schedules", [{"schedule": schedule, "active": True}])
    deadline = time.monotonic() + SECONDS
    while not (runs := service.ask("/flow_runs/filter", {"deployments": {"name": {"any_": ["06-rerun-chunk"]}}})):
        assert time.monotonic() < deadline
        time.sleep(1)
    return min(runs, key=lambda run: run["expected_start_time"])


def test_the_password_lets_nobody_change_what_code_is_run_and_parameters_and_schedules_are_kept(
    service: Service, tmp_path: Path
) -> None:
    """A deployment's parameters and schedules are the user's; the rest is as `up` wrote it, or is not run."""
    marker = tmp_path / "run-by-a-stranger"
    touch = f"touch {marker}"
    script = tmp_path / "evil.py"
    script.write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\ndef main(): ...\n")
    step = {"prefect.deployments.steps.run_shell_script": {"script": touch}}
    patches: dict[str, tuple[str, dict[str, Any]]] = {
        "job variables": (
            "01-rerun-sample",
            {"job_variables": {"command": touch, "env": {"PYTHONPATH": str(tmp_path)}}},
        ),
        "entrypoint": ("03-rerun-dedup", {"entrypoint": f"{script}:main"}),
        "pull step": ("05-rerun-vocab", {"pull_steps": [*service.deployment("05-rerun-vocab")["pull_steps"], step]}),
    }
    runs: dict[str, str] = {}
    for what, (name, patch) in patches.items():
        service.ask(f"/deployments/{service.deployment(name)['id']}", patch, "PATCH")
        runs[what] = service.start(name)
    runs["job variables of one run"] = service.start("02-rerun-clean", job_variables={"command": touch})
    flow = service.ask("/flows/", {"name": "evil"})["id"]
    new = {"name": "evil", "flow_id": flow, "work_pool_name": "bessemer", "entrypoint": f"{script}:main"}
    service.ask("/deployments/", {**new, "pull_steps": [step]})
    runs["new deployment in the pool"] = service.start("evil")
    template = {"job_configuration": {"command": touch}, "variables": {"type": "object", "properties": {}}}
    service.ask("/work_pools/bessemer", {"base_job_template": template}, "PATCH")
    ignored = scheduled_run(service)
    ends = {what: service.end(run) for what, run in runs.items()}
    print("\nwith the right password")
    for what, state in ends.items():
        print(f"{what:28} {state['name']}: {state['message']}")
    for what, state in ends.items():
        assert (state["type"], state["name"]) == ("FAILED", "GuardError"), what
        assert state["message"].startswith("refused: ")
        assert f"'{runs[what]}' {state['message']}" in service.log("worker")
    kept = service.end(ignored["id"])
    print(f"{'template of the pool':28} {kept['name']}: {kept['message']} (the template is not read)")
    assert (ignored["auto_scheduled"], ignored["parameters"]["from_stage"]) == (True, "train")
    assert (kept["name"], kept["message"]) == ("Completed", "8 reused")
    assert not marker.exists()


@pytest.mark.prove
def test_every_deployment_runs_after_up_has_written_them_again(service: Service) -> None:
    """The tests above have changed some of them; what the user has switched on stays on."""
    nightly = service.deployment("10-nightly")
    (schedule,) = nightly["schedules"]
    assert not schedule["active"]
    service.ask(f"/deployments/{nightly['id']}/schedules/{schedule['id']}", {"active": True}, "PATCH")
    bessemer("serve", "stop", "--now", "--root", service.root)
    service.up()
    assert [one["active"] for one in service.deployment("10-nightly")["schedules"]] == [True]
    assert len(service.deployment("06-rerun-chunk")["schedules"]) == 1
    names = [one for one in expected_deployments(Path()) if "nightly" not in one]
    runs = {name: service.start(name) for name in names}
    ends = {name: service.end(run) for name, run in runs.items()}
    for name, state in ends.items():
        print(f"{name:20} {state['name']}: {state['message']}")
    assert {name for name in names if "rerun" in name} == {f"0{at}-rerun-{stage}" for at, stage in enumerate(STAGES, 1)}
    assert {state["name"] for state in ends.values()} == {"Completed"}, ends
