"""A format that is left behind: artifacts get copies in the next one, and what stands keeps every byte."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tasks.artifacts.manifest
import tasks.artifacts.published
from model.errors import InputError, IntegrityError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.identity import identity_key
from tasks.artifacts.manifest import MANIFEST, listing_digest, write_manifest
from tasks.artifacts.published import upgraded_file
from tasks.artifacts.report import StageReport
from tasks.artifacts.schema import FORMAT, OLDEST
from tasks.artifacts.tables import read_table, write_table
from tasks.artifacts.upgrades import STEPS, Upgraded, outdated, upgrade
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig

NEXT = FORMAT + 1


def words_become_text(folder: Path, manifest: dict[str, Any]) -> None:
    """The example of a step: the column `words` of the table `documents` is called `text`."""
    for record in manifest["files"]:
        if record["table"] == "documents":
            rows = read_table(folder / record["name"]).rename_columns(["text"])
            with pa.OSFile(str(folder / "new"), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
                writer.write_table(rows)
            os.replace(folder / "new", folder / record["name"])


EXAMPLE = {FORMAT: words_become_text}


def make(root: Path, name: str, parents: dict[str, Artifact]) -> Artifact:
    def run(workspace: Workspace) -> StageReport:
        with workspace.unit("all") as unit:
            write_table(unit, "documents" if name == "sample" else "tokens", pa.table({"words": ["a", "b"]}))
        return StageReport()

    stage = Stage(name, roots=("tasks.artifacts.ledger",), libraries=("pyarrow",))
    return build_artifact(RunContext(root, "run"), stage, StrictConfig(), parents, run)


@pytest.fixture
def family(tmp_path: Path) -> tuple[Artifact, Artifact]:
    """An artifact, and one that was made from it."""
    sample = make(tmp_path, "sample", {})
    return sample, make(tmp_path, "chunk", {"sample": sample})


def read_as(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let this version be one that reads another format."""
    for module in (tasks.artifacts.published, tasks.artifacts.manifest):
        monkeypatch.setattr(module, "FORMAT", number)


def everything(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_there_is_a_step_from_every_format_that_was_left() -> None:
    assert sorted(STEPS) == list(range(OLDEST, FORMAT))


def test_the_copy_is_of_the_next_format_and_the_old_one_keeps_its_bytes(
    family: tuple[Artifact, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [everything(one.path) for one in family]
    done = list(upgrade(tmp_path, EXAMPLE, NEXT))
    assert [(one.stage, one.identity, one.format) for one in done] == [
        (one.stage, one.identity, FORMAT) for one in family
    ]
    assert [everything(one.path) for one in family] == before
    read_as(monkeypatch, NEXT)
    sample, chunk = (Artifact.open(one.path) for one in family)
    assert [one.identity for one in (sample, chunk)] == [one.successor for one in done]
    assert sample.table("documents").column_names == ["text"]
    assert chunk.table("tokens").column_names == ["words"]
    assert (sample.verify(), chunk.verify()) == ([], [])
    assert sample.content != family[0].content
    assert chunk.content == family[1].content
    assert chunk.manifest["parents"]["sample"] == {
        "stage": "sample",
        "identity": sample.identity,
        "content": sample.content,
        "listing": listing_digest(sample.manifest),
    }
    for one in (sample, chunk):
        assert one.identity == identity_key(one.manifest["identity_parts"])
        assert one.manifest["identity_parts"]["format"] == NEXT
    assert chunk.manifest["identity_parts"]["parents"] == {"sample": sample.content}


def test_what_is_upgraded_is_left_alone_and_what_was_stopped_goes_on(
    family: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    first = next(upgrade(tmp_path, EXAMPLE, NEXT))
    assert [manifest["identity"] for manifest in outdated(tmp_path, NEXT)] == [family[1].identity]
    (second,) = upgrade(tmp_path, EXAMPLE, NEXT)
    assert list(upgrade(tmp_path, EXAMPLE, NEXT)) == []
    copy = json.loads((family[1].path.with_name(second.successor) / MANIFEST).read_text())
    assert copy["parents"]["sample"]["identity"] == first.successor
    assert list((tmp_path / "work").iterdir()) == []


def test_an_old_artifact_says_what_to_do_until_it_is_upgraded(
    family: tuple[Artifact, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_as(monkeypatch, NEXT)
    with pytest.raises(InputError, match="Run `bessemer upgrade`"):
        Artifact.open(family[0].path)
    read_as(monkeypatch, 0)
    with pytest.raises(InputError, match="A later version made it"):
        Artifact.open(family[0].path)


def test_damage_is_not_upgraded(family: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    name = family[0].records[0].name
    whole = (family[0].path / name).read_bytes()
    (family[0].path / name).write_bytes(whole[:-1] + b"x")
    with pytest.raises(IntegrityError, match=f"{name} is damaged"):
        list(upgrade(tmp_path, EXAMPLE, NEXT))
    assert not upgraded_file(family[0].path).exists()


def test_a_missing_step_and_a_later_format_are_errors(family: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    rewritten(family[0].path, format=OLDEST - 1)
    with pytest.raises(
        InputError, match=f"Format {OLDEST - 1} cannot be converted to this one. Give this version a root"
    ):
        list(upgrade(tmp_path))
    rewritten(family[0].path, format=FORMAT)
    with pytest.raises(InputError, match="a later version made it"):
        outdated(tmp_path, FORMAT - 1)
    assert list(upgrade(tmp_path)) == [], "of this format all are"


def rewritten(artifact: Path, **values: Any) -> None:
    """Put other values into a manifest."""
    manifest = json.loads((artifact / MANIFEST).read_text()) | values
    del manifest["digest"]
    write_manifest(artifact, manifest)


def test_a_build_beside_an_artifact_of_another_format_says_which_version_made_it(
    family: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    rewritten(family[0].path, format=OLDEST - 1, git={"commit": "0123456789abcdef", "dirty": False})
    with pytest.raises(
        InputError, match=r"format 1, made by commit 0123456789ab, and .* reads format 2\. Format 1 cannot be converted"
    ):
        make(tmp_path, "sample", {"other": family[1]})


def test_steps_follow_each_other(family: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    seen: list[int] = []
    steps = {
        FORMAT: lambda folder, manifest: seen.append(1),
        NEXT: lambda folder, manifest: seen.append(2),
    }
    done = list(upgrade(tmp_path, steps, NEXT + 1))
    assert seen == [1, 2, 1, 2]
    assert isinstance(done[0], Upgraded)
