"""What comes of a stretch: a pause, an end, a divergence, a failure, or a machine that is to blame."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flows.experiments import search as trial
from flows.experiments.search import TrialSegment, objective_value, run_segment
from flows.experiments.search_config import ObjectiveConfig
from flows.recipe.load import load_recipe
from model.errors import BessemerError, Infra, InputError, Numerics, RecipeError
from tasks.artifacts.build import ProgressListener


class Scores:
    """An artifact's table, without the artifact."""

    def table(self, name: str) -> pa.Table:
        assert name == "scores"
        rows = [
            ("heldout/all", "bits_per_byte", 0, "all", 1.5),
            ("heldout/notes", "bits_per_byte", 0, "all", 1.25),
            ("cloze", "acc", 0, "all", 0.25),
            ("cloze", "acc", 1, "clean", 0.5),
            ("cloze", "acc", 1, "leaked", None),
        ]
        columns = zip(*rows, strict=True)
        named = dict(zip(("task", "metric", "shots", "subset", "value"), columns, strict=True))
        return pa.table({**{key: list(values) for key, values in named.items()}, "stderr": [0.125] * len(rows)})


def value(**asked: Any) -> tuple[float, float | None]:
    return objective_value(Scores(), ObjectiveConfig.model_validate(asked))  # type: ignore[arg-type]


def test_the_objective_is_a_row_of_the_scores() -> None:
    assert value() == (1.5, 0.125)
    assert value(task="heldout/notes") == (1.25, 0.125)
    assert value(task="cloze", metric="acc", direction="maximize") == (0.25, 0.125)
    assert value(task="cloze", metric="acc", shots=1, subset="clean") == (0.5, 0.125)


@pytest.mark.parametrize(
    "asked", [{"metric": "acc"}, {"task": "cloze", "metric": "acc", "shots": 1, "subset": "leaked"}]
)
def test_an_objective_that_was_not_measured_names_those_that_were(asked: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"gives acc of cloze, bits_per_byte of heldout/all, bits_per_byte of heldout"):
        value(**asked)


@pytest.fixture
def stretch(foundry: Path, tmp_path: Path) -> TrialSegment:
    return TrialSegment(4, 1, load_recipe(foundry / "foundry.toml", tmp_path), "run", ObjectiveConfig())


@pytest.mark.parametrize(
    ("error", "state"), [(Numerics("no number"), "diverged"), (RecipeError("these two\ndo not go together"), "failed")]
)
def test_a_trial_that_fails_keeps_its_cause(
    stretch: TrialSegment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BessemerError, state: str
) -> None:
    def fail(*words: Any) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(trial, "run_pipeline", fail)
    came = run_segment(stretch, tmp_path, ProgressListener())
    assert (came.number, came.state, came.stop.rung, came.stop.loss) == (4, state, 1, None)
    assert came.cause == f"{type(error).__name__}: {' '.join(str(error).split())}"
    assert came.summary == came.cause


def test_a_machine_that_fails_is_no_fault_of_the_trial(
    stretch: TrialSegment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*words: Any) -> dict[str, Any]:
        raise Infra("the disk is full")

    monkeypatch.setattr(trial, "run_pipeline", fail)
    with pytest.raises(Infra, match="disk"):
        run_segment(stretch, tmp_path, ProgressListener())


def test_a_pause_says_where_and_how_good(
    stretch: TrialSegment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = [
        {"stage": "sample", "outcome": "built"},
        {"stage": "clean", "outcome": "reused"},
        {"stage": "train", "outcome": "paused", "step": 9, "steps": 74, "loss": 4.5},
    ]
    monkeypatch.setattr(trial, "run_pipeline", lambda *words: {"state": "paused", "stages": stages})
    came = run_segment(stretch, tmp_path, ProgressListener())
    assert (came.state, came.stop.step, came.stop.steps, came.stop.loss) == ("paused", 9, 74, 4.5)
    assert came.stop.built == ("sample", "train")
    assert came.summary == "loss 4.5000 after step 9 of 74"
