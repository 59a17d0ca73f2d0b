"""A disk that fills up while a stage writes: a clear error, nothing published, and the next run goes on."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from model.errors import Infra
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import table_file_name, write_table
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig
from tests.command import invoke

NOISE = Stage("noise", roots=("tasks.artifacts.tables.ledger",), libraries=("pyarrow",))
UNITS = 6


class NoiseConfig(StrictConfig):
    kilobytes: int = 256


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a small file system to fill up")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def fill(ballast: Path) -> None:
    """Write until nothing more fits."""
    with ballast.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while stream.write(bytes(4096)):
            pass


def noise(config: NoiseConfig, workspace: Workspace, done: list[int]) -> StageReport:
    for number in range(UNITS):
        name = f"{number:05d}"
        if workspace.finished(name) is None:
            with workspace.unit(name) as unit:
                column = pa.array([bytes([number]) * config.kilobytes * 1024])
                write_table(unit, "order", pa.table({"noise": column}), table_file_name("noise", name))
            done.append(number)
    return StageReport()


def test_a_full_disk_is_infrastructure_and_finished_units_are_kept(small_disk: Path) -> None:
    config, done = NoiseConfig(), []
    context = RunContext(small_disk, "run")
    with pytest.raises(Infra, match=r"no space left.*run again, and the build continues"):
        build_artifact(context, NOISE, config, {}, lambda workspace: noise(config, workspace, done))
    assert not list(small_disk.glob("artifacts/*/*"))
    assert 0 < len(done) < UNITS
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    artifact = build_artifact(context, NOISE, config, {}, lambda workspace: noise(config, workspace, done))
    assert done == list(range(UNITS))
    assert artifact.verify() == []


def test_a_disk_that_fills_up_during_the_commit_publishes_nothing_and_no_unit_is_done_again(small_disk: Path) -> None:
    config, done = NoiseConfig(kilobytes=16), []
    ballast = small_disk / "ballast"

    def fills_the_disk(workspace: Workspace) -> StageReport:
        report = noise(config, workspace, done)
        fill(ballast)
        return report

    with pytest.raises(Infra, match="no space left"):
        build_artifact(RunContext(small_disk, "run"), NOISE, config, {}, fills_the_disk)
    assert not list(small_disk.glob("artifacts/*/*"))
    ballast.unlink()
    context = RunContext(small_disk, "run")
    artifact = build_artifact(context, NOISE, config, {}, lambda workspace: noise(config, workspace, done))
    assert done == list(range(UNITS))
    assert artifact.verify() == []
    assert not list(small_disk.glob("work/*"))


def test_a_disk_with_no_space_for_a_lease_leaves_none_behind(small_disk: Path) -> None:
    fill(small_disk / "ballast")
    with pytest.raises(Infra, match="no space left"):
        build_artifact(RunContext(small_disk, "run"), NOISE, NoiseConfig(), {}, lambda workspace: StageReport())
    assert not list(small_disk.glob("locks/*/*.lease"))


@pytest.mark.parametrize(
    "stage",
    ["dedup", *(pytest.param(one, marks=pytest.mark.prove) for one in ("sample", "chunk", "train", "evaluate"))],
)
def test_a_disk_that_fills_up_ends_the_run_within_a_minute_with_its_message(
    foundry: Path, tmp_path: Path, stage: str
) -> None:
    """The database of the run's Prefect server is on the full disk, too."""
    root, ballast = tmp_path / "disk", tmp_path / "disk" / "ballast"
    root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(root)], check=False).returncode != 0:
        pytest.skip("this user may not mount a small file system to fill up")
    words = [sys.executable, "-m", "flows.cli", "run", str(foundry / "foundry.toml"), "--root", str(root), "--json"]
    environment = {key: value for key, value in os.environ.items() if key != "PREFECT_API_URL"}
    try:
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as run:
            assert run.stderr is not None
            heard = ""
            while f"{stage:<14} building" not in heard:
                heard = run.stderr.readline()
                assert heard, "the run ended before its disk was full"
            run.send_signal(signal.SIGSTOP)  # a stage of a second could end before its disk is full
            fill(ballast)
            run.send_signal(signal.SIGCONT)
            began = time.monotonic()
            reported = run.communicate(timeout=300)[1]
            seconds = time.monotonic() - began
        assert run.returncode == 75, reported
        assert seconds < 60
        assert f"Infra: {stage}: no space left while writing" in reported
        assert "Traceback" not in reported
        assert (root / "service" / "prefect" / "prefect.db").is_file()
        refused = invoke(*words[3:], code=75)
        assert refused.stderr == f"Infra: --root {root}: no space left on its disk; free some and run again\n"
        ballast.unlink()
        again = subprocess.run(
            [*words, "--until", stage], capture_output=True, text=True, timeout=300, check=False, env=environment
        )
        assert again.returncode == 0, again.stderr
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)
