"""Runs that are made to diverge, and their rollbacks."""

import gc
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.ipc
import pytest
import torch

import model.train.trainer
from model.checkpoint.metrics import MetricsLog, final_rows, final_steps
from model.config.train import TrainerRun
from model.engines import make_engine
from model.errors import Infra, IntegrityError, Numerics, RecipeError
from model.files import write_atomically
from model.guard.decisions import Decision, read_decisions
from model.guard.guard import write_decision
from model.optim.schedules import StepSchedule
from model.train.trainer import train

GUARD = {"window": 16, "least_steps": 8, "unclean_window": 16, "most_unclean": 4, "healthy_steps": 6, "margin_steps": 2}
STEPS = 60
BATCHES = {"positions": 2 * STEPS, "micro_batch_rows": 2}
TROUBLE = range(40, 43)


class Faulty:
    """An engine whose gradient is no number in some steps; it knows the step by the position that it reads."""

    def __init__(self, engine: Any, steps: range, first: int) -> None:
        self._engine, self._steps, self._step = engine, steps, first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def begin(self, batch: Any, pace: StepSchedule, loss_scale: float = 1.0) -> None:
        hook = None
        if self._step in self._steps:
            hook = self._engine.network.embedding.weight.register_hook(lambda gradient: gradient * torch.nan)
        self._step += 1
        self._engine.begin(batch, pace, loss_scale)
        if hook is not None:
            hook.remove()


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has gradients fail at these steps, in the first `attempts` attempts of every run."""

    def install(steps: range, attempts: int = 1) -> None:
        def make(run: TrainerRun, network: Any, ranks: Any) -> Any:
            engine = make_engine(run, network, ranks)
            made = len(read_decisions(run.out))
            existing = sorted((run.out / "checkpoints").glob("step-*"))
            first = int(existing[-1].name.removeprefix("step-")) if existing else 0
            return Faulty(engine, steps, first) if made < attempts else engine

        monkeypatch.setattr(model.train.trainer, "make_engine", make)

    return install


def table(folder: Path, name: str) -> pyarrow.Table:
    return pyarrow.ipc.open_file(folder / f"{name}.arrow").read_all()


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture
def run(make_run) -> TrainerRun:
    return make_run(**BATCHES, guard={**GUARD, "most_skipped": 0.3})


def test_a_run_that_diverges_goes_back_skips_the_data_and_ends_well(run, make_run, fail) -> None:
    fail(TROUBLE)
    result = train(run)
    (decision,) = read_decisions(run.out)
    assert (decision.onset, decision.step, decision.to_step) == (40, 42, 33), "six clean steps follow on step 33"
    assert decision.skipped == (2 * 38, 2 * 45)
    steps, events = table(result, "steps"), table(result, "events").to_pylist()
    kept = final_steps(steps).to_pylist()
    assert [row["step"] for row in kept] == list(range(STEPS))
    assert [row["step"] for row in kept if not row["applied"]] == list(range(38, 45))
    assert [row["attempt"] for row in kept] == [0] * 33 + [1] * 27
    assert final_rows(table(result, "metrics"), steps).column("step").to_pylist() == [*range(38), *range(45, STEPS)]
    reported = [event for event in events if event["kind"] == "rollback"]
    assert [event["positions"] for event in reported] == [list(range(76, 90))]
    assert [event["step"] for event in events if event["kind"] == "skipped_data"] == list(range(38, 45))
    description = json.loads((result / "model.json").read_text())
    assert description["decisions"] == [decision.model_dump(mode="json")]

    # What comes out is what a run gives that left these rows out from its beginning.
    fail(range(0))
    reference = make_run("reference", **BATCHES, guard={**GUARD, "most_skipped": 0.3})
    from_start = decision.model_copy(update={"to_step": 0, "step": 0, "onset": 0})
    write_decision(reference.out, from_start, MetricsLog())
    assert weights(train(reference)) == weights(result)


def test_recovery_shows_at_the_next_computed_step_where_the_last_of_the_healthy_ones_is_skipped(make_run, fail) -> None:
    """The data of steps 38 to 44 are skipped, step 44 among them, two steps after the divergence."""
    run = make_run(**BATCHES, guard={**GUARD, "most_skipped": 0.3, "healthy_steps": 2})
    fail(TROUBLE)
    events = table(train(run), "events").to_pylist()
    assert [event["step"] for event in events if event["kind"] == "recovered"] == [45]


def test_a_run_that_dies_on_its_way_back_goes_back_all_the_same(run, make_run, fail, monkeypatch) -> None:
    fail(TROUBLE)
    undisturbed = train(run)
    other = make_run("other", **BATCHES, guard={**GUARD, "most_skipped": 0.3})

    def die(*arguments: object) -> None:
        raise Infra("killed behind the decision")

    with monkeypatch.context() as patch:
        real = model.train.trainer.delete_abandoned
        patch.setattr(
            model.train.trainer, "delete_abandoned", lambda folder, made: die() if made else real(folder, made)
        )
        with pytest.raises(Infra):
            train(other)
    again = train(other)
    assert weights(again) == weights(undisturbed)
    for name in ("metrics", "steps"):
        assert (again / f"{name}.arrow").read_bytes() == (undisturbed / f"{name}.arrow").read_bytes()


def test_a_network_is_freed_before_that_of_the_next_attempt_is_made(
    make_run, fail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that are recomputed refer to themselves, and collections of garbage may be far apart."""
    run = make_run(**BATCHES, guard={**GUARD, "most_skipped": 0.3}, recompute=True)
    fail(TROUBLE)
    make = model.train.trainer.make_engine
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []

    def watched(run: TrainerRun, network: Any, ranks: Any) -> Any:
        alive.extend(earlier() is not None for earlier in made)
        made.append(weakref.ref(network.embedding.weight))
        return make(run, network, ranks)

    monkeypatch.setattr(model.train.trainer, "make_engine", watched)
    gc.disable()
    try:
        train(run)
    finally:
        gc.enable()
    assert alive == [False]


