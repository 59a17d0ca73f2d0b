"""Fixtures of the stages' tests: a published DOCUMENTS artifact made of a few texts."""

from collections.abc import Callable, Sequence
from pathlib import Path

import blake3
import pyarrow as pa
import pytest

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import table_file_name, write_table
from tasks.artifacts.tables.schema import DOCUMENTS
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig

MakeDocuments = Callable[[Sequence[Sequence[tuple[str, str]]]], Artifact]


class DocumentsConfig(StrictConfig):
    """The texts themselves, so that other texts are another artifact."""

    parts: tuple[tuple[tuple[str, str], ...], ...]


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    """A run under an empty root."""
    return RunContext(root=tmp_path / "root", run_id="20250101T000000Z-abcdef")


@pytest.fixture
def make_documents(context: RunContext) -> MakeDocuments:
    """Publishes an artifact whose parts hold the given (source, text) documents; ids come from place and text."""

    def make(parts: Sequence[Sequence[tuple[str, str]]]) -> Artifact:
        config = DocumentsConfig(parts=tuple(tuple(part) for part in parts))

        def run(workspace: Workspace) -> StageReport:
            report = StageReport()
            for index, part in enumerate(parts):
                rows = []
                for number, (source, text) in enumerate(part):
                    digest = blake3.blake3(text.encode()).digest(length=16)
                    doc_id = blake3.blake3(f"{source}/{index}/{number}".encode() + digest).digest(length=16)
                    counts = report.source(source)
                    counts.documents_in += 1
                    counts.documents_out += 1
                    counts.bytes_in += len(text.encode())
                    counts.bytes_out += len(text.encode())
                    rows.append(
                        {
                            "doc_id": doc_id,
                            "piece": 0,
                            "source": source,
                            "lang": "en",
                            "text": text,
                            "text_digest": digest,
                            "origin": {"path": f"part{index}.txt", "record": number, "byte": 0},
                            "meta": None,
                        }
                    )
                with workspace.unit(f"{index:05d}") as unit:
                    table = pa.Table.from_pylist(rows, schema=DOCUMENTS)
                    write_table(unit, "documents", table, table_file_name("documents", f"{index:05d}"))
            return report

        stage = Stage("documents", roots=("tasks.artifacts.tables.ledger",), libraries=())
        return build_artifact(context, stage, config, {}, run)

    return make
