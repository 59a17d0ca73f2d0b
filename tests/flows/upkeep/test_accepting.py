"""A person's word that a change is harmless: who, when and why, how it is taken back and how it is put to the test."""

import getpass
import json
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.planning.explain import forecast_stages
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.runs.pipeline import BUILDERS
from flows.upkeep.accept import accept, propose_aliases, undo_accept
from model.errors import GuardError, InputError, IntegrityError, RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext


@pytest.fixture
def recipe(foundry: Path, root: Path) -> Recipe:
    return load_recipe(foundry / "foundry.toml", root)


def pretend(monkeypatch: pytest.MonkeyPatch, library: str, version: str) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version if name == library else real(name))


def outcomes(recipe: Recipe, root: Path) -> list[tuple[str, str]]:
    return [(forecast.verdict, forecast.cause) for forecast in forecast_stages(recipe, root)[:3]]


def accept_one(recipe: Recipe, root: Path, stage: str, **options: bool) -> Path:
    (alias,) = propose_aliases(recipe, root, stage, "release notes: only types")
    return accept(root, alias, **options)


def test_another_library_version_is_accepted_with_name_time_and_reason(
    recipe: Recipe, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, "ftfy", "2099.1")
    assert outcomes(recipe, root)[1][0] == "build"
    manifest = next(root.glob("artifacts/clean/*/manifest.json"))
    before = manifest.read_bytes()
    alias = json.loads(accept_one(recipe, root, "clean").read_text())
    assert alias["accepted"] == manifest.parent.name
    assert alias["differences"][0].startswith("libs.ftfy: ")
    assert alias["who"].startswith(f"{getpass.getuser()}@")
    assert manifest.read_bytes() == before
    reused, accepted, behind = outcomes(recipe, root)
    assert reused == ("reused", "")
    assert accepted[0] == "accepted"
    assert accepted[1].startswith(
        f"accepted by {alias['who']} on {alias['when']}: release notes: only types (libs.ftfy"
    )
    assert behind == ("reused", "")


def test_an_accepted_artifact_is_what_a_run_goes_on_from(
    recipe: Recipe, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = Artifact.open(next(root.glob("artifacts/sample/*")))
    existing = Artifact.open(next(root.glob("artifacts/clean/*")))
    pretend(monkeypatch, "ftfy", "2099.1")
    accept_one(recipe, root, "clean")
    artifact = BUILDERS["clean"](RunContext(root, "run"), sample, recipe.clean)
    assert (artifact.outcome, artifact.identity, artifact.content) == ("accepted", existing.identity, existing.content)


def test_a_word_can_be_taken_back(recipe: Recipe, foundry: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "ftfy", "2099.1")
    path = accept_one(recipe, root, "clean")
    words = ["store", "accept", "clean", str(foundry / "foundry.toml"), "--undo", "--json", "--root", str(root)]
    assert json.loads(CliRunner().invoke(app, words).stdout) == {"undone": str(path)}
    assert outcomes(recipe, root)[1][0] == "build"
    with pytest.raises(InputError, match="nothing was undone"):
        undo_accept(recipe, root, "clean")


def test_another_setting_is_not_accepted_without_a_word_of_its_own(foundry: Path, root: Path) -> None:
    recipe = load_recipe(foundry / "foundry.toml", root, ["dedup.threshold=0.9"])
    with pytest.raises(GuardError, match=r"params\.threshold: 0\.8 -> 0\.9.*--whatever-changed"):
        accept_one(recipe, root, "dedup")
    accept_one(recipe, root, "dedup", whatever_changed=True)
    assert outcomes(recipe, root)[2][0] == "accepted"


def test_force_puts_the_word_to_the_test(foundry: Path, root: Path) -> None:
    """Nothing is cut with the threshold raised to 1, so that the accepted artifact is the wrong one."""
    recipe = load_recipe(foundry / "foundry.toml", root, ["dedup.threshold=1.0"])
    accept_one(recipe, root, "dedup", whatever_changed=True)
    clean = Artifact.open(next(root.glob("artifacts/clean/*")))
    with pytest.raises(IntegrityError, match="produced other bytes"):
        BUILDERS["dedup"](RunContext(root, "run", forced=frozenset({"dedup"})), clean, recipe.dedup)
    assert len(list(root.glob("artifacts/dedup/*"))) == 2


def test_force_reproduces_where_the_word_was_true(recipe: Recipe, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "ftfy", "2099.1")
    accept_one(recipe, root, "clean")
    sample = Artifact.open(next(root.glob("artifacts/sample/*")))
    context = RunContext(root, "run", forced=frozenset({"clean"}))
    assert BUILDERS["clean"](context, sample, recipe.clean).outcome == "reproduced"


def test_all_accepts_stage_after_stage(recipe: Recipe, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "pyarrow", "2099.1")
    assert [verdict for verdict, _ in outcomes(recipe, root)] == ["build"] * 3
    proposed = propose_aliases(recipe, root, "all", "same files, byte by byte")
    for stage in ("sample", "clean", "dedup"):
        alias = next(proposed)
        assert alias.stage == stage
        accept(root, alias)
    with pytest.raises(InputError, match="accept decontaminate: no artifact of this stage exists yet"):
        next(proposed)
    assert [verdict for verdict, _ in outcomes(recipe, root)] == ["accepted"] * 3


@pytest.mark.parametrize(
    ("stage", "error", "message"),
    [
        ("clean", InputError, "exists for this recipe already"),
        ("chunk", InputError, "`decontaminate`, which comes before it, would be built first"),
        ("polish", RecipeError, "there is no such stage"),
    ],
)
def test_what_cannot_be_accepted_says_why(
    recipe: Recipe, root: Path, stage: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        list(propose_aliases(recipe, root, stage, "why not"))


def test_an_accepted_artifact_that_is_gone_is_built_and_reported(
    recipe: Recipe, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pretend(monkeypatch, "ftfy", "2099.1")
    accept_one(recipe, root, "clean")
    (existing,) = root.glob("artifacts/clean/*")
    existing.rename(root / "elsewhere")
    with caplog.at_level("INFO", logger="tasks.artifacts.build"):
        assert outcomes(recipe, root)[1][0] == "build"
    assert "no longer exists" in caplog.text


def test_a_damaged_alias_is_named(recipe: Recipe, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "ftfy", "2099.1")
    accept_one(recipe, root, "clean").write_text("{")
    with pytest.raises(IntegrityError, match=r"is damaged .* Remove the file"):
        outcomes(recipe, root)
