"""A run begun by another version resumes under this one only if 20 of its steps come out the same."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pytest

from model.checkpoint.complete_marker import marker
from model.checkpoint.metrics import MetricsLog
from model.config.train import TrainerRun
from model.digests import digest_file
from model.errors import GuardError, InputError, Paused
from model.guard.decisions import Decision, read_decisions
from model.guard.guard import write_decision
from model.train.intervention import (
    _max_difference,
    _train,
    change_versions,
    compare_versions,
    intervene,
    resumable_steps,
)
from model.train.trainer import train

STEPS = 40


@pytest.fixture
def paused(make_run: Callable[..., TrainerRun]) -> Callable[..., TrainerRun]:
    """A run of forty steps that stops after its thirtieth, with checkpoints behind steps 5, 10, ... 30."""

    def start(name: str = "out", until: int = 30, **settings: Any) -> TrainerRun:
        run = make_run(name, positions=2 * STEPS, checkpoint_steps=5, keep_checkpoints=9, **settings)
        pausing = run.model_copy(update={"train": run.train.model_copy(update={"pause_share": until / STEPS})})
        run.out.mkdir()
        (run.out / "run.json").write_text(run.model_dump_json())
        with pytest.raises(Paused):
            train(pausing)
        return run

    return start


def rewrite(checkpoint: Path, change: Callable[[Path], None]) -> None:
    """Change files of a checkpoint, and say so in COMPLETE."""
    change(checkpoint)
    files = {path.name: digest_file(path) for path in checkpoint.iterdir() if path.name != "COMPLETE"}
    (checkpoint / "COMPLETE").write_bytes(marker(files))


def written_by(version: str) -> Callable[[Path], None]:
    """As PyTorch of that version would have left it."""

    def change(checkpoint: Path) -> None:
        state = json.loads((checkpoint / "state.json").read_text())
        (checkpoint / "state.json").write_text(json.dumps({**state, "torch": version}))

    return change


def with_losses(factor: float) -> Callable[[Path], None]:
    """As if every loss had come out so many times as large."""

    def change(checkpoint: Path) -> None:
        path = checkpoint / "metrics.arrow"
        rows = pyarrow.ipc.open_file(path).read_all()
        place = rows.schema.get_field_index("loss")
        losses = pc.multiply(rows.column("loss"), factor)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows.set_column(place, rows.schema.field(place), losses))

    return change


def checkpoints(run: TrainerRun) -> list[Path]:
    return sorted((run.out / "checkpoints").glob("step-*"))


def test_the_same_arithmetic_goes_on_to_the_same_weights(paused) -> None:
    run = paused()
    for checkpoint in checkpoints(run):
        rewrite(checkpoint, written_by("2.12.0"))
    with pytest.raises(InputError, match=r"its `torch` is 2\.12\.0"):
        train(run)
    decision, parity = change_versions(run.out, {"libs.torch": ("2.12.0", "2.13.0")}, {}, "security fix")
    assert (parity.first, parity.last) == (10, 29)
    assert (parity.loss, parity.grad_norm) == (0.0, 0.0)
    assert decision.to_step == 30
    assert decision.versions["torch"][0] == "2.12.0"
    assert decision.versions["libs.torch"] == ("2.12.0", "2.13.0")
    assert not (run.out / "parity").exists()
    result = train(run)
    reported = json.loads((result / "model.json").read_text())["decisions"]
    assert [one["cause"] for one in reported] == ["security fix"]
    untouched = train(paused("untouched"))
    assert (result / "model.safetensors").read_bytes() == (untouched / "model.safetensors").read_bytes()


def test_another_arithmetic_does_not_go_on(paused) -> None:
    run = paused()
    rewrite(checkpoints(run)[-1], with_losses(1.001))
    with pytest.raises(GuardError, match=r"steps 10 to 29, computed again, differ in loss by up to 9\.99e-04"):
        change_versions(run.out, {}, {}, "")
    assert read_decisions(run.out) == []
    assert resumable_steps(run.out) == [5, 10, 15, 20, 25, 30]
    train(run)


def test_settings_change_behind_the_comparison_and_the_next_one_needs_steps_behind_that_change(paused) -> None:
    run = paused()
    decision, parity = change_versions(run.out, {}, {"train.schedule.peak_lr": 0.005}, "")
    assert parity.loss == 0.0
    assert decision.settings == {"train.schedule.peak_lr": 0.005}
    with pytest.raises(InputError, match="the run has made 0 steps since its start or its last change"):
        change_versions(run.out, {}, {}, "")


def test_steps_from_the_start_are_compared_where_no_checkpoint_lies_far_enough_back(paused) -> None:
    run = paused(until=22)
    assert change_versions(run.out, {}, {}, "")[1].first == 0


def test_a_pause_that_a_person_set_lengthens_no_comparison(paused) -> None:
    run = paused(until=5)
    intervene(run.out, {"train.pause_share": 35 / STEPS}, None, "")
    with pytest.raises(Paused):
        train(run)
    parity = compare_versions(run.out, run, 10, {})
    assert (parity.first, parity.last, parity.loss) == (10, 29, 0.0)
    assert resumable_steps(run.out / "parity")[-1] == 30


def test_steps_that_were_all_skipped_cannot_be_compared(paused) -> None:
    run = paused(until=5)
    steps = range(8, 32)
    skipped = (2 * steps.start, 2 * steps.stop)
    decision = Decision(attempt=1, by="guard", cause="it rose", onset=4, step=4, to_step=5, skipped=skipped)
    write_decision(run.out, decision, MetricsLog.read(checkpoints(run)[-1]))
    with pytest.raises(Paused):
        train(run.model_copy(update={"train": run.train.model_copy(update={"pause_share": 30 / STEPS})}))
    with pytest.raises(InputError, match="steps 10 to 29 were all skipped"):
        change_versions(run.out, {}, {}, "")


def test_too_few_steps_to_compare(paused) -> None:
    run = paused(until=15)
    with pytest.raises(InputError, match="the run has made 15 steps"):
        change_versions(run.out, {}, {}, "")


def test_numbers_that_are_none_are_the_same_on_both_sides_alone() -> None:
    """A step that was left out for its numbers is left out again; one that computes another number is a difference."""
    assert _max_difference([2.0, math.nan], [2.0, math.nan]) == 0.0
    assert _max_difference([2.0, 4.0], [2.0, 3.0]) == 0.25
    for before, now in ((math.nan, 2.0), (2.0, math.nan)):
        assert _max_difference([before], [now]) == math.inf


def test_a_version_that_cannot_train_says_why(tmp_path: Path) -> None:
    with pytest.raises(GuardError, match=r"failed within 20 steps that the run has made before: .*run\.json"):
        _train(tmp_path)