def test_what_a_killed_process_left_of_a_decision_is_no_obstacle(tmp_path: Path) -> None:
    left = tmp_path / "attempts" / "tmp-0001"
    left.mkdir(parents=True)
    (left / "decision.json").write_bytes(b"{")
    decision = Decision(attempt=1, by="guard", cause="it rose", onset=5, step=6, to_step=0)
    write_decision(tmp_path, decision, MetricsLog())
    assert read_decisions(tmp_path) == [decision]
    assert not left.exists()


def test_trouble_that_comes_back_takes_the_next_rung_and_ends_with_a_report(make_run, fail) -> None:
    """Steps 40 to 42 fail whenever they are computed; each time they are skipped, and those behind them fail."""
    ladder = [{}, {"lr_factor": 0.5}]
    run = make_run(positions=3 * STEPS, micro_batch_rows=2, guard={**GUARD, "most_skipped": 0.9, "ladder": ladder})
    fail(range(40, 2 * STEPS), attempts=9)
    with pytest.raises(Numerics, match="each of the 2 steps") as ended:
        train(run)
    assert "train.schedule.peak_lr = 0.005" in str(ended.value)
    first, second = read_decisions(run.out)
    assert (first.settings, second.settings["train.schedule.peak_lr"]) == ({}, 0.005)
    assert second.to_step < first.to_step
    reported = table(run.out / "diverged", "events").to_pylist()
    assert [event["kind"] for event in reported if event["kind"] in ("rollback", "diverged")] == [
        *("rollback", "rollback"),
        "diverged",
    ]


def test_a_rung_that_swaps_the_optimizer_starts_its_state_anew(make_run, fail) -> None:
    """OPT-175B's crew restored the old one's settings with its state, and trained on without a change."""
    run = make_run(**BATCHES, guard={**GUARD, "most_skipped": 0.9, "ladder": [{"optimizer": "sgd"}]})
    fail(TROUBLE)
    result = train(run)
    (reported,) = [event for event in table(result, "events").to_pylist() if event["kind"] == "optimizer_anew"]
    assert json.loads(reported["detail"])["now"]["kind"] == "sgd"
    assert json.loads((result / "model.json").read_text())["train"]["optimizer"]["kind"] == "sgd"


def test_a_ladder_that_the_run_cannot_climb_is_refused_before_the_first_step(make_run) -> None:
    run = make_run(positions=24, engine="deepspeed", guard={"ladder": [{"optimizer": "lamb"}]})
    with pytest.raises(RecipeError, match="lamb needs whole matrices"):
        train(run)
    assert not (run.out / "checkpoints").exists()


def test_a_decision_that_cannot_be_read_is_no_silent_win(run) -> None:
    write_decision(run.out, Decision(attempt=1, by="guard", cause="", onset=0, step=0, to_step=0), MetricsLog())
    write_atomically(run.out / "attempts" / "0001" / "decision.json", b"{")
    with pytest.raises(IntegrityError, match=r"decision\.json does not agree with its digest"):
        train(run)
