"""A paused run continues to the bytes of an uninterrupted one."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.config.options import BatchWarmupConfig
from model.config.train import TrainConfig, TrainerRun
from model.errors import Paused
from model.optim.schedules import TrainingSchedule
from model.train.trainer import train

EXACT_FILES = ("model.safetensors", "model.json", "steps.arrow", "metrics.arrow")


def paused_at(run: TrainerRun, share: float | None) -> TrainerRun:
    return run.model_copy(update={"train": run.train.model_copy(update={"pause_share": share})})


def result(run: TrainerRun) -> dict[str, bytes]:
    return {name: (run.out / "result" / name).read_bytes() for name in EXACT_FILES}


def test_paused_twice_it_ends_with_the_bytes_of_an_undisturbed_run(make_run) -> None:
    whole = make_run("whole")
    train(whole)
    run = make_run("paused")
    for share, step in ((0.3, 4), (0.5, 6)):
        with pytest.raises(Paused, match=f"after step {step} of 12") as pause:
            train(paused_at(run, share))
        assert (pause.value.step, pause.value.steps) == (step, 12)
        assert not (run.out / "result").exists()
        assert (run.out / "checkpoints" / f"step-{step:09d}" / "COMPLETE").is_file()
    train(run)
    assert result(run) == result(whole)


def test_after_the_pause_it_makes_no_step_and_reports_the_loss_of_the_pause(make_run) -> None:
    run = make_run("far")
    with pytest.raises(Paused) as early:
        train(paused_at(run, 0.25))
    with pytest.raises(Paused):
        train(paused_at(run, 0.75))
    before = sorted(path.name for path in (run.out / "checkpoints").iterdir())
    with pytest.raises(Paused) as again:
        train(paused_at(run, 0.25))
    assert (again.value.step, again.value.loss) == (early.value.step, early.value.loss)
    assert sorted(path.name for path in (run.out / "checkpoints").iterdir()) == before


def test_a_share_that_only_the_last_step_reaches_is_no_pause(make_run) -> None:
    run = make_run("end")
    assert train(paused_at(run, 0.99)) == run.out / "result"


def test_as_a_process_it_exits_0_and_reports_its_step(make_run, launch) -> None:
    run = paused_at(make_run("process"), 0.5)
    out, err = launch(run).communicate(timeout=120)
    messages = [json.loads(line) for line in out.splitlines()]
    assert messages[-1]["kind"] == "paused", err
    assert (messages[-1]["step"], messages[-1]["steps"]) == (6, 12)
    assert messages[-1]["loss"] > 0
    assert not (Path(run.out) / "result").exists()


@given(
    positions=st.integers(1, 200),
    rows=st.integers(1, 16),
    share=st.floats(0, 1, exclude_min=True, exclude_max=True),
    warms_up=st.booleans(),
)
def test_steps_to_a_share_are_the_fewest_that_read_it(positions: int, rows: int, share: float, warms_up: bool) -> None:
    warmup = BatchWarmupConfig(share=0.4) if warms_up and rows > 1 else BatchWarmupConfig()
    config = TrainConfig(batch_rows=rows, micro_batch_rows=1, batch_warmup=warmup)
    curriculum = TrainingSchedule(config, positions, 16)
    steps = curriculum.steps_to(share)
    assert curriculum.positions(steps - 1)[1] >= share * positions
    assert steps == 1 or curriculum.positions(steps - 2)[1] < share * positions
