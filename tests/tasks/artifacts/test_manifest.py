"""A manifest is believed where its bytes are those that were written and its statements agree, and else nothing is."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tasks.artifacts.manifest
from model.errors import Bug, InputError, IntegrityError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.manifest import MANIFEST, content_digest, file_records, read_manifest, write_manifest
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import table_file_name, write_table
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig

WORDS = (("iron", "coke"), ("blast",), ("slag", "ash"))


class WordsConfig(StrictConfig):
    words: tuple[tuple[str, ...], ...] = WORDS
    taken: float = 1.0


def count(report: StageReport, came: list[str], stayed: list[str]) -> None:
    mine = report.source("words")
    mine.documents_in, mine.documents_out = len(came), len(stayed)
    mine.bytes_in, mine.bytes_out = (sum(map(len, words)) for words in (came, stayed))


def parent_of(root: Path) -> Artifact:
    """Five words in three parts."""

    def run(workspace: Workspace) -> StageReport:
        reports = []
        for number, words in enumerate(WORDS):
            with workspace.unit(f"{number:05d}") as unit:
                write_table(unit, "documents", pa.table({"text": words}), table_file_name("documents", f"{number:05d}"))
                count(unit.report, list(words), list(words))
            reports.append(unit.report)
        return StageReport.merged(reports)

    stage = Stage("sample", roots=("tasks.artifacts.tables.ledger",), libraries=())
    return build_artifact(RunContext(root, "run"), stage, WordsConfig(), {}, run)


def child_of(root: Path, parent: Artifact, read: Callable[[list[str]], list[str]] = list) -> Artifact:
    """All words of the parent that `read` gives, in one part."""

    def run(workspace: Workspace) -> StageReport:
        words = read([word for part in parent.files("documents") for word in texts(part)])
        with workspace.unit("00000") as unit:
            write_table(unit, "documents", pa.table({"text": words}), table_file_name("documents", "00000"))
            count(unit.report, words, words)
        return unit.report

    stage = Stage("clean", roots=("tasks.artifacts.tables.ledger",), libraries=())
    return build_artifact(RunContext(root, "run"), stage, WordsConfig(), {"documents": parent}, run)


def texts(part: Path) -> list[str]:
    with pa.memory_map(str(part)) as source:
        return pa.ipc.open_file(source).read_all().column("text").to_pylist()


def rewritten(artifact: Artifact, edit: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """The artifact's manifest changed and sealed again, as only a program does it."""
    manifest = json.loads(json.dumps(artifact.manifest))
    edit(manifest)
    write_manifest(artifact.path, manifest)
    return manifest


def test_a_flipped_bit_in_the_name_of_a_table_is_found_before_a_document_is_lost(tmp_path: Path) -> None:
    parent = parent_of(tmp_path)
    path = parent.path / MANIFEST
    whole = path.read_bytes()
    at = whole.index(b'"documents"', whole.index(b"part-00002")) + 1
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert b'"eocuments"' in path.read_bytes()
    with pytest.raises(IntegrityError, match=r"its manifest\.json is damaged .*verify --set-aside"):
        child_of(tmp_path, Artifact.open(parent.path))
    assert not (tmp_path / "artifacts" / "clean").exists()
    path.write_bytes(whole)
    assert sum(map(len, WORDS)) == child_of(tmp_path, Artifact.open(parent.path)).rows("documents")


@pytest.mark.parametrize(
    ("edit", "reported"),
    [
        (lambda m: m["files"].pop(1), "content digest is not that of the files"),
        (lambda m: m["files"][1].update(digest="0" * 32), "content digest is not that of the files"),
        (lambda m: m["files"][1].update(table="eocuments"), "it states the rows"),
        (lambda m: m["files"][1].update(rows=2), "it states the rows"),
        (lambda m: m["files"][1].update(bytes=2), "bytes, and the files it lists have"),
        (lambda m: m["identity_parts"].update(stage="x"), "identity is not the digest of the parts"),
        (lambda m: m.pop("content"), "KeyError"),
        (lambda m: m.pop("files"), "KeyError"),
        (lambda m: m.update(files=3), "TypeError"),
    ],
)
def test_a_manifest_that_was_written_wrong_is_found_before_use(
    tmp_path: Path, edit: Callable[[dict[str, Any]], Any], reported: str
) -> None:
    parent = parent_of(tmp_path)
    rewritten(parent, edit)
    with pytest.raises(IntegrityError, match=reported):
        Artifact.open(parent.path)


