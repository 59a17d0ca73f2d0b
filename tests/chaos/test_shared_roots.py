"""A root that may only be read, and a root that two users share: a clear error or a shared artifact, nothing lost."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from flows.service import local_server as private_server
from flows.service.files import Known, ServiceFiles, write_password
from model.errors import BessemerError, InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import write_table
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig
from tests.command import bessemer, invoke

CAST = Stage("cast", roots=("tasks.artifacts.tables.ledger",), libraries=("pyarrow",))
ANNA, BORIS, FOUNDERS = 20001, 20002, 20000


class CastConfig(StrictConfig):
    shape: str = "bell"


def cast(root: Path, shape: str = "bell") -> Artifact:
    def run(workspace: Workspace) -> StageReport:
        if workspace.finished("cast") is None:
            with workspace.unit("cast") as unit:
                write_table(unit, "documents", pa.table({"shape": [shape]}))
        return StageReport()

    return build_artifact(RunContext(root, "run"), CAST, CastConfig(shape=shape), {}, run)


def as_user(user: int, body: Callable[[], Any]) -> str:
    """What becomes of `body` in a process of another user: the artifact's outcome, or the error in words."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.umask(0o002)
            os.setgroups([FOUNDERS])
            os.setgid(user)
            os.setuid(user)
            reported = body().outcome
        except BessemerError as error:
            reported = f"{type(error).__name__}: {error}"
        except BaseException as error:
            reported = f"unexpected {type(error).__name__}: {error}"
        os.write(writing, reported.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as stream:
        return stream.read()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that users other than this one can reach."""
    if os.getuid() != 0:
        pytest.skip("only root may act as two other users")
    folder = Path(tempfile.mkdtemp(prefix="bessemer-shared-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_anothers_root_can_be_reused_and_what_it_lacks_is_reported(place: Path) -> None:
    root = place / "annas"
    root.mkdir()
    os.chown(root, ANNA, ANNA)
    root.chmod(0o755)
    assert as_user(ANNA, lambda: cast(root)) == "built"
    assert as_user(BORIS, lambda: cast(root)) == "reused"
    reported = as_user(BORIS, lambda: cast(root, "rail"))
    assert reported.startswith(f"InputError: cast: {root}/")
    assert "cannot be written (Permission denied). Give this user write permission, or choose another root" in reported
    assert as_user(ANNA, lambda: cast(root, "rail")) == "built"


def test_a_root_that_a_group_shares_serves_both(place: Path) -> None:
    root = place / "shared"
    root.mkdir()
    os.chown(root, ANNA, FOUNDERS)
    root.chmod(0o2775)
    assert as_user(ANNA, lambda: cast(root)) == "built"
    assert as_user(BORIS, lambda: cast(root)) == "reused"
    assert as_user(BORIS, lambda: cast(root, "rail")) == "built"
    assert as_user(ANNA, lambda: cast(root, "rail")) == "reused"


def test_a_run_beside_the_service_of_another_user_has_a_server_of_its_own(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anna's password lets one run code as Anna, and so Boris may not read it; his run goes on without it."""
    files = ServiceFiles(place)
    write_password(files.own_password)
    files.remember(Known(port=4321))
    for path in (files.own_password, files.folder):
        os.chown(path, ANNA, FOUNDERS)
    files.folder.chmod(0o2775)
    monkeypatch.setattr(private_server, "running_server", lambda root: "http://127.0.0.1:4321/api")
    monkeypatch.setattr(private_server, "_private_server", lambda files: nullcontext(SimpleNamespace(url="his own")))
    monkeypatch.setattr(private_server, "_profile_url", lambda: None)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)

    def run() -> Any:
        with private_server.prefect_server(place) as url:
            return SimpleNamespace(outcome=url)

    assert as_user(BORIS, run) == "his own"
    assert as_user(ANNA, run) == "http://127.0.0.1:4321/api"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a file system")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_root_that_may_only_be_read_serves_what_exists_and_says_why_it_cannot_build(disk: Path) -> None:
    assert cast(disk).outcome == "built"
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert cast(disk).outcome == "reused"
    with pytest.raises(InputError, match=r"cannot be written \(Read-only file system\)"):
        cast(disk, "rail")
    assert cast(disk).verify() == []


def test_a_whole_run_is_read_from_a_root_that_may_only_be_read(
    foundry: Path, disk: Path, server_settings: dict[str, str]
) -> None:
    recipe, until = foundry / "foundry.toml", ("--until", "clean")
    done = bessemer("run", recipe, "--root", disk, "--json", *until, environment=server_settings)
    built = json.loads(done.stdout)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    # None of these needs a server.
    again = invoke("run", recipe, "--root", disk, "--json", *until)
    record = json.loads(again.stdout)
    assert [entry["outcome"] for entry in record["stages"]] == ["reused", "reused"]
    assert [entry["content"] for entry in record["stages"]] == [entry["content"] for entry in built["stages"]]
    assert record["page"] == built["page"]
    assert "nothing needed building; the record of this run could not be written under" in again.stderr
    for words in (("plan", recipe), ("runs", "report", "latest"), ("runs", "compare", "latest", "latest")):
        invoke(*words, "--root", disk)
    for words in (("run", recipe, *until, "--set", "seed=8"), ("run", recipe, *until, "--force"), ("run", recipe)):
        refused = invoke(*words, "--root", disk, code=3)
        assert "cannot be written (Read-only file system)" in refused.stderr
    assert [path.name for path in (disk / "runs").iterdir() if path.is_dir()] == [built["run_id"]]
