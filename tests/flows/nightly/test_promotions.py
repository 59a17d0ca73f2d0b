"""The current model by its stable name: promoted, taken back, and kept with what undoing leads to."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.runs.lineage import open_run
from flows.runs.model_registry import (
    Promotion,
    current_promotion,
    current_run,
    history,
    needed_runs,
    point_to_latest,
    promote,
    undo,
)
from flows.runs.record import warn_once
from model.checksummed_json import write_sealed
from model.errors import InputError, IntegrityError


def a_run(root: Path, name: str, *, stages: tuple[str, ...] = ("vocab", "train")) -> dict[str, Any]:
    entries: list[dict[str, str]] = []
    for stage in stages:
        folder = root / "artifacts" / stage / name
        folder.mkdir(parents=True)
        (folder / "file").write_text(f"{stage} of {name}")
        entries.append({"stage": stage, "identity": name, "path": str(folder)})
    record = {"run_id": name, "recipe_name": "r", "state": "completed", "stages": entries}
    (root / "runs" / name).mkdir(parents=True)
    write_sealed(root / "runs" / name / "run.json", record)
    return record


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        a_run(tmp_path, name)
    return tmp_path


def make_current(root: Path, *names: str) -> None:
    for name in names:
        promote(root, open_run(root, name), "it is better")


def test_the_current_model_has_a_stable_name_for_tools_and_for_people(root: Path) -> None:
    make_current(root, "a", "b")
    assert open_run(root, "current")["run_id"] == "b"
    assert (root / "current" / "model" / "file").read_text() == "train of b"
    assert (root / "current" / "tokenizer" / "file").read_text() == "vocab of b"
    assert json.loads((root / "current" / "run" / "run.json").read_text())["run_id"] == "b"
    moved = root.rename(root.with_name("moved"))
    assert (moved / "current" / "model" / "file").read_text() == "train of b"


def test_who_promoted_what_when_and_why_is_kept(root: Path) -> None:
    make_current(root, "a", "b")
    undo(root, "it writes nonsense")
    reported = history(root)
    assert [(one.number, one.run_id, one.why) for one in reported] == [
        (1, "a", "it is better"),
        (2, "b", "it is better"),
        (3, "a", "it writes nonsense"),
    ]
    assert all("@" in one.who and one.when.endswith("UTC") for one in reported)


def test_undoing_again_and_again_goes_back_through_all_that_was_promoted(root: Path) -> None:
    make_current(root, "a", "b", "c")
    assert [undo(root, "").run_id, undo(root, "").run_id] == ["b", "a"]
    with pytest.raises(InputError, match="was the first to be promoted"):
        undo(root, "")
    make_current(root, "c")
    assert undo(root, "").run_id == "a"


def test_undoing_a_promotion_that_followed_an_undo_goes_back_to_what_that_left(root: Path) -> None:
    make_current(root, "a", "b")
    undo(root, "")
    make_current(root, "c")
    assert undo(root, "").run_id == "a"


def test_what_cannot_be_promoted_is_refused(root: Path) -> None:
    with pytest.raises(InputError, match=r"nothing under .* was promoted yet"):
        current_run(root)
    with pytest.raises(InputError, match=r"nothing under .* was promoted yet"):
        undo(root, "")
    make_current(root, "a")
    with pytest.raises(InputError, match="it is the current model already"):
        make_current(root, "a")
    with pytest.raises(InputError, match="ended before `train`"):
        promote(root, a_run(root, "short", stages=("vocab",)), "")
    (root / "artifacts" / "train" / "b").rename(root / "gone")
    with pytest.raises(InputError, match="no longer exists"):
        make_current(root, "b")
    assert [one.run_id for one in history(root)] == ["a"]


def test_a_kill_before_the_link_is_made_up_for(root: Path) -> None:
    make_current(root, "a", "b")
    (root / "current").unlink()
    os.symlink("promotions/000001", root / "current")
    assert current_run(root) == "b"
    point_to_latest(root)
    assert (root / "current" / "model" / "file").read_text() == "train of b"
    assert list(root.glob(".current*")) == []


def test_of_two_at_once_each_gets_a_number(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another promotion comes between the look at the history and the one that rests on it."""
    make_current(root, "a")
    real, others = os.rename, ["b"]

    def rename(source: Path, target: Path) -> None:
        if others:
            make_current(root, others.pop())
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    make_current(root, "c")
    assert [(one.number, one.run_id, one.replaced) for one in history(root)] == [
        (1, "a", None),
        (2, "b", 1),
        (3, "c", 2),
    ]
    assert list((root / "promotions").glob(".draft*")) == []


