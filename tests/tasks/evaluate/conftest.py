"""Fixtures of evaluation's tests: what decontaminate publishes, made of a few texts and items."""

from collections.abc import Callable, Sequence
from typing import Any

import blake3
import pyarrow as pa
import pytest

from tasks.artifact import Artifact
from tasks.build import RunContext, Stage, build_artifact
from tasks.config import StrictConfig
from tasks.report import StageReport
from tasks.schema import DOCUMENTS, ITEMS, LEAKS
from tasks.workspace import Workspace

MakeHeldout = Callable[..., Artifact]


class HeldoutConfig(StrictConfig):
    """The texts and items themselves, so that others are another artifact."""

    heldout: tuple[tuple[str, str], ...]
    items: tuple[dict[str, Any], ...]
    leaks: tuple[dict[str, Any], ...]


@pytest.fixture
def heldout_artifact(context: RunContext) -> MakeHeldout:
    """Publishes (source, text) documents as HELDOUT, with ITEMS and LEAKS."""

    def make(
        heldout: Sequence[tuple[str, str]],
        items: Sequence[dict[str, Any]] = (),
        leaks: Sequence[dict[str, Any]] = (),
    ) -> Artifact:
        config = HeldoutConfig(heldout=tuple(heldout), items=tuple(items), leaks=tuple(leaks))

        def run(workspace: Workspace) -> StageReport:
            documents = [
                {
                    "doc_id": blake3.blake3(f"{number}/{text}".encode()).digest(length=16),
                    "piece": 0,
                    "source": source,
                    "text": text,
                    "text_digest": blake3.blake3(text.encode()).digest(length=16),
                    "origin": {"path": "held.txt", "record": number, "byte": 0},
                }
                for number, (source, text) in enumerate(heldout)
            ]
            with workspace.unit("00000") as unit:
                unit.write_table("heldout", pa.Table.from_pylist(documents, schema=DOCUMENTS), "heldout-00000.arrow")
                unit.write_table("items", pa.Table.from_pylist(list(items), schema=ITEMS))
                unit.write_table("leaks", pa.Table.from_pylist(list(leaks), schema=LEAKS))
            return StageReport()

        return build_artifact(context, Stage("decontaminate", ("tasks.ledger",), ()), config, {}, run)

    return make
