"""`explain` predicts what a run then does, and builds nothing."""

import json
from pathlib import Path

import pytest

from flows.planning.explain import Forecast, forecast_stages
from flows.recipe.load import load_recipe
from flows.recipe.stages import STAGES
from flows.runs.pipeline import BUILDERS
from model.errors import InputError
from tasks.artifacts.build import RunContext
from tests.command import invoke


def forecast(foundry: Path, root: Path, *settings: str) -> dict[str, Forecast]:
    found = forecast_stages(load_recipe(foundry / "foundry.toml", root, settings), root)
    assert [entry.stage for entry in found] == list(STAGES)
    return {entry.stage: entry for entry in found}


def verdicts(forecasts: dict[str, Forecast]) -> list[str]:
    return [forecasts[stage].verdict for stage in STAGES]


def test_before_the_first_run_all_will_be_built_and_nothing_is_written(foundry: Path, tmp_path: Path) -> None:
    found = forecast(foundry, tmp_path / "root")
    assert verdicts(found) == ["build"] * 8
    assert found["sample"].cause == "no artifact of this stage exists yet"
    assert found["train"].cause == "unknown until `sample` is built"
    assert not (tmp_path / "root").exists()
    (tmp_path / "root").mkdir()
    assert forecast(foundry, tmp_path / "root") == found
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["inputs.json"]


def test_what_exists_is_reused_and_what_follows_was_never_built(foundry: Path, root: Path) -> None:
    found = forecast(foundry, root)
    assert verdicts(found) == ["reused"] * 3 + ["build"] * 5
    assert found["decontaminate"].cause == "no artifact of this stage exists yet"


def test_a_changed_setting_is_named_and_stages_behind_it_depend_on_what_it_gives(foundry: Path, root: Path) -> None:
    found = forecast(foundry, root, "clean.workers=3", "clean.emoji=drop")
    assert verdicts(found)[:3] == ["reused", "build", "depends"]
    assert found["clean"].cause == 'params.emoji: "name" -> "drop"'
    assert found["clean"].differences == ('params.emoji: "name" -> "drop"',)
    assert found["dedup"].cause == "reused if the output of `clean` does not change, else built"


def test_a_stage_behind_a_rebuilt_one_may_have_a_cause_of_its_own(foundry: Path, root: Path) -> None:
    found = forecast(foundry, root, "clean.emoji=drop", "dedup.threshold=0.9")
    assert found["dedup"].verdict == "build"
    assert found["dedup"].cause == "params.threshold: 0.8 -> 0.9"
    assert found["dedup"].identity is None


@pytest.mark.usefixtures("forked_trainers")
def test_a_phase_rebuilds_chunk_or_train_alone_and_never_what_reads_documents(
    foundry: Path, tmp_path: Path, build
) -> None:
    small = ("budget_tokens=6K", "train.threads=1")
    build("train", load_recipe(foundry / "foundry.toml", tmp_path, small), tmp_path)
    annealed = forecast(foundry, tmp_path, *small, "train.phases=[{share = 0.2, weights = {notes = 1}, end_lr = 0.0}]")
    assert verdicts(annealed)[:7] == [*["reused"] * 5, "build", "build"]
    assert annealed["chunk"].cause.startswith("params.phases")
    slower = forecast(foundry, tmp_path, *small, "train.phases=[{share = 0.2, end_lr = 0.0}]")
    assert verdicts(slower)[:7] == [*["reused"] * 6, "build"]
    assert slower["train"].cause.startswith("params.phases")


