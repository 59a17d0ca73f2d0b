"""The kind of a document's text is shown with its history: as recorded, and recognised again where it was dropped."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from flows.reports.terminal import print_document_history
from flows.runs.document_history import histories_of
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.clean.config import CleanConfig
from tasks.clean.stage import build_clean
from tasks.sample.config import SampleConfig, Source
from tasks.sample.stage import build_sample

PROSE = (
    "The furnace was lit before dawn, and white iron ran into the sand of every mould. Later the master counted what"
    " the night had given. Two castings were cracked; the others rang clear under his hammer. He wrote their weights"
    " into a narrow book, signed the page and went home along the canal, where boats with coal were waiting for the"
    " lock. "
)
ROWS = (f"| {1900 + n} | {n} castings of the {n + 3}th furnace | {n % 3} of them cracked |" for n in range(20))
TABLE = "\n".join(["| year | castings | cracked |", "|---|---|---|", *ROWS])


@pytest.fixture
def artifacts(tmp_path: Path) -> dict[str, Artifact]:
    texts = {"prose": PROSE, "table": TABLE, "short": "see you \U0001f600 @anna"}
    lines = "".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in texts.items())
    (tmp_path / "a.jsonl").write_text(lines)
    source = Source(name="s", paths=(str(tmp_path / "a.jsonl"),), weight=1, id_field="id")
    context = RunContext(tmp_path / "root", "run")
    sample = build_sample(context, SampleConfig(sources=(source,), budget_tokens=10**6))
    return {"sample": sample, "clean": build_clean(context, sample, CleanConfig())}


def test_kept_and_dropped_documents_have_their_kind(artifacts: dict[str, Artifact]) -> None:
    ids = artifacts["sample"].table("documents").column("doc_id").to_pylist()
    prose, table, short = histories_of(artifacts, ids)
    assert (prose.text_kind, table.text_kind, short.text_kind) == ("prose", "table", "chat")
    assert short.outcome.startswith("dropped in clean")
    assert prose.text_kind == "prose"
    console = Console(record=True, width=200)
    print_document_history(table, console)
    assert "kind of text: table" in console.export_text()


def test_before_clean_it_is_unknown(artifacts: dict[str, Artifact]) -> None:
    (doc_id, *_) = artifacts["sample"].table("documents").column("doc_id").to_pylist()
    assert histories_of({"sample": artifacts["sample"]}, [doc_id])[0].text_kind is None
