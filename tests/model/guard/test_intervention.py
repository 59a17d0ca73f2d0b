"""Manual interventions in a stopped run."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.ipc
import pytest
import torch

import model.train.trainer
from model.checkpoint.checkpoint import checkpoint_state
from model.config.train import TrainerRun
from model.engines import make_engine
from model.errors import BessemerError, InputError, RecipeError
from model.guard.decisions import read_decisions
from model.train.intervention import intervene, resumable_steps
from model.train.trainer import train

STEPS = 12


class Stopped(Exception):
    """What ends the run in its middle."""


def begin(run: TrainerRun) -> None:
    """Train the first eight of twelve steps, with checkpoints behind steps 3 and 6."""

    def make(run: TrainerRun, network: Any, ranks: Any) -> Any:
        engine: Any = make_engine(run, network, ranks)
        steps, real = iter(range(8)), engine.begin

        def begin(*arguments: Any) -> None:
            if next(steps, None) is None:
                raise Stopped
            real(*arguments)

        engine.begin = begin
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.train.trainer, "make_engine", make)
        with pytest.raises(Stopped):
            train(run)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, build_run) -> Path:
    """The folder of such a run with the default settings."""
    run = build_run(tmp_path_factory.mktemp("begun"), positions=2 * STEPS)
    begin(run)
    return run.out


@pytest.fixture
def stopped(make_run, begun: Path) -> Callable[..., TrainerRun]:
    """A run that stopped after its eighth step."""

    def start(name: str = "out", **settings: Any) -> TrainerRun:
        run = make_run(name, positions=2 * STEPS, **settings)
        if settings:
            begin(run)
        else:
            shutil.copytree(begun, run.out)
        (run.out / "run.json").write_text(run.model_dump_json())
        return run

    return start


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory, build_run, begun: Path) -> Path:
    """The result of one that went on without an intervention."""
    run = build_run(tmp_path_factory.mktemp("untouched"), positions=2 * STEPS)
    shutil.copytree(begun, run.out)
    return train(run)


def metrics(folder: Path) -> dict[str, list[Any]]:
    return pyarrow.ipc.open_file(folder / "metrics.arrow").read_all().to_pydict()


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_another_rate_holds_from_the_checkpoint_on(stopped, untouched: Path) -> None:
    run = stopped()
    assert resumable_steps(run.out) == [3, 6]
    decision = intervene(run.out, {"train.schedule.peak_lr": 0.005}, None, "gradients drift")
    assert (decision.to_step, decision.by, decision.attempt) == (6, "hand", 1)
    result = train(run)
    reported = metrics(result)
    assert reported["step"] == list(range(STEPS))
    assert reported["attempt"] == [0] * 6 + [1] * 6
    rates = metrics(untouched)["lr"]
    assert reported["lr"][:6] == rates[:6]
    assert all(now < before for now, before in zip(reported["lr"][6:-1], rates[6:-1], strict=True))
    assert json.loads((result / "model.json").read_text())["decisions"] == [decision.model_dump(mode="json")]


def test_new_betas_are_those_that_the_optimizer_uses(stopped) -> None:
    """OPT-175B's crew changed them, and went on with the old ones, which the checkpoint held."""
    run, other = stopped(), stopped("other")
    intervene(run.out, {"train.optimizer.beta2": 0.5}, None, "")
    intervene(other.out, {}, None, "")
    assert weights(train(run)) != weights(train(other))


def test_a_word_without_a_change_changes_no_bit(stopped, untouched: Path) -> None:
    run = stopped()
    intervene(run.out, {}, 3, "the machine was moved")
    assert weights(train(run)) == weights(untouched)


@pytest.mark.parametrize(
    "settings",
    [
        {"train.optimizer.kind": "sgd"},
        {"model.activation": "relu"},
        {"train.dtype": "bfloat16"},
        {"train.clip.max_norm": 0.1},
        {"train.micro_batch_rows": 2},
    ],
)
def test_what_opt_changed_can_be_changed(stopped, untouched: Path, settings: dict[str, Any]) -> None:
    run = stopped()
    intervene(run.out, settings, None, "")
    result = train(run)
    description = json.loads((result / "model.json").read_text())
    found: Any = {"train": description["train"], "model": description["config"]}
    for path, value in settings.items():
        for name in path.split("."):
            found = found[name]
        assert found == value
    assert weights(result) != weights(untouched) or settings == {"train.micro_batch_rows": 2}