def test_of_an_input_that_is_not_built_yet_no_content_is_reported(foundry: Path, root: Path) -> None:
    """Clean exists twice, dedup once: what replaces the clean to come is not what dedup was made from."""
    other = ("clean.preset=gopher", "clean.limits.gopher_words_max=300", "clean.html_extractor=resiliparse")
    recipe = load_recipe(foundry / "foundry.toml", root, other)
    context = RunContext(root, "run")
    BUILDERS["clean"](context, BUILDERS["sample"](context, recipe.sample), recipe.clean)
    settings = (*other, "clean.emoji=keep")
    found = forecast(foundry, root, *settings)
    assert verdicts(found)[:3] == ["reused", "build", "depends"]
    assert found["dedup"].cause == "decided when its input `clean` is built"
    assert found["dedup"].identity is None
    found = forecast(foundry, root, *settings, "dedup.threshold=0.9")
    assert found["dedup"].verdict == "build"
    assert found["dedup"].differences == (
        "params.threshold: 0.8 -> 0.9",
        "the input `documents` is decided when `clean` is built",
    )


def test_a_missing_input_is_reported_as_a_run_would_report_it(foundry: Path, root: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        forecast(foundry, root, "decontaminate.benchmarks.cloze.path=nowhere.jsonl")


@pytest.mark.usefixtures("shared_server")
def test_a_base_model_of_another_vocabulary_of_the_same_size_is_reported_when_the_vocabulary_is_known(
    foundry: Path, root: Path, tmp_path: Path, build
) -> None:
    recipe = load_recipe(foundry / "foundry.toml", root)
    known = json.loads(build("vocab", recipe, root)["vocab"].file("tokenizer.json").read_text())["digest"]
    network = recipe.train.model.model_copy(update={"vocab_size": recipe.vocab.vocab_size})
    (tmp_path / "model.safetensors").write_bytes(b"not opened")
    going_on = f"train.base_model={tmp_path}"
    for digest in (known, "another"):
        described = {"config": network.model_dump(), "tokenizer_digest": digest}
        (tmp_path / "model.json").write_text(json.dumps(described))
        if digest == known:
            assert verdicts(forecast(foundry, root, going_on)) == ["reused"] * 5 + ["build"] * 3
    words = ["run", foundry / "foundry.toml", "--root", root, "--set", going_on]
    assert "was trained with the tokenizer another, and this run's is" in invoke(*words, code=3).stderr
    assert not (root / "artifacts" / "chunk").exists()
    invoke(*words, "--until", "vocab")
    with pytest.raises(InputError, match="was trained with the tokenizer another, and this run's is"):
        forecast(foundry, root, going_on)


def test_a_recipe_of_other_sources_is_not_compared_with_what_exists(root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("The furnace was lit before dawn.")
    (tmp_path / "mine.toml").write_text(OTHER_SOURCES)
    found = forecast_stages(load_recipe(tmp_path / "mine.toml", root), root)
    assert [entry.verdict for entry in found] == ["build"] * 8
    assert found[0].cause == "no artifact of these sources exists yet"
    assert found[0].differences == ()


def test_a_source_more_is_reported_as_such(foundry: Path, root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("The furnace was lit before dawn.")
    one_more = f'[[sources]]\nname = "mine"\npaths = ["{tmp_path}/mine"]\nweight = 0.0001\n\n[sample]\n'
    text = (foundry / "foundry.toml").read_text().replace("{recipe}", str(foundry))
    (tmp_path / "more.toml").write_text(text.replace("[sample]\n", f"{one_more}normalise_weights = true\n"))
    assert forecast_stages(load_recipe(tmp_path / "more.toml", root), root)[0].cause == "the input `source/mine` is new"


def test_a_source_all_of_whose_files_changed_is_reported_as_such(root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine.toml").write_text(OTHER_SOURCES)
    recipe = load_recipe(tmp_path / "mine.toml", root)
    (tmp_path / "mine" / "a.txt").write_text("The furnace was lit before dawn.")
    BUILDERS["sample"](RunContext(root, "run"), recipe.sample)
    (tmp_path / "mine" / "a.txt").write_text("The furnace went out at noon.")
    assert forecast_stages(recipe, root)[0].cause.startswith("the input `source/mine` has other content")


OTHER_SOURCES = """
name = "mine"
budget_tokens = "40K"
[[sources]]
name = "mine"
paths = ["{recipe}/mine"]
weight = 1.0
"""
