"""What `explain` foretells is what a run then does, and nothing is built by asking."""

from pathlib import Path

import pytest

from flows.explaining import Forecast, explain
from flows.recipe import load_recipe
from flows.road import STAGES
from model.errors import InputError


def forecast(foundry: Path, root: Path, *settings: str) -> dict[str, Forecast]:
    found = explain(load_recipe(foundry / "foundry.toml", root, settings), root)
    assert [entry.stage for entry in found] == list(STAGES)
    return {entry.stage: entry for entry in found}


def verdicts(forecasts: dict[str, Forecast]) -> list[str]:
    return [forecasts[stage].verdict for stage in STAGES]


def test_before_the_first_run_all_will_be_built_and_nothing_is_written(foundry: Path, tmp_path: Path) -> None:
    found = forecast(foundry, tmp_path / "root")
    assert verdicts(found) == ["build"] * 8
    assert found["sample"].cause == "no artifact of this stage exists yet"
    assert found["train"].cause == "nothing of `sample` stands to look ahead from"
    assert {path.name for path in (tmp_path / "root").iterdir()} == {"inputs.json"}


def test_what_stands_is_reused_and_what_follows_was_never_built(foundry: Path, root: Path) -> None:
    found = forecast(foundry, root)
    assert verdicts(found) == ["reused"] * 3 + ["build"] * 5
    assert found["decontaminate"].cause == "no artifact of this stage exists yet"


def test_a_changed_setting_is_named_and_stages_behind_it_depend_on_what_it_gives(foundry: Path, root: Path) -> None:
    found = forecast(foundry, root, "clean.workers=3", "clean.emoji=drop")
    assert verdicts(found)[:3] == ["reused", "build", "depends"]
    assert found["clean"].cause == 'params.emoji: "name" -> "drop"'
    assert found["clean"].differences == ('params.emoji: "name" -> "drop"',)
    assert found["dedup"].cause == "reused if `clean` gives what it gave before, else built"


def test_a_stage_behind_a_rebuilt_one_may_have_a_cause_of_its_own(foundry: Path, root: Path) -> None:
    found = forecast(foundry, root, "clean.emoji=drop", "dedup.threshold=0.9")
    assert found["dedup"].verdict == "build"
    assert found["dedup"].cause == "params.threshold: 0.8 -> 0.9"
    assert found["dedup"].identity is None


def test_a_missing_input_is_told_as_a_run_would_tell_it(foundry: Path, root: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        forecast(foundry, root, "decontaminate.benchmarks.cloze.path=nowhere.jsonl")
