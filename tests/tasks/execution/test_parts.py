"""Part i becomes part i: with what belongs to it, once, and only from bytes that are what the manifest says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from model.errors import IntegrityError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.map_parts import PartResult, map_parts
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig
from tasks.execution.executor import Threads

STAGE = Stage("numbered", roots=("tasks.artifacts.tables.ledger",), libraries=())
PARTS = 6


@pytest.fixture
def documents(make_documents: Any) -> Artifact:
    return make_documents([[("web", f"text {part}")] * (part + 1) for part in range(PARTS)])


def build(context: RunContext, documents: Artifact, function: Callable[..., PartResult], workers: int = 2) -> Artifact:
    def run(workspace: Workspace) -> StageReport:
        return map_parts(workspace, documents, function, Threads(workers), about=lambda index: (index * 10,))

    return build_artifact(context, STAGE, StrictConfig(), {"documents": documents}, run)


def numbered(documents: pa.Table, index: int, about: int) -> PartResult:
    report = StageReport()
    counts = report.source("web")
    counts.documents_in = counts.documents_out = documents.num_rows
    counts.bytes_in = counts.bytes_out = sum(map(len, documents.column("text").to_pylist()))
    return PartResult({"numbers": pa.table({"index": [index], "about": [about], "rows": [documents.num_rows]})}, report)


@pytest.mark.parametrize("workers", [1, 3])
def test_each_part_comes_with_what_belongs_to_it(context: RunContext, documents: Artifact, workers: int) -> None:
    artifact = build(context, documents, numbered, workers)
    rows = artifact.table("numbers").to_pylist()
    assert rows == [{"index": part, "about": 10 * part, "rows": part + 1} for part in range(PARTS)]
    assert artifact.report.source("web").documents_out == sum(range(1, PARTS + 1))


def test_a_part_whose_bytes_changed_is_named_and_nothing_is_made_of_it(
    context: RunContext, documents: Artifact, tmp_path: Path
) -> None:
    path = documents.path / "part-00004.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    worked: list[int] = []

    def noted(table: pa.Table, index: int, about: int) -> PartResult:
        worked.append(index)
        return numbered(table, index, about)

    with pytest.raises(IntegrityError, match=r"part-00004\.arrow of .* should have the digest"):
        build(context, documents, noted)
    assert 4 not in worked
    assert not (context.root / "artifacts" / STAGE.name).exists()


def test_finished_parts_are_not_made_again(context: RunContext, documents: Artifact) -> None:
    worked: list[int] = []

    def fails_at_three(table: pa.Table, index: int, about: int) -> PartResult:
        if index == 3 and 3 not in worked:
            worked.append(index)
            raise OSError("the disk went away")
        worked.append(index)
        return numbered(table, index, about)

    with pytest.raises(Exception, match="the disk went away"):
        build(context, documents, fails_at_three, workers=1)
    build(context, documents, fails_at_three, workers=1)
    assert worked == [0, 1, 2, 3, 3, 4, 5]