def test_threads_can_be_changed(stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stopped()
    intervene(run.out, {"train.threads": 2}, None, "a core was added")
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    train(run)
    assert chosen == [2]


def test_checkpoints_at_another_distance_may_be_gone_back_to(stopped) -> None:
    run = stopped(guard={"healthy_steps": 1})
    intervene(run.out, {"train.checkpoint_steps": 4}, None, "disks are slow")
    train(run)
    state = checkpoint_state(run.out / "checkpoints", 12)
    assert state["guard"]["health"] == {"candidates": [12], "healthy": [3, 6, 8]}


def test_a_person_may_take_it_back(stopped, untouched: Path) -> None:
    run = stopped()
    intervene(run.out, {"train.optimizer.kind": "sgd"}, None, "Adam is lost")
    intervene(run.out, {"train.optimizer.kind": "adamw"}, 3, "worse")
    assert [decision.to_step for decision in read_decisions(run.out)] == [6, 3]
    assert weights(train(run)) == weights(untouched)


@pytest.mark.parametrize(
    ("settings", "to_step", "kind", "words"),
    [
        ({"train.batch_rows": 4}, None, RecipeError, "which rows a step reads"),
        ({"model.layers": 3}, None, RecipeError, "the weights belong to the network as it is"),
        ({"model.activation": "swiglu"}, None, RecipeError, "a gated activation has weights of its own"),
        ({"train.optimizer.kind": "adam"}, None, RecipeError, "train.optimizer.kind"),
        ({"train.engine": "fsdp", "train.guard.ladder": [{"optimizer": "muon"}]}, None, RecipeError, "whole matrices"),
        ({"train.micro_batch_rows": "auto"}, None, RecipeError, "a size is found before the first step"),
        ({}, 5, InputError, "the run can resume from 0, 3, 6"),
    ],
)
def test_what_cannot_be_changed(
    stopped, settings: dict[str, Any], to_step: int | None, kind: type[BessemerError], words: str
) -> None:
    run = stopped()
    with pytest.raises(kind, match=words):
        intervene(run.out, settings, to_step, "")
    assert read_decisions(run.out) == []


def test_a_run_at_its_end_cannot_be_resumed(stopped, tmp_path: Path) -> None:
    run = stopped()
    train(run)
    with pytest.raises(InputError, match="is finished"):
        intervene(run.out, {}, None, "")
    with pytest.raises(InputError, match="no training began"):
        intervene(tmp_path / "nowhere", {}, None, "")


@pytest.mark.prove
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_goes_on_with_other_ranks_and_its_memory(
    make_run, launch: Callable[..., subprocess.Popen[str]], stage: int
) -> None:
    """ZeRO's parts of the optimizer's state are cut anew: what follows differs by the order of sums alone."""
    settings = {"engine": "deepspeed", "zero_stage": stage, "checkpoint_steps": 6, "positions": 4 * STEPS}

    def ended(run: TrainerRun, file: Path) -> None:
        file.write_text(run.model_dump_json())
        trainer = launch(run)
        _, err = trainer.communicate(timeout=240)
        assert trainer.returncode == 0, err

    run = make_run("two", ranks=2, batch_rows=4, **settings)
    pausing = run.model_copy(update={"train": run.train.model_copy(update={"pause_share": 0.5})})
    run.out.mkdir()
    ended(pausing, run.out / "run.json")
    (run.out / "run.json").write_text(run.model_dump_json())
    intervene(run.out, {"train.ranks": 1}, None, "a machine is needed elsewhere")
    ended(run, run.out / "run.json")
    kinds = pyarrow.ipc.open_file(run.out / "result" / "events.arrow").read_all()["kind"].to_pylist()
    assert "optimizer_anew" not in kinds
    alone = make_run("one", ranks=1, batch_rows=4, **settings)
    alone.out.mkdir()
    ended(alone, alone.out / "run.json")
    found, expected = metrics(run.out / "result"), metrics(alone.out / "result")
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
