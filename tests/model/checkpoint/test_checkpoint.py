"""Checkpoints: which are used, which are kept, and what is restored."""

import shutil
from pathlib import Path

import pytest
import torch

from model.checkpoint.checkpoint import Checkpoint, Damage, newest_checkpoint, quarantine_damaged
from model.checkpoint.metrics import MetricsLog
from model.checkpoint.run_folder import CHECKPOINTS
from model.checkpoint.writer import CheckpointWriter
from model.config.train import TrainerRun
from model.data.loader import CausalBatch
from model.distributed.process_group import SINGLE_PROCESS
from model.engines.native import NativeEngine
from model.errors import InputError
from model.launch.diagnostics import find_shortage
from model.launch.launcher import newest_step
from model.nn.gpt import GPT
from model.optim.schedules import StepSchedule

EXPECTED = {"config": "this"}


@pytest.fixture
def run(make_run) -> TrainerRun:
    return make_run()


NO_START = torch.zeros(2, dtype=torch.int64)


def fresh_engine(run: TrainerRun) -> NativeEngine:
    return NativeEngine(run, GPT(run.model).initialise(run.train.seed), SINGLE_PROCESS)


def newest(folder: Path) -> tuple[Checkpoint, list[Damage]]:
    damaged = quarantine_damaged(folder)
    checkpoint = newest_checkpoint(folder, EXPECTED)
    assert checkpoint is not None
    return checkpoint, damaged


def restored(run: TrainerRun, checkpoint: Checkpoint) -> NativeEngine:
    engine = fresh_engine(run)
    engine.network.load_state_dict(checkpoint.weights())
    engine.restore_optimizer(checkpoint.optimizer_state(0, 1))
    return engine


def trained(run: TrainerRun, steps: int) -> NativeEngine:
    engine = fresh_engine(run)
    generator = torch.Generator().manual_seed(4)
    for _ in range(steps):
        engine.step(CausalBatch(torch.randint(4, 48, (2, 17), generator=generator), NO_START), StepSchedule(0.01))
    return engine


def save(run: TrainerRun, folder: Path, step: int, keep: int = 3) -> NativeEngine:
    engine = trained(run, step)
    journal = MetricsLog()
    journal.event(step, "start")
    with CheckpointWriter(folder, SINGLE_PROCESS) as writer:
        writer.save(step, engine, journal, {**EXPECTED, "step": step}, keep)
    return engine


