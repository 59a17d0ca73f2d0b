"""A Prefect server that dies under a run, and a run that dies under its server: no artifact and no exit code depends on
either, and the root's database says in the end what happened."""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import typer

from flows.commands.common import ended, handle_errors
from flows.runs.context import report_result
from flows.service.database import _copy
from model.errors import GuardError
from model.files import user_cache

KILLED = """
import time
from pathlib import Path
from flows.runs.context import report_result
from flows.service.local_server import prefect_server
with prefect_server(Path({root!r})):
    from prefect import flow, task

    @task
    def work():
        print("at work", flush=True)
        time.sleep(600)

    @flow
    def within():
        work()

    @flow
    def doomed():
        within()

    doomed()
"""

LOSES_ITS_SERVER = """
import json, os, sys, time
from pathlib import Path
from flows.service.local_server import prefect_server
with prefect_server(Path({root!r})) as url:
    from prefect import flow, get_client, task

    @task
    def work(number):
        return number

    @flow
    def hardy():
        first = work(1)
        print(json.dumps(dict(url=url, password=os.environ["PREFECT_API_AUTH_STRING"])), flush=True)
        sys.stdin.readline()
        return first + work(2)

    total = hardy()
    # The server writes the states of tasks a moment after it heard of them.
    time.sleep(3)
    with get_client(sync_client=True) as client:
        flows = {{flow.id: flow.name for flow in client.read_flows()}}
        runs = [(flows[run.flow_id], run.state.name) for run in client.read_flow_runs()]
        tasks = [(run.name[:4], run.state.name) for run in client.read_task_runs()]
print(json.dumps(dict(total=total, runs=runs, tasks=tasks)))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home folder that nobody can write."""
    folder = tmp_path_factory.mktemp("home")
    copy_kept_database(folder)
    if subprocess.run(["mount", "--bind", folder, folder], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a file system that is read only")
    subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def copy_kept_database(home: Path) -> None:
    """Copy what this user's servers begin with, where there is one: making another takes 9 s of processor time."""
    cache = home / ".cache" / "bessemer"
    cache.mkdir(parents=True)
    for path in user_cache().glob("prefect-*.db"):
        _copy(path, cache / path.name)


def started(script: str, root: Path, home: Path) -> subprocess.Popen[str]:
    mine = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "XDG_"))}
    environment = {**mine, "HOME": str(home), "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"}
    words = [sys.executable, "-c", script.format(root=str(root))]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(words, text=True, env=environment, **pipes)


def server_of(process: subprocess.Popen[str]) -> psutil.Process:
    (server,) = psutil.Process(process.pid).children()
    return server


