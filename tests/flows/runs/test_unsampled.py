"""`why` knows files that left no document, and what a run kept that went no further."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.runs import run_documents
from flows.runs.lineage import open_run, run_artifacts
from flows.runs.run_documents import documents_by_file
from tests.command import invoke

pytestmark = pytest.mark.usefixtures("shared_server")


@pytest.fixture(scope="module")
def halved(foundry: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """A root with a run of the first stage that kept half of every source, and the notes that it kept."""
    root = tmp_path_factory.mktemp("halved")
    invoke("run", foundry / "foundry.toml", "--root", root, "--only", "sample", "--limit", "50%", "--json")
    sample = run_artifacts(open_run(root, None))["sample"]
    return root, {origin["path"] for origin in sample.table("documents").column("origin").to_pylist()}


def why(root: Path, wanted: object) -> dict[str, Any]:
    return json.loads(invoke("data", "history", wanted, "--root", root, "--run", "latest", "--json").stdout)


def test_a_file_that_was_not_selected_is_reported(halved: tuple[Path, set[str]]) -> None:
    root, kept = halved
    away = next(name for name in (f"note-{number:02d}.txt" for number in range(60)) if name not in kept)
    reported = why(root, away)
    assert reported["documents"] == reported["rejects"] == []
    (sentence,) = reported["others"]
    assert sentence.startswith(f"notes: {away}: read and not selected; of the records of `notes` sampling kept 50.0%")


def test_documents_of_a_file_are_those_of_that_very_file(halved: tuple[Path, set[str]]) -> None:
    """A path that is part of another file's path, or is in another source, has none of their documents."""
    root, kept = halved
    name = next(name for name in sorted(kept) if name.startswith("note-"))
    files = [("notes", name), ("notes", name.removeprefix("note-")), ("code", name)]
    found = documents_by_file(run_artifacts(open_run(root, None)), files)
    assert [len(found[file]) for file in files] == [1, 0, 0]


def test_what_is_kept_by_a_run_that_ended_is_not_in_progress(halved: tuple[Path, set[str]], foundry: Path) -> None:
    root, kept = halved
    name = next(name for name in sorted(kept) if name.startswith("note-"))
    (life,) = why(root, name)["documents"]
    assert life["outcome"] == "kept in sample, and the run went no further with it"
    assert why(root, foundry / "notes" / name)["documents"] == [life], "the file's real path is not within the source"


def test_documents_and_rejects_that_are_not_shown_are_counted(
    halved: tuple[Path, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, kept = halved
    reject = {"source": "notes", "path": "a.jsonl", "record": 1, "byte": 0, "reason": "broken JSON", "excerpt": "{"}
    monkeypatch.setattr(run_documents, "rejects_of", lambda *_: [reject] * 7)
    shown = invoke("data", "history", "note-", "--root", root).stdout
    notes = sum("note-" in name for name in kept)
    assert f"... and {notes - 5} more documents and 2 more rejected records;" in shown


def test_a_file_of_another_format_was_passed_over(halved: tuple[Path, set[str]], foundry: Path) -> None:
    root, _ = halved
    report = foundry / "notes" / "report.pdf"
    report.write_bytes(b"%PDF")
    try:
        (sentence,) = why(root, "report.pdf")["others"]
    finally:
        report.unlink()
    assert sentence.startswith(f"notes: {report}: not read, since its name shows no format that `format = ")
    assert "no source lists such a file" in invoke("data", "history", "other.pdf", "--root", root, code=3).stderr


@pytest.fixture
def late(foundry: Path) -> Iterator[Path]:
    """A note that was written when the run had ended."""
    note = foundry / "notes" / "written-late.txt"
    note.write_text("A sentence that no run has read, and that is long enough to be kept.")
    yield note
    note.unlink()


def test_a_file_that_came_after_the_run_was_not_read(halved: tuple[Path, set[str]], late: Path) -> None:
    root, _ = halved
    sentence = "not read: it was not there, or could not be opened, when this run read `notes`"
    assert why(root, late.name)["others"] == [f"notes: {late.name}: {sentence}"]
    other = late.with_name("written-later.txt")
    other.write_text("Another one.")
    try:
        assert why(root, "written-")["others"] == [f"notes: {one.name}: {sentence}" for one in (late, other)]
        (unknown,) = why(root, late.name)["others"]
    finally:
        other.unlink()
    assert "have changed since this run read them, so this one may not have been there" in unknown