def test_weights_moments_and_journal_come_back_as_they_were(run: TrainerRun, tmp_path: Path) -> None:
    saved = save(run, tmp_path, 2)
    checkpoint, damaged = newest(tmp_path)
    fresh = restored(run, checkpoint)
    assert checkpoint.state == {"config": "this", "step": 2}
    assert damaged == []
    assert checkpoint.metrics_log().tables()["events"].column("kind").to_pylist() == ["start"]
    generator = torch.Generator().manual_seed(9)
    tokens = torch.randint(4, 48, (2, 17), generator=generator)
    for engine in (saved, fresh):
        engine.step(CausalBatch(tokens, NO_START), StepSchedule(0.01))
    pairs = zip(saved.network.parameters(), fresh.network.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_hyper_parameters_are_those_of_the_config_and_not_of_the_checkpoint(run: TrainerRun, tmp_path: Path) -> None:
    save(run, tmp_path, 1)
    optimizer = run.train.optimizer.model_copy(update={"beta1": 0.5, "weight_decay": 0.7})
    changed = restored(
        run.model_copy(update={"train": run.train.model_copy(update={"optimizer": optimizer})}), newest(tmp_path)[0]
    )
    assert [group["betas"][0] for group in changed.optimizer.param_groups] == [0.5, 0.5]
    assert [group["weight_decay"] for group in changed.optimizer.param_groups] == [0.7, 0.0]


def test_of_two_whole_ones_the_newest_is_taken(run: TrainerRun, tmp_path: Path) -> None:
    save(run, tmp_path, 1)
    second = save(run, tmp_path, 2)
    checkpoint, _ = newest(tmp_path)
    assert checkpoint.state["step"] == 2
    assert torch.equal(checkpoint.weights()["embedding.weight"], second.network.embedding.weight)


def test_one_that_a_kill_left_half_deleted_is_no_damage(
    run: TrainerRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, tmp_path, 1, keep=1)

    def killed(path: Path, ignore_errors: bool = False) -> None:
        if path.name == "tmp-step-000000001":
            (path / "state.json").unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        save(run, tmp_path, 2, keep=1)
    monkeypatch.undo()
    checkpoint, damaged = newest(tmp_path)
    assert (checkpoint.state["step"], damaged) == (2, [])
    save(run, tmp_path, 3, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "data") == ["step-000000003"]


def test_copies_under_other_names_are_no_checkpoints(run: TrainerRun, tmp_path: Path) -> None:
    folder = tmp_path / CHECKPOINTS
    save(run, folder, 1)
    shutil.copytree(folder / "step-000000001", folder / "step-000000001.bak")
    (folder / "step-000000009.tar").touch()
    checkpoint, damaged = newest(folder)
    assert (checkpoint.state["step"], damaged, newest_step(tmp_path)) == (1, [], 1)
    assert find_shortage(tmp_path, 0) is None
    save(run, folder, 2, keep=1)
    assert sorted(path.name for path in folder.iterdir()) == [
        "step-000000001.bak",
        "step-000000002",
        "step-000000009.tar",
    ]


def test_only_the_newest_are_kept(run: TrainerRun, tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(run, tmp_path, step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "data") == [
        "step-000000003",
        "step-000000004",
    ]


@pytest.mark.parametrize(
    "file", ["weights.safetensors", "optimizer.safetensors", "state.json", "metrics.arrow", "COMPLETE"]
)
def test_one_flipped_bit_in_any_file_is_named_and_the_checkpoint_before_is_taken(
    run: TrainerRun, tmp_path: Path, file: str
) -> None:
    save(run, tmp_path, 1)
    save(run, tmp_path, 2)
    path = tmp_path / "step-000000002" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    checkpoint, damaged = newest(tmp_path)
    assert checkpoint.state["step"] == 1
    assert [damage.name for damage in damaged] == ["step-000000002"]
    assert file == "COMPLETE" or damaged[0].reason == f"{file} does not agree with its digest"


def test_damaged_ones_are_named_until_a_new_checkpoint_records_them(run: TrainerRun, tmp_path: Path) -> None:
    save(run, tmp_path, 1)
    save(run, tmp_path, 2)
    (tmp_path / "step-000000002" / "state.json").unlink()
    for _ in range(2):
        _, damaged = newest(tmp_path)
        assert [damage.name for damage in damaged] == ["step-000000002"]
    save(run, tmp_path, 2)
    assert newest(tmp_path)[1] == []


def test_a_half_written_one_is_never_taken(run: TrainerRun, tmp_path: Path) -> None:
    save(run, tmp_path, 1)
    (tmp_path / "step-000000001").rename(tmp_path / "tmp-000000001")
    assert quarantine_damaged(tmp_path) == []
    assert newest_checkpoint(tmp_path, EXPECTED) is None


@pytest.mark.parametrize("name", ["step-000000009", "damaged-step-000000009", "tmp-000000009"])
def test_a_file_in_the_place_of_a_folder_ends_no_training(run: TrainerRun, tmp_path: Path, name: str) -> None:
    save(run, tmp_path, 1)
    (tmp_path / name).write_text("a note")
    quarantine_damaged(tmp_path)
    for step in (2, 3):
        save(run, tmp_path, step)
    assert newest(tmp_path)[0].state["step"] == 3
    assert sorted(path.name for path in tmp_path.glob("*step-*")) == [f"step-{step:09d}" for step in (1, 2, 3)]


def test_a_file_in_the_place_of_a_damaged_checkpoint_is_replaced(run: TrainerRun, tmp_path: Path) -> None:
    save(run, tmp_path, 1)
    (tmp_path / "step-000000001" / "state.json").unlink()
    (tmp_path / "damaged-step-000000001").touch()
    (damaged,) = quarantine_damaged(tmp_path)
    assert (damaged.name, damaged.reason) == ("step-000000001", "state.json is missing")


def test_a_checkpoint_of_another_configuration_is_an_error(run: TrainerRun, tmp_path: Path) -> None:
    save(run, tmp_path, 1)
    with pytest.raises(InputError, match="is this, but this run asks for that"):
        newest_checkpoint(tmp_path, {"config": "that"})
