"""The real trainer as a process: killed, stopped, damaged, orphaned, with the same bytes in the end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pytest
import torch
from pydantic import ValidationError

from model.config.options import ScheduleConfig
from model.config.train import TrainConfig, TrainerRun
from model.data.schema import EVENTS, METRICS, PERF, STEPS
from model.errors import Infra
from model.train.loop import Callback, Step
from model.train.trainer import prepare_process, train
from tests.model.forked_trainers import fork_trainer
from tests.model.rank_processes import is_alive
from tests.processes import fork_program, wait_until

LONG = {"positions": 120, "checkpoint_steps": 10, "threads": 2}
"""Sixty steps: long enough to be killed in the middle."""
EXACT_FILES = ("model.safetensors", "model.json", "steps.arrow", "metrics.arrow")


def table(path: Path) -> pa.Table:
    with pa.OSFile(str(path), "rb") as source:
        return pa.ipc.open_file(source).read_all()


def result(run: TrainerRun) -> dict[str, bytes]:
    return {name: (run.out / "result" / name).read_bytes() for name in EXACT_FILES}


def events(run: TrainerRun) -> list[tuple[str, int]]:
    rows = table(run.out / "result" / "events.arrow").to_pylist()
    assert [row["seq"] for row in rows] == list(range(len(rows)))
    return [(row["kind"], row["step"]) for row in rows]


def finish(trainer: subprocess.Popen[str]) -> tuple[int, list[dict], str]:
    out, err = trainer.communicate(timeout=60)
    return trainer.returncode, [json.loads(line) for line in out.splitlines()], err


class Watching(Callback):
    """Skips one step, and raises after another."""

    def __init__(self, skipped: int, last: int) -> None:
        self.seen: list[tuple[str, int]] = []
        self._skipped, self._last = skipped, last

    def before_step(self, number: int) -> None:
        self.seen.append(("before", number))

    def skips(self, step: Step) -> bool:
        return step.number == self._skipped

    def after_step(self, step: Step) -> None:
        self.seen.append(("skipped" if step.result is None else "computed", step.number))
        if step.number == self._last:
            raise Infra("the callback ends the attempt")


def test_a_callback_sees_each_step_may_skip_it_and_may_end_the_attempt(make_run) -> None:
    run = make_run(positions=8, checkpoint_steps=2)
    watching = Watching(skipped=1, last=2)
    with pytest.raises(Infra, match="ends the attempt"):
        train(run, callbacks=[watching])
    assert watching.seen == [
        *[("before", 0), ("computed", 0)],
        *[("before", 1), ("skipped", 1)],
        *[("before", 2), ("computed", 2)],
    ]

    again = Watching(skipped=-1, last=-1)
    train(run, callbacks=[again])
    assert again.seen == [("before", 2), ("computed", 2), ("before", 3), ("computed", 3)], "from the checkpoint on"
    steps = table(run.out / "result" / "steps.arrow").to_pylist()
    assert [row["applied"] for row in steps] == [True, False, True, True]


def test_a_file_in_the_place_of_the_result_is_replaced(make_run) -> None:
    run = make_run(positions=2)
    run.out.mkdir(parents=True)
    (run.out / "result").write_text("a note")
    assert (train(run) / "model.safetensors").is_file()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, build_run, launch) -> dict[str, bytes]:
    run = build_run(tmp_path_factory.mktemp("undisturbed"), **LONG)
    code, messages, err = finish(launch(run))
    assert code == 0, err
    assert messages[0] | {"kind": "start", "step": 0, "steps": 60} == messages[0]
    assert messages[-1]["kind"] == "done"
    assert [message["step"] for message in messages if message["kind"] == "checkpoint"] == [10, 20, 30, 40, 50, 60]
    assert sorted(path.name for path in (run.out / "checkpoints").iterdir()) == [
        *("step-000000010", "step-000000050"),
        "step-000000060",
    ], "the two newest, and those that may become healthy"
    return result(run)


def test_killed_stopped_and_damaged_it_ends_with_the_bytes_of_an_undisturbed_run(
    make_run, launch, undisturbed: dict[str, bytes]
) -> None:
    run = make_run("disturbed", keep_checkpoints=5, **LONG)
    checkpoints = run.out / "checkpoints"

    trainer = launch(run)
    wait_until(lambda: (checkpoints / "step-000000010").exists())
    trainer.kill()
    assert finish(trainer)[0] == -signal.SIGKILL

    trainer = launch(run)
    wait_until(lambda: (checkpoints / "step-000000030").exists())
    trainer.kill()
    finish(trainer)
    *_, whole, torn, flipped = sorted(checkpoints.glob("step-*"))
    resumed_from = int(whole.name.removeprefix("step-"))
    flip_a_bit(flipped / "optimizer.safetensors")
    (torn / "COMPLETE").unlink()

    code, messages, err = finish(launch(run))
    assert code == 0, err
    assert messages[0]["event"] == "damaged_checkpoint"
    assert [message["step"] for message in messages if message["kind"] == "start"] == [resumed_from]
    named = {message["name"] for message in messages if message.get("event") == "damaged_checkpoint"}
    assert named == {flipped.name, torn.name}
    assert result(run) == undisturbed
    assert not list(checkpoints.glob("damaged-*"))
    damaged = [row for row in table(run.out / "result" / "events.arrow").to_pylist() if "damaged" in row["kind"]]
    assert {json.loads(row["detail"])["name"] for row in damaged} == named
    assert {row["class"] for row in damaged} == {"IntegrityError"}


def test_kernels_without_fixed_bits_are_refused(make_run) -> None:
    torch.use_deterministic_algorithms(False)
    prepare_process(make_run())
    with pytest.raises(RuntimeError, match="deterministic"):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_asked_to_stop_it_checkpoints_exits_75_and_goes_on(make_run, launch, undisturbed: dict[str, bytes]) -> None:
    run = make_run("stopped", **LONG | {"checkpoint_steps": 1000})
    trainer = launch(run)
    wait_until(lambda: (run.out / "heartbeat").exists())
    trainer.terminate()
    code, _, err = finish(trainer)
    assert code == 75, err
    assert err.startswith("Infra: asked to stop")
    (checkpoint,) = (run.out / "checkpoints").glob("step-*")
    stopped_at = int(checkpoint.name.removeprefix("step-"))
    assert 0 < stopped_at < 60

    code, messages, err = finish(launch(run))
    assert code == 0, err
    assert messages[0]["step"] == stopped_at
    assert events(run) == [("start", 0), ("resume", stopped_at)]
    assert result(run) == undisturbed


def test_tables_keep_their_schemas_and_count_what_was_read(make_run, launch) -> None:
    run = make_run("tables", positions=5)
    assert finish(launch(run))[0] == 0
    folder = run.out / "result"
    for name, schema in {"steps": STEPS, "metrics": METRICS, "perf": PERF, "events": EVENTS}.items():
        assert table(folder / f"{name}.arrow").schema == schema
    steps = table(folder / "steps.arrow").to_pylist()
    assert [(row["pos_start"], row["pos_end"]) for row in steps] == [(0, 2), (2, 4), (4, 5)]
    assert all(row["applied"] and row["attempt"] == 0 for row in steps)
    metrics = table(folder / "metrics.arrow").to_pylist()
    assert [row["tokens"] for row in metrics] == [32, 64, 80]
    description = json.loads((folder / "model.json").read_text())
    assert description["tokenizer_digest"] == "tokenizer"
    assert len(description["activation_ranges"]) == len(metrics[0]["largest_activations"]) == 6


def test_attention_within_documents_learns_something_else_and_needs_their_borders(make_run) -> None:
    run = make_run("across", positions=8)
    within = run.model_copy(
        update={
            "out": run.out.with_name("within"),
            "eos": 5,
            "model": run.model.model_copy(update={"attend_within_documents": True}),
        }
    )
    assert read_weights(train(within)) != read_weights(train(run))
    with pytest.raises(ValidationError, match="needs eos"):
        TrainerRun.model_validate(within.model_dump() | {"eos": None})


def read_weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_numbers_that_are_no_numbers_are_not_applied_and_three_in_a_row_end_it(make_run, launch) -> None:
    run = make_run("diverging", schedule=ScheduleConfig(peak_lr=1e30, end_lr=1e30, warmup_share=0), threads=1)
    code, messages, err = finish(launch(run))
    assert code == 76, err
    assert err.startswith("Numerics: ")
    skipped = [message["step"] for message in messages if message.get("event") == "skipped_step"]
    assert len(skipped) == 3
    assert skipped == list(range(skipped[0], skipped[0] + 3))
    reported = [message for message in messages if message["kind"] == "step"]
    assert all(message["loss"] == message["loss"] for message in reported)


def test_a_checkpoint_of_another_configuration_is_refused(make_run, launch) -> None:
    run = make_run("changed", positions=8)
    assert finish(launch(run))[0] == 0
    (run.out / "result" / "model.json").unlink()
    other = run.model_copy(update={"train": run.train.model_copy(update={"seed": 2})})
    code, _, err = finish(launch(other))
    assert code == 3
    assert "be resumed only under the configuration that made it" in err


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"order": "/nowhere/order.arrow"}, 3, "/nowhere/order.arrow"),
        ({"colour": "red"}, 2, "colour"),
        ({"train": {"threads": 0}}, 2, "train.threads"),
    ],
)
def test_a_wrong_run_is_refused_in_words(make_run, tmp_path: Path, change: dict, code: int, words: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(json.loads(make_run("wrong").model_dump_json()) | change))
    found, _, err = finish(fork_trainer(TrainConfig(), [str(path)]))
    assert found == code, err
    assert words in err
    assert "Traceback" not in err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux's")
def test_the_trainer_does_not_outlive_a_killed_launcher(make_run, tmp_path: Path) -> None:
    run = make_run("orphan", positions=200_000, checkpoint_steps=100_000)
    path = tmp_path / "orphan.json"
    path.write_text(run.model_dump_json())

    def launch() -> None:
        child = fork_trainer(run.train, [str(path), str(os.getpid())])
        print(child.pid, flush=True)
        child.wait()

    parent = fork_program(launch, os.environ, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    trainer = int(parent.stdout.readline())
    wait_until(lambda: (run.out / "heartbeat").exists())
    assert is_alive(trainer)
    parent.kill()
    parent.communicate()
    try:
        wait_until(lambda: not is_alive(trainer), seconds=10)
    finally:
        if is_alive(trainer):
            os.kill(trainer, signal.SIGKILL)
    assert not (run.out / "result").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux's")
def test_a_trainer_whose_launcher_is_gone_already_does_not_start(make_run, launch) -> None:
    run = make_run("late")
    code, messages, _ = finish(launch(run, str(os.getppid())))
    assert (code, messages) == (75, [])
    assert not run.out.exists()