def test_the_link_leads_to_the_latest_though_another_command_is_faster(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another promotion comes between the look at the latest and the link to it."""
    real, others = os.replace, ["b"]

    def replace(source: Path, target: Path) -> None:
        if Path(target).name == "current" and others:
            make_current(root, others.pop())
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    make_current(root, "a")
    assert current_run(root) == "b"
    assert (root / "current" / "model" / "file").read_text() == "train of b"


def test_a_check_is_asked_of_the_promotion_that_is_really_replaced(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person promotes another run between the look and the rename: the second look is checked, too."""
    make_current(root, "a")
    real, others, seen = os.rename, ["b"], list[str | None]()

    def rename(source: Path, target: Path) -> None:
        if others:
            make_current(root, others.pop())
        real(source, target)

    def check(before: Promotion | None) -> None:
        seen.append(before.run_id if before else None)
        if seen[-1] != "a":
            raise LookupError

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(LookupError):
        promote(root, open_run(root, "c"), "", check)
    assert seen == ["a", "b"]
    assert current_run(root) == "b"


def test_a_damaged_step_of_the_history_is_named(root: Path) -> None:
    make_current(root, "a")
    (root / "promotions" / "000001" / "promotion.json").write_text("{")
    with pytest.raises(IntegrityError, match=r"000001/promotion.json is damaged"):
        current_promotion(root)


def test_runs_that_undoing_leads_to_are_needed_and_others_are_not(root: Path) -> None:
    assert needed_runs(root) == frozenset()
    make_current(root, "a", "b")
    undo(root, "")
    make_current(root, "c")
    assert needed_runs(root) == {"a", "c"}


def test_undoing_passes_over_models_that_learnt_documents_which_had_to_leave(root: Path) -> None:
    """`b` is a later night that went on from `a`, from which documents were forgotten; `a2` is the model without."""
    for name in ("before", "a2"):
        a_run(root, name)
    make_current(root, "before", "a", "b", "a2")
    assert needed_runs(root) == {"before", "a", "b", "a2"}
    certificate = {"before": "a", "removed": ["train/a", "runs/a/index.html"], "shared": [], "made": ["train/b"]}
    write_sealed(root / "forgotten" / "a2.json", certificate)
    assert needed_runs(root) == {"before", "a2"}
    assert undo(root, "").run_id == "before"
    with pytest.raises(InputError, match="no model before it"):
        undo(root, "")
    make_current(root, "c")
    assert undo(root, "").run_id == "before"


def test_with_a_damaged_certificate_nothing_is_restored_and_all_that_it_may_exclude_is_kept(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    make_current(root, "a", "b")
    path = root / "forgotten" / "b.json"
    write_sealed(path, {"removed": [], "shared": ["train/a (run c)"], "made": []})
    path.with_suffix(".html").write_text("the page")
    assert needed_runs(root) == {"b"}
    path.write_text("{")
    for damage in ("damaged", "missing"):
        assert needed_runs(root) == {"a", "b"}
        assert f"{path} is {damage}" in caplog.text
        with pytest.raises(IntegrityError, match=rf"forgotten/b.json is {damage}.*Restore it.*model promote RUN"):
            undo(root, "")
        path.unlink(missing_ok=True)  # As `store verify --set-aside` leaves it.
    path.with_suffix(".html").unlink()
    assert undo(root, "").run_id == "a"


def test_a_model_that_another_run_uses_is_not_restored_after_its_documents_left(root: Path) -> None:
    make_current(root, "a", "b")
    write_sealed(root / "forgotten" / "b.json", {"removed": [], "shared": ["train/a (run c)"], "made": []})
    with pytest.raises(InputError, match="no model before it that had not learnt"):
        undo(root, "")


def test_the_commands_say_promote_and_undo(root: Path) -> None:
    def call(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, [*words, "--root", str(root)])
        return done.exit_code, done.output

    assert call("model", "current")[0] == 3
    assert call("model", "promote", "a", "--because", "the first") == (
        0,
        "the current model is that of run a (the first)\n",
    )
    assert call("model", "promote", "b")[0] == 0
    assert call("model", "promote", "--undo", "--because", "worse")[1] == "the current model is that of run a (worse)\n"
    code, reported = call("model", "current")
    assert (code, reported.partition(",")[0]) == (0, "a")
    assert "undoes 2" in call("model", "current", "--history")[1]
    assert call("model", "promote")[0] == 2
    assert call("model", "promote", "a", "--undo")[0] == 2
