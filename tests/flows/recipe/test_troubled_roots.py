"""Artifacts of another format, and parents that somebody deleted: named, and nothing else is lost."""

import json
import shutil
from pathlib import Path

import pytest

from flows.planning.explain import forecast_stages
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.runs.pipeline import BUILDERS
from model.errors import InputError, IntegrityError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.artifacts.identity import FORMAT
from tasks.artifacts.manifest import write_manifest


@pytest.fixture
def recipe(foundry: Path, root: Path) -> Recipe:
    return load_recipe(foundry / "foundry.toml", root)


def only(root: Path, stage: str) -> Artifact:
    return Artifact.open(next(root.glob(f"artifacts/{stage}/*")))


def test_an_artifact_of_another_format_is_refused_and_left_alone(recipe: Recipe, root: Path) -> None:
    (path,) = root.glob("artifacts/clean/*/manifest.json")
    manifest = {**json.loads(path.read_text()), "format": FORMAT + 1}
    manifest.pop("digest", None)
    write_manifest(path.parent, manifest)
    message = (
        rf"of format {FORMAT + 1}, made by .*, and this version of Bessemer reads format {FORMAT}\."
        " A later version made it: use"
    )
    with pytest.raises(InputError, match=message):
        BUILDERS["clean"](RunContext(root, "run"), only(root, "sample"), recipe.clean)
    with pytest.raises(InputError, match=message):
        forecast_stages(recipe, root)
    assert {key: value for key, value in json.loads(path.read_text()).items() if key != "digest"} == manifest


def test_a_deleted_parent_is_rebuilt_and_what_was_made_from_it_is_reused(recipe: Recipe, root: Path) -> None:
    before = only(root, "sample").content
    shutil.rmtree(root / "artifacts" / "sample")
    assert [forecast.verdict for forecast in forecast_stages(recipe, root)[:4]] == [
        "build",
        "depends",
        "depends",
        "build",
    ]
    context = RunContext(root, "run")
    sample = BUILDERS["sample"](context, recipe.sample)
    assert (sample.outcome, sample.content) == ("built", before)
    clean = BUILDERS["clean"](context, sample, recipe.clean)
    assert [clean.outcome, BUILDERS["dedup"](context, clean, recipe.dedup).outcome] == ["reused", "reused"]


def test_a_parent_deleted_behind_a_running_stage_is_named(recipe: Recipe, root: Path) -> None:
    sample = only(root, "sample")
    shutil.rmtree(root / "artifacts" / "clean")
    shutil.rmtree(sample.path)
    with pytest.raises((InputError, IntegrityError), match=str(sample.path)):
        BUILDERS["clean"](RunContext(root, "run"), sample, recipe.clean)
    assert not list(root.glob("artifacts/clean/*"))


def test_one_file_of_a_parent_deleted_is_named_and_nothing_is_made_of_the_rest(recipe: Recipe, root: Path) -> None:
    clean = only(root, "clean")
    (clean.path / "part-00001.arrow").unlink()
    shutil.rmtree(root / "artifacts" / "dedup")
    with pytest.raises(IntegrityError, match=r"part-00001\.arrow of .* and has no file"):
        BUILDERS["dedup"](RunContext(root, "run"), clean, recipe.dedup)
    assert not list(root.glob("artifacts/dedup/*"))


def test_the_path_of_a_deleted_artifact_says_so(root: Path) -> None:
    with pytest.raises(InputError, match="no longer exists: somebody removed it"):
        Artifact.open(root / "artifacts" / "clean" / "0123")
