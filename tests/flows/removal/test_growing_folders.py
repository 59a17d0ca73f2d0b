"""Documents leave a run whose folders have grown since, or whose model went on from that of another run."""

import shutil
from pathlib import Path

import pytest

from flows.commands.forgetting import print_plan
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.removal.affected import Leaving, Request, find_leaving, recipe_without, unnamed_artifacts, with_files
from flows.removal.replay import ReplayPlan, changed_sources
from flows.runs.model_registry import Promotion
from flows.runs.record import write_recipe
from model.checksummed_json import write_sealed
from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.artifacts.published import artifacts_under
from tasks.clean.stage import build_clean
from tasks.sample.stage import build_sample

FIRST, SECOND = "20260101T000000Z-aaaaaa", "20260102T000000Z-bbbbbb"


@pytest.fixture
def recipe(foundry: Path, root: Path, tmp_path: Path) -> Recipe:
    """The small recipe, over a copy of its folder."""
    shutil.copytree(foundry, tmp_path / "foundry")
    loaded = load_recipe(tmp_path / "foundry" / "foundry.toml", root)
    return Recipe.model_validate(loaded.model_dump(mode="json"))


def write_run(root: Path, run_id: str, stage: str, path: Path, recipe: Recipe) -> None:
    record = {"run_id": run_id, "recipe_name": "foundry", "state": "completed", "root": str(root), "started": 0.0}
    stages = [{"stage": stage, "identity": path.name, "path": str(path)}]
    write_recipe(root / "runs" / run_id, recipe)
    write_sealed(root / "runs" / run_id / "run.json", {**record, "stages": stages, "notes": []})


def test_a_document_that_only_an_earlier_run_sampled_is_looked_for_there(recipe: Recipe, root: Path) -> None:
    (sampled,) = artifacts_under(root, "sample")
    tonight = build_sample(
        RunContext(root, "run"), recipe.sample.model_copy(update={"exclude_documents": (id_of(sampled, "note-07"),)})
    )
    write_run(root, FIRST, "sample", sampled, recipe)
    write_run(root, SECOND, "sample", tonight.path, recipe)

    def refused(recipe: Recipe, name: str) -> str:
        with pytest.raises(InputError) as error:
            find_leaving(root, SECOND, {"sample": tonight}, recipe, Request((name,)))
        return str(error.value)

    assert f"run {SECOND} sampled no document of this id or path; {FIRST} did" in refused(recipe, "note-07")
    later = recipe.model_copy(update={"evaluate": recipe.evaluate.model_copy(update={"earlier": (FIRST,)})})
    said = refused(later, "note-07")
    assert f"its model went on from that of {FIRST}, which did, and has learnt it: with `--run {FIRST}`" in said
    assert "nor did another run" in refused(recipe, "note-99")


def test_artifacts_of_no_run_that_hold_the_document_are_found(recipe: Recipe, root: Path) -> None:
    """Such as those of a plan to remove another document."""
    (sampled,), (of_the_run,), (dedup,) = (artifacts_under(root, stage) for stage in ("sample", "clean", "dedup"))
    write_run(root, FIRST, "sample", sampled, recipe)
    leaves, other = id_of(sampled, "note-07"), id_of(sampled, "note-08")

    def planned_without(doc_id: str) -> tuple[str, str]:
        context, settings = RunContext(root, "run"), {"exclude_documents": (doc_id,)}
        sample = build_sample(context, recipe.sample.model_copy(update=settings))
        return sample.identity, build_clean(context, sample, recipe.clean).identity

    planned_without(leaves)
    sample, clean = planned_without(other)
    found = [folder.name for folder in unnamed_artifacts(root, sampled.name, [leaves])]
    assert (found[0], found[-1]) == (dedup.name, sample), "what was made from another comes first"
    assert sorted(found) == sorted([sample, clean, of_the_run.name, dedup.name])


def id_of(sampled: Path, name: str) -> str:
    rows = Artifact.open(sampled).table("documents").select(["doc_id", "origin"]).to_pylist()
    return next(row["doc_id"].hex() for row in rows if name in row["origin"]["path"])


def test_the_files_of_a_nightly_run_are_read_again_and_none_that_came_since(recipe: Recipe, root: Path) -> None:
    (folder,) = (Path(path) for source in recipe.sample.sources if source.name == "notes" for path in source.paths)
    before = build_sample(RunContext(root, "run"), recipe.sample)
    read = [path.name for path in folder.iterdir()]
    (folder / "new.txt").write_text("What came a night later.\n")
    grown = build_sample(RunContext(root, "run"), recipe.sample)
    assert changed_sources(before, grown) == ["notes"]
    assert with_files(recipe, {}) == recipe
    again = build_sample(RunContext(root, "run"), with_files(recipe, {"notes": read}).sample)
    assert (again.identity, changed_sources(before, again)) == (before.identity, [])


def test_a_run_whose_base_model_is_gone_is_refused_and_the_message_says_what_to_do(
    recipe: Recipe, tmp_path: Path
) -> None:
    """As that of the night after one from which documents were forgotten."""
    gone = tmp_path / "artifacts" / "train" / "m1"
    tonight = recipe.model_copy(update={"train": recipe.train.model_copy(update={"base_model": gone})})
    with pytest.raises(InputError, match=rf"went on from the model in {gone}, .*`bessemer nightly RECIPE --again n2`"):
        recipe_without(tonight, "n2", {}, Leaving(("ab" * 16,), ()), Request())


def test_a_plan_in_which_no_row_changes_asks_for_no_training(
    recipe: Recipe, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    print_plan(root, Leaving(("ab" * 16,), ()), Request(), ReplayPlan(9, 9, 0, 90, 0, None, 0.0), recipe, [])
    said = capsys.readouterr().out
    assert "no row that training read changes, so that no training is needed" in said
    assert "training again" not in said
    assert "lasting_checkpoints" not in said


def test_a_plan_names_changed_sources_and_the_runs_of_what_was_made(
    recipe: Recipe, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(root, SECOND, "train", root / "artifacts" / "train" / "m2", recipe)
    promotion = Promotion(1, SECOND, who="ann", when="today", why="", replaced=None)
    monkeypatch.setattr("flows.commands.forgetting.current_promotion", lambda root: promotion)
    monkeypatch.setenv("COLUMNS", "1000")
    leaving = Leaving(("ab" * 16,), (), made=("train/m2",), unfinished=("work/w1",))
    print_plan(root, leaving, Request(), ReplayPlan(0, 9, 90, 90, 3, 0, 1.0), recipe, ["notes"])
    said = " ".join(capsys.readouterr().out.split())
    assert "warning: files of notes are not those that the run read" in said
    assert f"not changed: train/m2, of run {SECOND} (the current model's)" in said
    assert "work/w1; `bessemer store gc --unfinished-days 0` removes such builds" in said
