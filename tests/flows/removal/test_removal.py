"""What is decided, overwritten and certified when documents leave a run."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.commands.forgetting import carry_out
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.removal.affected import Leaving, Request, _made_from, _set_aside
from flows.removal.carry_out import decide, read_pending
from flows.removal.certificate import (
    STABLE_TRACE,
    Certificate,
    certified,
    commitment,
    page,
    write_certificate,
)
from flows.removal.replay import ReplayPlan
from flows.runs.shredding import shred
from flows.upkeep.root_records import records_under
from model.checksummed_json import write_sealed
from model.errors import InputError, IntegrityError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.manifest import write_manifest
from tasks.artifacts.published import artifacts_under
from tasks.artifacts.remote.metadata import FORGOTTEN, PENDING, read_record

CERTIFICATE = Certificate(
    before="20260101T000000Z-aaaaaa",
    after="20260102T000000Z-bbbbbb",
    when="2026-01-02 00:00:00 UTC",
    commitments=(commitment("00" * 16, "a secret letter"),),
    duplicates=0,
    promoted=0,
    heldout=0,
    leaks=0,
    step=16,
    steps=84,
    tokens=31_998,
    positions=2,
    kept={"vocabulary": "d1<2"},
    tombstones=1,
    model="0123",
    removed=("train/1234",),
    shared=(),
    other_runs=(),
    made=(),
)


def test_a_commitment_needs_both_salt_and_text() -> None:
    found = {commitment(salt, text) for salt in ("00" * 16, "01" * 16) for text in ("a", "b")}
    assert len(found) == 4
    assert commitment("00" * 16, "a") in found


def test_a_certificate_without_a_training_says_that_none_was_needed() -> None:
    shown = page(replace(CERTIFICATE, step=84, tokens=0, positions=0))
    assert "The model of the run 20260102T000000Z-bbbbbb is that of the run before" in shown
    assert "trained the model again" not in shown


def test_who_has_text_and_salt_finds_that_a_certificate_names_it(tmp_path: Path) -> None:
    salt, letter, other = "0a" * 16, tmp_path / "letter.txt", tmp_path / "other.txt"
    text = "Dear Ann,\r\nthe iron is cold.\n"
    letter.write_bytes(text.encode())
    other.write_bytes(b"Dear Ann,\r\nthe iron is h\xf6t.\n")
    written = write_certificate(tmp_path, replace(CERTIFICATE, commitments=(commitment(salt, text),)))
    path = written.with_suffix(".json")
    assert certified(path, salt, [letter, other]) == [letter]
    assert certified(path, "0b" * 16, [letter]) == []
    with pytest.raises(InputError, match="--salt salty"):
        certified(path, "salty", [letter])
    with pytest.raises(InputError, match="no such file"):
        certified(path, salt, [tmp_path / "gone.txt"])
    write_sealed(tmp_path / "run.json", {"run_id": "another record of a root"})
    with pytest.raises(InputError, match="no such certificate"):
        certified(tmp_path / "run.json", salt, [letter])
    path.write_text(path.read_text().replace("note", "nota").replace("0123", "0124"))
    with pytest.raises(IntegrityError):
        certified(path, salt, [letter])


def test_a_certificate_says_what_holds_a_trace_and_is_a_record_of_the_root(tmp_path: Path) -> None:
    written = write_certificate(tmp_path, CERTIFICATE)
    said = written.read_text()
    assert "from step 16 of 84: 31,998 tokens" in said
    assert "d1&lt;2" in said
    assert STABLE_TRACE in said
    assert STABLE_TRACE not in page(replace(CERTIFICATE, tombstones=0))
    assert written.with_suffix(".json") in records_under(tmp_path)
    assert json.loads(written.with_suffix(".json").read_text())["tokens"] == 31_998


def test_a_decided_removal_is_found_again_and_a_damaged_one_is_not_believed(foundry: Path, root: Path) -> None:
    assert read_pending(root) is None
    (sample,) = (Artifact.open(path) for path in artifacts_under(root, "sample"))
    first, second = sample.table("documents").select(["doc_id", "text"]).to_pylist()[:2]
    leaving = Leaving((first["doc_id"].hex(),), (second["doc_id"].hex(),), heldout=1)
    replay = ReplayPlan(16, 84, 31_998, 40_000, 2, 7, 3.5)
    recipe = Recipe.model_validate(load_recipe(foundry / "foundry.toml", root).model_dump(mode="json"))
    decided = decide(root, "run", recipe, sample, leaving, Request(), replay)
    assert read_pending(root) == decided
    assert decided.commitments == tuple(sorted(commitment(decided.salt, row["text"]) for row in (first, second)))
    with pytest.raises(InputError, match="holds no run"):
        carry_out(root, decided, as_json=True, verbose=False)
    text = (root / FORGOTTEN / PENDING).read_text()
    (root / FORGOTTEN / PENDING).write_text(text.replace('"run"', '"ran"'))
    with pytest.raises(IntegrityError):
        read_pending(root)


def an_artifact(place: Path, base: str | None = None, parent: str = "", files: tuple[str, ...] = ()) -> Any:
    """An artifact of another format, of which only the manifest is read, as it is opened."""
    place.mkdir(parents=True)
    parts = {"parents": {} if base is None else {"base_model": base}}
    listed = [{"name": name, "table": "", "part": 0, "bytes": 0, "digest": f"{place.name} {name}"} for name in files]
    manifest: Any = {"format": 1, "stage": place.parent.name, "identity": place.name, "content": place.name}
    parents = {"model": {"stage": "train", "identity": parent}} if parent else {}
    write_manifest(place, {**manifest, "identity_parts": parts, "files": listed, "parents": parents})
    return SimpleNamespace(identity=place.name, records=[SimpleNamespace(**one) for one in listed])


def test_all_that_was_made_from_the_model_is_named(tmp_path: Path) -> None:
    """Also trainings that went on from it, which name it by its description, and what was made from those."""
    made = tmp_path / "artifacts"
    artifacts = {
        "train": an_artifact(made / "train" / "m1", files=("model.json",)),
        "dedup": an_artifact(made / "dedup" / "d1"),
    }
    an_artifact(made / "train" / "a2", base="m3 model.json")
    an_artifact(made / "train" / "m3", base="m1 model.json", files=("model.json",))
    an_artifact(made / "train" / "m4", base="other model.json")
    an_artifact(made / "export" / "e1", parent="a2")
    an_artifact(made / "export" / "e2", parent="m4")
    an_artifact(made / "evaluate" / "s1", parent="m1")
    an_artifact(made / "dedup" / "d2", parent="d1")
    an_artifact(made / "dedup" / "d3", parent="m1")
    an_artifact(made / "export" / "e3.damaged-01", parent="m1")
    (made / "export" / "e3.damaged-01" / "manifest.json").write_text("{")
    assert sorted(_made_from(tmp_path, artifacts)) == ["dedup/d2", "export/e1", "train/a2", "train/m3"]
    own = made / "train" / "m1.damaged-02"
    own.mkdir()
    assert list(_set_aside(tmp_path, artifacts)) == ["artifacts/export/e3.damaged-01"]


def test_what_the_run_after_does_not_have_is_overwritten_and_removed(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "before"
    run.mkdir(parents=True)
    shared, own = tmp_path / "artifacts" / "vocab" / "11", tmp_path / "artifacts" / "sample" / "22"
    for folder in (shared, own, own.with_name(".removed-33")):
        folder.mkdir(parents=True)
        (folder / "documents.arrow").write_bytes(b"a letter")
    left = tmp_path / "artifacts" / "sample" / "33"
    pilot = tmp_path / "pilots" / "artifacts" / "sample" / "44"
    pilot.mkdir(parents=True)
    (pilot / "documents.arrow").write_bytes(b"a letter")
    watched = os.open(own / "documents.arrow", os.O_RDONLY)
    (run / "page.html").write_text("a letter")
    (run / "recipe.json").write_text("{}")
    os.link(shared / "documents.arrow", run / "train.log")
    stages = [
        {"stage": folder.parent.name, "identity": folder.name, "path": str(folder)} for folder in (shared, own, left)
    ]
    before = {"run_id": "before", "stages": stages, "notes": ["a letter"]}
    planned = tmp_path / "artifacts" / "clean" / "55"
    planned.mkdir(parents=True)
    found = shred(tmp_path, before, {"run_id": "after", "stages": stages[:1]}, [planned])
    assert not planned.exists()
    removed = ("clean/55", "sample/22", "sample/33", "runs/before/page.html", "runs/before/train.log", "pilots")
    assert found.removed == removed
    assert not (tmp_path / "pilots").exists()
    assert found.shared == ()
    assert os.read(watched, 100) == bytes(8)
    assert (shared / "documents.arrow").read_bytes() == b"a letter"
    assert [path.name for path in (tmp_path / "artifacts" / "sample").iterdir()] == []
    assert sorted(path.name for path in run.iterdir()) == ["recipe.json", "run.json"]
    record = read_record(run / "run.json")
    assert record["notes"] == []
    assert record["collected"]["stages"] == ["sample"]


def test_what_another_run_uses_stays_until_it_gives_it_up(tmp_path: Path) -> None:
    artifact = tmp_path / "artifacts" / "sample" / "22"
    artifact.mkdir(parents=True)
    (artifact / "documents.arrow").write_bytes(b"a letter")
    entry = {"stage": "sample", "identity": "22", "path": str(artifact), "outcome": "built"}
    runs = {name: {"run_id": name, "stages": [entry], "notes": []} for name in ("first", "second")}
    for name, record in runs.items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        write_sealed(tmp_path / "runs" / name / "run.json", record)
    after = {"run_id": "after", "stages": []}
    found = shred(tmp_path, runs["second"], after)
    assert (found.removed, found.shared) == ((), ("sample/22 (run first)",))
    assert (artifact / "documents.arrow").read_bytes() == b"a letter"
    found = shred(tmp_path, runs["first"], after)
    assert (found.removed, found.shared) == (("sample/22",), ())
    assert not artifact.exists()
