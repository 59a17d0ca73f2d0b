"""What goes and what stays when artifacts are collected."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.upkeep.gc import delete, plan
from model.checksummed_json import write_sealed
from model.errors import InputError, IntegrityError
from tasks.artifacts.identity import FORMAT
from tasks.artifacts.lease import build_lease
from tasks.artifacts.manifest import write_manifest

NOW = time.mktime((2026, 11, 20, 0, 0, 0, 0, 0, 0))
LONG_AGO = NOW - 30 * 86_400


class Root:
    """A root of artifacts that are manifests alone, and of runs that are records alone."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def artifact(self, stage: str, identity: str, *parents: str, size: int = 100, made: float = LONG_AGO) -> Path:
        folder = self.path / "artifacts" / stage / identity
        folder.mkdir(parents=True)
        named = {parent: dict(zip(("stage", "identity"), parent.split("/"), strict=True)) for parent in parents}
        manifest = {"stage": stage, "identity": identity, "content": identity, "bytes": size, "parents": named}
        write_manifest(folder, {**manifest, "format": FORMAT})
        os.utime(folder / "manifest.json", (made, made))
        return folder

    def run(
        self,
        day: int,
        *ended_with: str,
        state: str = "completed",
        base: Path | None = None,
        vocabulary: Path | None = None,
        name: str = "",
        settings: dict[str, dict[str, object]] | None = None,
    ) -> str:
        run_id = name or f"202611{day:02d}T000000Z-abcdef"
        folder = self.path / "runs" / run_id
        folder.mkdir(parents=True)
        places = [dict(zip(("stage", "identity"), place.split("/"), strict=True)) for place in ended_with]
        started = time.mktime((2026, 11, day, 0, 0, 0, 0, 0, 0))
        record = {"run_id": run_id, "state": state, "stages": places, "recipe_name": "r", "started": started}
        write_sealed(folder / "run.json", record)
        recipe = {"train": {"base_model": str(base) if base else None}, "evaluate": {"gate": None}}
        recipe["vocab"] = {"base": str(vocabulary) if vocabulary else None}
        write_sealed(folder / "recipe.json", {**recipe, **(settings or {})})
        return run_id

    def names(self) -> set[str]:
        return {"/".join(path.parts[-2:]) for path in (self.path / "artifacts").glob("*/*")}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    """Two nights: the second has new data, and the vocabulary of the first."""
    monkeypatch.setattr("tasks.artifacts.manifest.contradictions", lambda manifest: [])  # They list no files.
    found = Root(tmp_path)
    found.artifact("sample", "s1")
    found.artifact("sample", "s2")
    found.artifact("vocab", "v1", "sample/s1")
    found.artifact("chunk", "c1", "sample/s1", "vocab/v1")
    found.artifact("chunk", "c2", "sample/s2", "vocab/v1")
    found.artifact("train", "t1", "chunk/c1")
    found.artifact("train", "t2", "chunk/c2")
    found.run(1, "sample/s1", "vocab/v1", "chunk/c1", "train/t1")
    found.run(2, "sample/s2", "vocab/v1", "chunk/c2", "train/t2")
    return found


def test_a_kept_run_keeps_what_it_was_made_from(root: Root) -> None:
    """The vocabulary was made from the first night's sample, so that stays, too."""
    asked = plan(root.path, keep_last=1, now=NOW)
    assert [one.identity for one in asked.artifacts] == ["c1"]
    assert [one.identity for one in asked.kept_models] == ["t1"]
    assert delete(root.path, asked) == 100
    assert root.names() == {"sample/s1", "sample/s2", "vocab/v1", "chunk/c2", "train/t1", "train/t2"}
    record = json.loads((root.path / "runs" / "20261101T000000Z-abcdef" / "run.json").read_text())
    assert record["collected"]["stages"] == ["chunk"]


def test_models_go_on_a_word_of_their_own(root: Root) -> None:
    asked = plan(root.path, keep_last=1, models=True, now=NOW)
    assert {one.identity for one in asked.artifacts} == {"c1", "t1"}


def test_a_model_that_a_kept_run_began_with_stays(root: Root) -> None:
    root.run(3, "sample/s2", base=root.path / "artifacts" / "train" / "t1")
    asked = plan(root.path, keep_last=1, models=True, now=NOW)
    assert {one.identity for one in asked.artifacts} == {"c1", "c2", "t2", "v1", "s1"}


