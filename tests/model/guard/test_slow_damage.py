"""A rate 50 times too high for some steps: damage that no single step shows."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.ipc
import pytest

from model.checkpoint.metrics import final_rows, final_steps
from model.config.train import TrainerRun
from model.errors import Paused
from model.guard.decisions import read_decisions
from model.optim.schedules import TrainingSchedule
from model.train.trainer import train

BEGIN, FACTOR = 150, 50.0
STEPS = 300
SETTINGS = {
    "positions": 2 * STEPS,
    "micro_batch_rows": 2,
    "schedule": {"peak_lr": 0.003, "end_lr": 0.0003},
    "checkpoint_steps": 25,
    "guard": {"most_skipped": 0.3},
}


@pytest.fixture
def raise_rate(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has the rate be 50 times too high for so many steps from step 150 on, in every attempt."""
    real = TrainingSchedule.step_schedule

    def install(length: int) -> None:
        def pace(self: TrainingSchedule, step: int):
            given = real(self, step)
            return dataclasses.replace(given, lr=given.lr * FACTOR) if BEGIN <= step < BEGIN + length else given

        monkeypatch.setattr(TrainingSchedule, "step_schedule", pace)

    return install


def table(folder: Path, name: str) -> pyarrow.Table:
    return pyarrow.ipc.open_file(folder / f"{name}.arrow").read_all()


def readings(result: Path, begin: int, end: int) -> np.ndarray:
    """Median of each activation range over the steps [begin, end) that lead to the weights."""
    metrics = final_rows(table(result, "metrics"), table(result, "steps"))
    read = zip(metrics.column("step").to_pylist(), metrics.column("largest_activations").to_pylist(), strict=True)
    return np.median([heat for step, heat in read if begin <= step < end], axis=0)


def check(run: TrainerRun, result: Path, length: int) -> None:
    """The first decision dates the onset and goes back before it; in the end the cause is gone, and was checked."""
    decisions = read_decisions(run.out)
    first, last = decisions[0], decisions[-1]
    assert BEGIN < first.onset <= BEGIN + 2, "the first raised step moves the weights that the next one reads"
    assert first.to_step < BEGIN
    steps = final_steps(table(result, "steps")).to_pylist()
    raised = [row["step"] for row in steps if row["applied"] and BEGIN <= row["step"] < BEGIN + length]
    assert len(raised) <= length // 8, "fewer are not seen, and do no harm that lasts"
    assert max(readings(result, STEPS - 30, STEPS)) < 15, "95 without a guard, 28 under one that dates late"
    (recovered,) = [event for event in table(result, "events").to_pylist() if event["kind"] == "recovered"]
    assert recovered["step"] == last.step + 64
    reported = json.loads(recovered["detail"])
    assert (reported["onset"], reported["to_step"], reported["cause"]) == (last.onset, last.to_step, last.cause)


def test_37_steps_are_dated_and_their_cause_is_gone(make_run, raise_rate) -> None:
    """Without the guard the largest value behind the first block rises from 3.2 to 50 within 25 steps, for good."""
    raise_rate(37)
    run = make_run(**SETTINGS)
    check(run, train(run), 37)


def test_16_steps_are_dated_and_a_resumed_training_comes_to_the_same_decisions(make_run, raise_rate) -> None:
    """What is suspected, and since when, is in the checkpoints; step 153 lies between the onset and its detection."""
    raise_rate(16)
    run, other = make_run(**SETTINGS), make_run("other", **SETTINGS)
    undisturbed = train(run)
    check(run, undisturbed, 16)
    for step in (100, 153):
        with pytest.raises(Paused):
            train(other.model_copy(update={"train": other.train.model_copy(update={"pause_share": step / STEPS})}))
    again = train(other)
    assert read_decisions(other.out) == read_decisions(run.out)
    assert (again / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()