def status(url: str, password: str | None) -> int:
    request = urllib.request.Request(f"{url}/flow_runs/filter", b"{}", {"Content-Type": "application/json"})
    if password is not None:
        request.add_header("Authorization", f"Basic {base64.b64encode(password.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory, home: Path) -> dict[str, Any]:
    """A run that is killed with its server, then one whose server is killed, under the same root."""
    root = tmp_path_factory.mktemp("root")
    with started(KILLED, root, home) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "at work\n", killed.communicate()[1]
        first_server = server_of(killed)
        time.sleep(3)  # until the server has written that the task runs
        killed.kill()
    with started(LOSES_ITS_SERVER, root, home) as hardy:
        assert hardy.stdout is not None
        begun = json.loads(hardy.stdout.readline() or "{}")
        assert begun, hardy.communicate()[1]
        server = server_of(hardy)
        seen = {
            "command": server.cmdline(),
            "without": status(begun["url"], None),
            "wrong": status(begun["url"], "bessemer:wrong"),
            "right": status(begun["url"], begun["password"]),
        }
        server.send_signal(signal.SIGKILL)
        server.wait(10)
        out, err = hardy.communicate("go on\n", timeout=300)
    assert hardy.returncode == 0, err
    return {**begun, **seen, **json.loads(out.splitlines()[-1]), "err": err, "root": root, "orphans": first_server}


def test_a_server_that_is_killed_is_started_again_and_the_run_goes_on(reported: dict[str, Any]) -> None:
    assert reported["total"] == 3
    assert ["hardy", "Completed"] in reported["runs"]
    assert "the Prefect server of this run ended (exit code -9); restarting it" in reported["err"]


def test_a_run_that_was_killed_is_called_crashed_by_the_next_with_all_within_it(reported: dict[str, Any]) -> None:
    assert sorted(reported["runs"]) == [["doomed", "Crashed"], ["hardy", "Completed"], ["within", "Crashed"]]
    assert sorted(reported["tasks"]) == [
        ["with", "Crashed"],
        *[["work", name] for name in ("Completed", "Completed", "Crashed")],
    ]


def test_the_database_is_the_roots_own_and_no_home_is_needed(reported: dict[str, Any]) -> None:
    assert (reported["root"] / "service" / "prefect" / "prefect.db").is_file()
    assert "warning" not in reported["err"]


def test_a_private_server_asks_for_a_password_that_no_command_line_shows(reported: dict[str, Any]) -> None:
    assert (reported["without"], reported["wrong"], reported["right"]) == (401, 401, 200)
    assert reported["password"].partition(":")[2] not in " ".join(reported["command"])


def test_the_server_of_a_killed_run_is_gone(reported: dict[str, Any]) -> None:
    assert not reported["orphans"].is_running()


NO_DATABASE = """
import json, os
from pathlib import Path
from flows.service.local_server import prefect_server
with prefect_server(Path({root!r})):
    from prefect import flow

    @flow
    def tried():
        return 7

    print(json.dumps(dict(total=tried(), home=os.environ["PREFECT_HOME"])))
"""


def test_a_database_that_cannot_be_opened_costs_its_run_nothing_but_the_view(tmp_path: Path) -> None:
    (tmp_path / "service" / "prefect").mkdir(parents=True)
    (tmp_path / "service" / "prefect" / "prefect.db").write_bytes(b"no database at all" * 1000)
    copy_kept_database(tmp_path)
    with started(NO_DATABASE, tmp_path, tmp_path) as process:
        out, err = process.communicate(timeout=300)
    said = json.loads(out.splitlines()[-1])
    assert (process.returncode, said["total"]) == (0, 7)
    assert f"warning: no Prefect database under {tmp_path / 'service'}" in err
    assert not Path(said["home"]).exists()


def test_a_user_without_a_name_and_a_home_has_prefect(tmp_path: Path) -> None:
    script = "from flows.commands.run import quieten_prefect; quieten_prefect(False); import prefect; print('loaded')"
    # The user may read what this one may, for the interpreter may lie in this one's home.
    reading = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    words = ["setpriv", "--reuid=45678", "--regid=45678", "--clear-groups", *reading, "env", "-u", "HOME"]
    if shutil.which("setpriv") is None or subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not become another one")
    done = subprocess.run([*words, sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "loaded\n", done.stderr


def lost() -> None:
    """What a command meets whose server does not answer any more."""
    with httpx.Client() as client:
        client.get("http://127.0.0.1:9/api")


def test_a_lost_server_is_infrastructure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as exit_, handle_errors():
        lost()
    assert exit_.value.exit_code == 75
    reported = capsys.readouterr().err
    assert reported.startswith("Infra: the Prefect server was lost")
    assert "Traceback" not in reported


def test_a_server_that_fails_for_want_of_disk_is_infrastructure(capsys: pytest.CaptureFixture[str]) -> None:
    answer = httpx.Response(500, request=httpx.Request("POST", "http://127.0.0.1:9/api"))
    with pytest.raises(typer.Exit) as exit_, handle_errors():
        answer.raise_for_status()
    assert exit_.value.exit_code == 75
    assert "Traceback" not in capsys.readouterr().err


def test_a_run_whose_end_the_server_does_not_hear_ends_as_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    def completed() -> dict[str, Any]:
        report_result({"state": "completed"})
        lost()
        raise AssertionError

    def stopped() -> None:
        report_result(GuardError("it took too long"))
        lost()

    assert ended(completed) == {"state": "completed"}
    assert capsys.readouterr().err.startswith("warning: the Prefect server does not know how the run ended")
    with pytest.raises(GuardError, match="it took too long"):
        ended(stopped)
    with pytest.raises(httpx.ConnectError):
        ended(lost)


def test_other_errors_stay_faults_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as exit_, handle_errors():
        raise KeyError("missing")
    assert exit_.value.exit_code == 70
    assert "Traceback" in capsys.readouterr().err