def test_a_vocabulary_that_a_kept_run_took_over_stays(root: Root) -> None:
    """As that of the model before in each later nightly run: without its file the recipe could not be run again."""
    root.artifact("vocab", "v3")
    root.run(3, "vocab/v3", vocabulary=root.path / "artifacts" / "vocab" / "v1" / "tokenizer.model")
    asked = plan(root.path, keep_last=1, models=True, now=NOW)
    assert {one.identity for one in asked.artifacts} == {"c1", "c2", "t1", "t2", "s1", "s2"}


def test_what_a_kept_run_s_recipe_keeps_or_compares_with_stays(root: Root) -> None:
    """As the seats of an order: a kept run that has not ended reads them yet, and one that has cannot be run again."""
    for identity in ("d1", "d2", "d3"):
        root.artifact("dedup" if identity == "d3" else "decontaminate", identity)
    settings: dict[str, dict[str, object]] = {
        "chunk": {"keep": "c1"},
        "decontaminate": {"keep": "gone", "keep_heldout": "d1"},
        "dedup": {"against": ["d3"]},
        "evaluate": {"gate": None, "earlier": ["d2"]},
    }
    root.run(3, settings=settings)
    asked = plan(root.path, keep_last=1, models=True, now=NOW)
    assert {one.identity for one in asked.artifacts} == {"c2", "t1", "t2", "s1", "s2", "v1"}


def test_a_run_from_which_documents_are_being_removed_stays(root: Root) -> None:
    """Else the removal could not end, and what it overwrites would only be unlinked."""
    path = root.path / "forgotten" / "pending.json"
    write_sealed(path, {"before": "20261101T000000Z-abcdef"})
    assert plan(root.path, keep_last=1, models=True, now=NOW).artifacts == ()
    path.write_text("{")
    with pytest.raises(IntegrityError, match=r"pending.json is damaged.*Decide again"):
        plan(root.path, keep_last=1, now=NOW)


def test_named_runs_stay(root: Root) -> None:
    assert plan(root.path, keep_last=1, keep=["20261101"], now=NOW).artifacts == ()
    with pytest.raises(InputError, match="no run has this id"):
        plan(root.path, keep_last=1, keep=["2025"], now=NOW)
    with pytest.raises(InputError, match="2 runs have such an id"):
        plan(root.path, keep_last=1, keep=["2026"], now=NOW)


def test_a_run_of_a_chosen_name_is_kept_by_it_and_by_its_age(root: Root) -> None:
    root.artifact("clean", "half")
    root.run(18, "clean/half", state="running", name="big")
    root.run(19, name="bigger")
    assert plan(root.path, keep_last=0, keep=["big"], now=NOW, unfinished_days=1).kept_runs == ("big",)
    assert plan(root.path, keep_last=0, now=NOW, unfinished_days=7).kept_runs == ("big",)


def test_a_run_of_a_chosen_name_is_not_the_latest_by_its_name(root: Root) -> None:
    root.artifact("clean", "old")
    root.run(1, "clean/old", name="zeta")
    assert plan(root.path, keep_last=1, now=NOW).kept_runs == ("20261102T000000Z-abcdef",)


def test_what_was_just_made_stays(root: Root) -> None:
    root.artifact("clean", "new", made=NOW - 60)
    root.artifact("clean", "old", made=NOW - 7200)
    assert [one.identity for one in plan(root.path, keep_last=2, now=NOW).artifacts] == ["old"]


def test_a_run_that_came_to_no_end_is_kept_for_a_while(root: Root) -> None:
    root.artifact("clean", "half")
    root.run(18, "clean/half", state="running")
    root.run(19)
    week, day = (
        {one.identity for one in plan(root.path, keep_last=1, now=NOW, unfinished_days=days).artifacts}
        for days in (7, 1)
    )
    assert "half" not in week
    assert "half" in day


def test_unfinished_builds_go_once_nobody_goes_on_with_them(root: Root) -> None:
    for name, age in (("old", 8), ("young", 6)):
        folder = root.path / "work" / f"{name}.000001-aa" / "scratch"
        folder.mkdir(parents=True)
        for place in (folder, folder.parent):
            os.utime(place, (NOW - age * 86_400,) * 2)
    asked = plan(root.path, keep_last=2, now=NOW)
    assert [work.name for work in asked.works] == ["old.000001-aa"]
    delete(root.path, asked)
    assert {path.name for path in (root.path / "work").iterdir()} == {"young.000001-aa"}


