"""A manifest or a unit's record that lists a file elsewhere is refused before anything is read or written."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.errors import IntegrityError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.manifest import write_manifest
from tasks.artifacts.workspace import FileRecord, Workspace, read_record, write_record

ELSEWHERE = ["../secret.txt", "/etc/passwd", "a/../../x", "..", ".", "", "folder/part.arrow", "..\\x", "x\0y", 7]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_name_that_leads_elsewhere_is_refused(name: Any) -> None:
    with pytest.raises(IntegrityError, match="plain names"):
        FileRecord(name, "", 0, 0, "")


@given(st.text(min_size=1, max_size=20))
def test_what_is_accepted_lies_in_the_folder(name: str) -> None:
    try:
        record = FileRecord(name, "", 0, 0, "")
    except IntegrityError:
        return
    folder = Path("/root/artifacts/sample/1")
    assert (folder / record.name).parent == folder


def test_an_artifact_whose_manifest_points_outside_is_not_read(make_documents: Any, tmp_path: Path) -> None:
    made = make_documents([[("a", "some text")]])
    (made.path.parent / "outside.txt").write_text("not of this artifact")
    manifest = dict(made.manifest)
    manifest["files"].append({**manifest["files"][0], "name": "../outside.txt"})
    write_manifest(made.path, manifest)
    for read in (lambda one: one.file("../outside.txt"), lambda one: one.verify(), lambda one: one.table("documents")):
        with pytest.raises(IntegrityError, match=r"'\.\./outside\.txt'"):
            read(Artifact.open(made.path))


def test_a_unit_that_points_outside_publishes_nothing(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "work")
    workspace.folder.mkdir()
    with workspace.unit("one") as unit:
        unit.path("a.txt").write_text("a")
        unit.add_file("a.txt")
    record = workspace.folder / "units" / "one.json"
    reported = read_record(record)
    reported["files"][0]["name"] = "../../b.txt"
    write_record(record, reported)
    target = tmp_path / "artifacts" / "one"
    target.mkdir(parents=True)
    with pytest.raises(IntegrityError, match="plain names"):
        workspace.publish_files(target, {"../../b.txt": reported["files"][0]["digest"]})
    assert list(tmp_path.glob("**/b.txt")) == []
