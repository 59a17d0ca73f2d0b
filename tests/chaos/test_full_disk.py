"""A disk that fills up while a stage writes: a clear error, nothing published, and the next run goes on."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from model.errors import Infra
from tasks.build import RunContext, Stage, build_artifact
from tasks.config import StrictConfig
from tasks.report import StageReport
from tasks.workspace import Workspace, table_file_name

NOISE = Stage("noise", roots=("tasks.ledger",), libraries=("pyarrow",))
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
                unit.write_table("order", pa.table({"noise": column}), table_file_name("noise", name))
            done.append(number)
    return StageReport()


def test_a_full_disk_is_infrastructure_and_finished_units_are_kept(small_disk: Path) -> None:
    config, done = NoiseConfig(), []
    context = RunContext(small_disk, "run")
    with pytest.raises(Infra, match=r"no space left.*run again, and the build goes on"):
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


def test_a_disk_with_no_room_for_a_lease_leaves_none_behind(small_disk: Path) -> None:
    fill(small_disk / "ballast")
    with pytest.raises(Infra, match="no space left"):
        build_artifact(RunContext(small_disk, "run"), NOISE, NoiseConfig(), {}, lambda workspace: StageReport())
    assert not list(small_disk.glob("locks/*/*.lease"))
