"""An artifact of another format is refused with one error: which version made it, and what to do."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.identity import FORMAT
from tasks.artifacts.manifest import MANIFEST, write_manifest
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import write_table
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig

COMMIT = {"commit": "0123456789abcdef", "dirty": False}


def build(root: Path) -> Artifact:
    def run(workspace: Workspace) -> StageReport:
        with workspace.unit("all") as unit:
            write_table(unit, "documents", pa.table({"words": ["a", "b"]}))
        return StageReport()

    stage = Stage("sample", roots=("tasks.artifacts.tables.ledger",), libraries=("pyarrow",))
    return build_artifact(RunContext(root, "run"), stage, StrictConfig(), {}, run)


def rewrite(artifact: Artifact, **values: Any) -> None:
    """Write other values into a manifest."""
    manifest = json.loads((artifact.path / MANIFEST).read_text()) | values
    del manifest["digest"]
    write_manifest(artifact.path, manifest)


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (FORMAT - 1, rf"Format {FORMAT - 1} cannot be converted to this one\. Give this version a root of its own"),
        (FORMAT + 1, "A later version made it: use that one, or another --root"),
    ],
)
def test_the_error_names_the_version_and_what_to_do(tmp_path: Path, number: int, hint: str) -> None:
    artifact = build(tmp_path)
    rewrite(artifact, format=number, git=COMMIT)
    with pytest.raises(
        InputError, match=rf"format {number}, made by commit 0123456789ab, and .* reads format {FORMAT}\. {hint}"
    ):
        Artifact.open(artifact.path)


def test_a_build_refuses_to_publish_next_to_it(tmp_path: Path) -> None:
    rewrite(build(tmp_path), format=FORMAT - 1, git=COMMIT)
    with pytest.raises(InputError, match=f"format {FORMAT - 1}, made by commit"):
        build(tmp_path)