def test_nothing_goes_while_anything_is_built(root: Root) -> None:
    with _building(root), pytest.raises(InputError, match="is being built"):
        plan(root.path, keep_last=0, now=NOW)
    plan(root.path, keep_last=0, now=NOW)


def test_a_build_that_went_down_with_its_machine_keeps_nothing_for_ever(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.upkeep.gc.LEASE_SECONDS", 0.5)
    with _building(root):
        (lease,) = (root.path / "locks" / "c3").glob("*.lease")
        left = lease.read_bytes()
    beat, _, record = left.partition(b"\n")
    holder = {**json.loads(record), "boot": "an earlier start"}
    lease.write_bytes(beat + b"\n" + json.dumps(holder).encode())
    heard: list[str] = []
    asked = plan(root.path, keep_last=0, now=NOW, say=heard.append)
    assert asked.artifacts
    assert heard == ["unfinished builds: 1; checking for up to 0.5 s whether they are still running"]


@contextmanager
def _building(root: Root) -> Iterator[None]:
    with build_lease(root.path / "locks" / "c3", lambda holder: None):
        yield


def test_what_a_kill_left_half_removed_goes_next_time(root: Root) -> None:
    (root.path / "artifacts" / "chunk" / "c1").rename(root.path / "artifacts" / "chunk" / ".removed-12345678-c1")
    delete(root.path, plan(root.path, keep_last=2, now=NOW))
    assert not list((root.path / "artifacts" / "chunk").glob(".removed-*"))


def test_ten_thousand_parts_take_seconds(root: Root) -> None:
    folder = root.artifact("clean", "wide")
    for part in range(10_000):
        (folder / f"part-{part:05d}.arrow").touch()
    began = time.monotonic()
    delete(root.path, plan(root.path, keep_last=2, now=NOW))
    assert time.monotonic() - began < 10
    assert not folder.exists()


def test_the_command_says_before_it_removes(root: Root) -> None:
    words = ["store", "gc", "--root", str(root.path), "--keep-last", "1"]
    reported = CliRunner().invoke(app, [*words, "--dry-run"])
    assert reported.exit_code == 0, reported.output
    assert "runs that keep what they need: 1, others: 1; artifacts that stay: 6" in reported.stdout
    assert "within the last hour" not in reported.stdout
    assert "chunk: 1 artifacts" in reported.stdout
    assert CliRunner().invoke(app, words, input="n\n").exit_code == 1
    assert "chunk/c1" in root.names()
    assert CliRunner().invoke(app, [*words, "--yes"]).exit_code == 0
    assert "chunk/c1" not in root.names()
    for more in ((), ("--yes",), ("--dry-run",)):
        assert json.loads(CliRunner().invoke(app, [*words, "--json", *more]).stdout)["artifacts"] == []


def test_what_a_run_began_to_use_while_the_question_was_open_stays(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(question: str, **options: bool) -> bool:
        root.run(3, "chunk/c1")
        return True

    root.artifact("clean", "unused")
    monkeypatch.setattr("typer.confirm", answer)
    words = ["store", "gc", "--root", str(root.path), "--keep-last", "2"]
    root.run(2, "chunk/c2", name="20261102T000001Z-abcdef")
    done = CliRunner().invoke(app, words)
    assert "chunk: 1 artifacts" in done.stdout
    assert "deleted 1 artifacts" in done.stdout
    assert "clean/unused" not in root.names()
    assert "chunk/c1" in root.names()


def test_the_current_model_and_what_undoing_leads_to_keep_all_that_they_need(root: Root) -> None:
    """However old their runs are: promoted on the first night, again on the second, and no run is kept else."""
    for run_id in ("20261101T000000Z-abcdef", "20261102T000000Z-abcdef"):
        folder = root.path / "promotions" / f"{run_id[7:8]:0>6}"
        folder.mkdir(parents=True)
        number = int(run_id[7:8])
        made = {"number": number, "run_id": run_id, "who": "", "when": "", "why": "", "replaced": number - 1 or None}
        write_sealed(folder / "promotion.json", made)
    asked = plan(root.path, keep_last=0, models=True, now=NOW)
    assert asked.artifacts == ()
    shutil.rmtree(root.path / "promotions" / "000001")
    write_sealed(root.path / "promotions" / "000002" / "promotion.json", {**made, "replaced": None})
    asked = plan(root.path, keep_last=0, models=True, now=NOW)
    assert [one.identity for one in asked.artifacts] == ["c1", "t1"]
    assert plan(root.path, keep_last=0, keep=["current"], models=True, now=NOW).kept_runs == (made["run_id"],)
