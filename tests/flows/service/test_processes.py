"""Background processes are known by pid and start, so that a recycled number is never signalled."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.service.files import Known, ServiceFiles, running_server
from flows.service.local_server import prefect_server
from flows.service.processes import Background, started, wait_until_ended
from flows.service.server import stop_service
from model.checksummed_json import write_sealed
from model.errors import Infra, InputError

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]


@pytest.fixture
def process(tmp_path: Path) -> Background:
    return Background("sleeper", tmp_path / "sleeper.json", tmp_path / "sleeper.log")


def wait_until_up(process: Background) -> None:
    deadline = time.monotonic() + 10
    while not process.log.exists() or "up" not in process.log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_is_found_again_and_ended(process: Background, tmp_path: Path) -> None:
    pid = process.start(SLEEP, os.environ, tmp_path)
    wait_until_up(process)
    assert Background(process.name, process.record, process.log).pid() == pid
    assert os.getsid(pid) == pid, "Ctrl-C in the terminal would reach it"
    assert process.stop(seconds=10)
    assert process.pid() is None
    assert not process.is_stale()


def test_a_process_that_does_not_listen_is_killed(process: Background, tmp_path: Path) -> None:
    pid = process.start(DEAF, os.environ, tmp_path)
    wait_until_up(process)
    assert not process.stop(seconds=0.3)
    assert started(pid) is None


def test_a_recycled_number_is_a_stranger(process: Background, tmp_path: Path) -> None:
    stranger = subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL)
    try:
        write_sealed(process.record, {"pid": stranger.pid, "started": "another boot 12345"})
        assert process.pid() is None
        assert process.is_stale()
        process.stop(seconds=1)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_process_that_ended_by_itself_is_stale(process: Background, tmp_path: Path) -> None:
    pid = process.start([sys.executable, "-c", "pass"], os.environ, tmp_path)
    assert wait_until_ended([pid], seconds=10)
    assert process.is_stale()


def test_a_run_finds_the_server_that_runs_for_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    files = ServiceFiles(tmp_path)
    assert running_server(tmp_path) is None
    files.folder.mkdir()
    files.remember(Known("0.0.0.0", 4321))
    files.server.start(SLEEP, os.environ, tmp_path)
    try:
        assert running_server(tmp_path) == "http://127.0.0.1:4321/api"
        with prefect_server(tmp_path) as url:
            assert url == os.environ["PREFECT_API_URL"] == "http://127.0.0.1:4321/api"
        assert "PREFECT_API_URL" not in os.environ
        monkeypatch.setenv("PREFECT_API_URL", "http://mine/api")
        with prefect_server(tmp_path) as url:
            assert url == "http://mine/api"
    finally:
        files.server.stop(seconds=10)


def test_a_server_that_does_not_answer_is_named_with_what_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.client.orchestration import SyncPrefectClient

    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    with (
        pytest.raises(Infra, match=r"at http://127\.0\.0\.1:9/api, which PREFECT_API_URL in the environment names"),
        prefect_server(tmp_path) as url,
        SyncPrefectClient(url) as client,
    ):
        client.raise_for_api_version_mismatch()
    with pytest.raises(RuntimeError, match="of a stage"), prefect_server(tmp_path):
        raise RuntimeError("of a stage")


def test_profiles_of_prefect_that_are_damaged_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles = tmp_path / "profiles.toml"
    profiles.write_text('active = "mine')
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(profiles))
    with pytest.raises(InputError, match=f"{profiles}: Prefect's profiles cannot be read"), prefect_server(tmp_path):
        pass


def test_down_leaves_the_server_to_a_run_that_reports_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    files = ServiceFiles(tmp_path)
    files.folder.mkdir()
    files.remember(Known(port=4321))
    files.server.start(SLEEP, os.environ, tmp_path)
    try:
        with prefect_server(tmp_path), prefect_server(tmp_path):
            with pytest.raises(InputError, match="reports to the server"):
                stop_service(tmp_path, lambda _: None)
            assert files.server.pid() is not None
        assert stop_service(tmp_path, lambda _: None)
        assert files.server.pid() is None
    finally:
        files.server.stop(seconds=10)


def test_a_run_that_was_killed_no_longer_keeps_the_server(tmp_path: Path) -> None:
    files = ServiceFiles(tmp_path)
    files.folder.mkdir()
    holding = (
        "import pathlib, sys, time; from flows.service.files import ServiceFiles\n"
        "with ServiceFiles(pathlib.Path(sys.argv[1])).reporting(): print('up', flush=True); time.sleep(60)"
    )
    run = subprocess.Popen([sys.executable, "-c", holding, str(tmp_path)], stdout=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stdout.readline() == b"up\n"
    with pytest.raises(InputError):
        files.check_nobody_reports()
    run.kill()
    run.wait()
    files.check_nobody_reports()


def test_down_now_ends_the_server_under_a_run(tmp_path: Path) -> None:
    files = ServiceFiles(tmp_path)
    files.folder.mkdir()
    files.server.start(SLEEP, os.environ, tmp_path)
    with files.reporting():
        assert stop_service(tmp_path, lambda _: None, now=True)
    assert files.server.pid() is None


def test_down_ends_worker_and_server_where_the_server_does_not_answer_or_its_password_is_lost(tmp_path: Path) -> None:
    files = ServiceFiles(tmp_path)
    files.folder.mkdir()
    said: list[str] = []
    for password_file, reason in ((None, "did not answer"), (tmp_path / "lost", "cannot be read")):
        files.remember(Known(port=9, password_file=password_file and str(password_file)))
        parts = (files.server, files.worker, files.keeper)
        for process in parts:
            process.start(SLEEP, os.environ, tmp_path)
        assert stop_service(tmp_path, said.append)
        assert [process.pid() for process in parts] == [None] * 3
        assert said[0].startswith("runs under way end with the worker, for the server cannot be asked to cancel them:")
        assert reason in said[0]
        assert said[1:] == ["the worker ended", "the server ended"]
        said.clear()
