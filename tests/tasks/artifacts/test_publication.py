"""What a loss of power could undo: nothing may be named by a rename before its bytes and its folder are durable."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.workspace import Workspace, take_over
from tasks.common.config import StrictConfig

SLAB = Stage("slab", roots=("tasks.artifacts.tables.ledger",), libraries=("pyarrow",))


class SlabConfig(StrictConfig):
    slabs: int = 3


def roll(workspace: Workspace) -> StageReport:
    for number in range(SlabConfig().slabs):
        name = f"{number:05d}"
        if workspace.finished(name) is None:
            with workspace.unit(name) as unit:
                unit.path(f"slab-{name}").write_bytes(name.encode() * 100)
                unit.add_file(f"slab-{name}")
    return StageReport()


def build(root: Path, **context: frozenset[str]) -> Artifact:
    return build_artifact(RunContext(root, "run", **context), SLAB, SlabConfig(), {}, roll)


def test_bytes_names_and_folders_are_durable_before_and_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    renames: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(handle: int) -> None:
        real_fsync(handle)
        synced.add(os.fstat(handle).st_ino)

    def rename(source: Path, target: Path) -> None:
        if Path(target).parent.name == "slab":
            inodes = {path.name: path.stat().st_ino for path in [Path(source), *Path(source).iterdir()]}
            renames.extend(name for name, inode in inodes.items() if inode not in synced)
            synced.discard(Path(target).parent.stat().st_ino)
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    artifact = build(tmp_path)
    assert renames == [], "these were named before they were durable"
    assert artifact.path.parent.stat().st_ino in synced
    assert tmp_path.joinpath("artifacts").stat().st_ino in synced


def test_force_restores_what_was_damaged_and_keeps_the_damaged_folder(tmp_path: Path) -> None:
    first = build(tmp_path)
    slab = first.path / "slab-00001"
    slab.write_bytes(b"rust")
    again = build(tmp_path, forced=frozenset({"slab"}))
    assert (again.outcome, again.cause) == ("reproduced", "damaged slab-00001 restored")
    assert slab.read_bytes() == b"00001" * 100
    (aside,) = first.path.parent.glob("*.damaged-*")
    assert (aside / "slab-00001").read_bytes() == b"rust"
    assert build(tmp_path).outcome == "reused"


@settings(max_examples=40, deadline=None)
@given(numbers=st.lists(st.integers(1, 10**6 - 1), min_size=1, max_size=5, unique=True))
def test_the_newest_folder_of_a_build_is_taken_over_and_the_rest_removed(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int]
) -> None:
    work = tmp_path_factory.mktemp("work")
    for number in numbers:
        (work / f"ab12.{number:06d}-00").mkdir()
        (work / f"ab12.{number:06d}-00" / f"{number}").touch()
    (work / "ab12.force.000001-00").mkdir()
    folder, resumed = take_over(work, "ab12", "999999-77")
    assert resumed
    assert [path.name for path in folder.iterdir()] == [str(max(numbers))]
    assert sorted(path.name for path in work.iterdir()) == ["ab12.999999-77", "ab12.force.000001-00"]