def test_a_table_with_another_number_of_rows_is_found_before_use(tmp_path: Path) -> None:
    parent = parent_of(tmp_path)

    def one_row_more(manifest: dict[str, Any]) -> None:
        manifest["files"][1]["rows"] += 1
        manifest["rows"]["documents"] += 1

    rewritten(parent, one_row_more)
    with pytest.raises(IntegrityError, match=r"part-00001\.arrow of .* has 1 rows, and its manifest\.json says 2"):
        Artifact.open(parent.path).table("documents")


def test_a_parent_that_says_less_than_when_a_child_was_made_from_it_is_found(tmp_path: Path) -> None:
    parent = parent_of(tmp_path)
    child = child_of(tmp_path, parent)
    assert child_of(tmp_path, parent).reused

    def another_table(manifest: dict[str, Any]) -> None:
        manifest["files"][2]["table"] = "eocuments"
        manifest["rows"] = {"documents": 3, "eocuments": 2}

    whole = (parent.path / MANIFEST).read_bytes()
    rewritten(parent, another_table)
    with pytest.raises(IntegrityError, match=f"clean/{child.identity} was made when the manifest of sample/"):
        child_of(tmp_path, Artifact.open(parent.path))
    (parent.path / MANIFEST).write_bytes(whole)
    assert child_of(tmp_path, Artifact.open(parent.path)).reused


def test_a_parent_that_was_built_again_says_the_same(tmp_path: Path) -> None:
    parent = parent_of(tmp_path)
    child_of(tmp_path, parent)
    parent.path.rename(tmp_path / "elsewhere")
    again = parent_of(tmp_path)
    assert again.manifest["timings"] != parent.manifest["timings"]
    assert child_of(tmp_path, again).reused


def test_documents_that_a_parent_let_through_and_that_did_not_come_in_are_an_error(tmp_path: Path) -> None:
    parent = parent_of(tmp_path)
    with pytest.raises(IntegrityError, match=r"`sample` passed on 5 documents of source `words`, and 4 were read"):
        child_of(tmp_path, parent, lambda words: words[1:])
    with pytest.raises(IntegrityError, match=r"`sample` passed on 20 bytes of source `words`, and 21 were read"):
        child_of(tmp_path, parent, lambda words: [*words[1:], words[0] + "s"])
    assert not (tmp_path / "artifacts" / "clean").exists()
    assert child_of(tmp_path, parent).rows("documents") == 5


def test_a_table_of_other_rows_than_were_counted_is_not_published(tmp_path: Path) -> None:
    def run(workspace: Workspace) -> StageReport:
        with workspace.unit("00000") as unit:
            write_table(unit, "documents", pa.table({"text": ["iron"]}), table_file_name("documents", "00000"))
            count(unit.report, ["iron", "coke"], ["iron", "coke"])
        return unit.report

    stage = Stage("sample", roots=("tasks.artifacts.tables.ledger",), libraries=())
    with pytest.raises(Bug, match="by its counts 2 rows of documents are passed on, and its table has 1"):
        build_artifact(RunContext(tmp_path, "run"), stage, WordsConfig(), {}, run)
    assert not (tmp_path / "artifacts").exists()


def test_a_manifest_without_checksum_of_an_earlier_format_is_recognised_by_its_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = parent_of(tmp_path)
    plain = json.dumps(parent.manifest)
    (parent.path / MANIFEST).write_text(plain)
    with pytest.raises(IntegrityError, match="does not end in the digest"):
        Artifact.open(parent.path)
    later = tasks.artifacts.manifest.FORMAT + 1
    monkeypatch.setattr(tasks.artifacts.manifest, "FORMAT", later)
    monkeypatch.setattr("tasks.artifacts.published.FORMAT", later)
    with pytest.raises(InputError, match=f"is an artifact of format {later - 1}"):
        Artifact.open(parent.path)


def test_the_digest_of_content_is_that_of_names_and_bytes(tmp_path: Path) -> None:
    manifest = read_manifest(parent_of(tmp_path).path)
    assert manifest["content"] == content_digest(reversed(file_records(manifest)))
