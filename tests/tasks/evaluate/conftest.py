"""Fixtures of evaluation's tests: what decontaminate publishes, made of a few texts and items."""

from collections.abc import Callable, Sequence
from typing import Any

import blake3
import pyarrow as pa
import pytest

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import write_table
from tasks.artifacts.tables.schema import DOCUMENTS, ITEMS, LEAKS
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig
from tasks.evaluate.config import EvaluateConfig
from tests.model.pretended_cuda import pretended_cuda

MakeHeldout = Callable[..., Artifact]


class HeldoutConfig(StrictConfig):
    """The texts and items themselves, so that others are another artifact."""

    heldout: tuple[tuple[str, str], ...]
    items: tuple[dict[str, Any], ...]
    leaks: tuple[dict[str, Any], ...]
    documents: tuple[tuple[str, str], ...]


def table_of(documents: Sequence[tuple[str, str]], path: str) -> pa.Table:
    """DOCUMENTS of (source, text)."""
    rows = [
        {
            "doc_id": blake3.blake3(f"{path}/{number}/{text}".encode()).digest(length=16),
            "piece": 0,
            "source": source,
            "text": text,
            "text_digest": blake3.blake3(text.encode()).digest(length=16),
            "origin": {"path": f"{path}.txt", "record": number, "byte": 0},
        }
        for number, (source, text) in enumerate(documents)
    ]
    return pa.Table.from_pylist(rows, schema=DOCUMENTS)


def check_same_on_a_device(
    found: Artifact, evaluate: Callable[[EvaluateConfig], Artifact], config: EvaluateConfig
) -> None:
    """Evaluate again on a CUDA device that the processor plays, and compare all scores and texts."""
    with pretended_cuda():
        other = evaluate(config.model_copy(update={"device": "cuda"}))
    assert not other.reused
    assert found.table("scores").num_rows
    for table in ("scores", "item_scores", "samples"):
        rows, expected = other.table(table).to_pylist(), found.table(table).to_pylist()
        assert len(rows) == len(expected)
        for one, right in zip(rows, expected, strict=True):
            numbers = {name for name, value in right.items() if isinstance(value, float)}
            assert {**one, **dict.fromkeys(numbers)} == {**right, **dict.fromkeys(numbers)}
            assert [one[name] for name in numbers] == pytest.approx([right[name] for name in numbers], rel=1e-4)


@pytest.fixture
def heldout_artifact(context: RunContext) -> MakeHeldout:
    """Publishes (source, text) documents as HELDOUT, with ITEMS and LEAKS, and others to train on."""

    def make(
        heldout: Sequence[tuple[str, str]],
        items: Sequence[dict[str, Any]] = (),
        leaks: Sequence[dict[str, Any]] = (),
        documents: Sequence[tuple[str, str]] = (),
    ) -> Artifact:
        config = HeldoutConfig(
            heldout=tuple(heldout), items=tuple(items), leaks=tuple(leaks), documents=tuple(documents)
        )

        def run(workspace: Workspace) -> StageReport:
            with workspace.unit("00000") as unit:
                write_table(unit, "heldout", table_of(heldout, "held"), "heldout-00000.arrow")
                if documents:
                    write_table(unit, "documents", table_of(documents, "read"), "part-00000.arrow")
                write_table(unit, "items", pa.Table.from_pylist(list(items), schema=ITEMS))
                write_table(unit, "leaks", pa.Table.from_pylist(list(leaks), schema=LEAKS))
            report = StageReport()
            for source, text in documents:
                counts = report.source(source)
                counts.documents_in += 1
                counts.documents_out += 1
                counts.pieces_out += 1
                counts.bytes_in += len(text.encode())
                counts.bytes_out += len(text.encode())
            return report

        return build_artifact(context, Stage("decontaminate", ("tasks.artifacts.tables.ledger",), ()), config, {}, run)

    return make
