"""What is exported is what the artifacts hold, read back with the programs' own readers."""

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.reports.trackers import Training, read_training, write_tensorboard, write_wandb
from model.data.schema import EVENTS, METRICS, PERF, STEPS, VALIDATION
from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import write_table
from tasks.artifacts.tables.rows import EventRow
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig

SKIPPED: EventRow = {
    "seq": 0,
    "time": 1001.5,
    "step": 1,
    "attempt": 0,
    "kind": "skipped_step",
    "class": "",
    "positions": [],
    "detail": '{"loss": "inf"}',
}

TRAINING = Training(
    values={0: {"train/loss": 3.0, "train/learning_rate": 0.5}, 1: {"train/loss": math.inf}, 2: {"train/loss": 1.25}},
    times={0: 1000.0, 1: 1002.0},
    events=[SKIPPED],
)


def metric(step: int, attempt: int, loss: float) -> dict:
    numbers = {"grad_norm": 2.0, "lr": 0.5, "max_norm": 1.0, "scale": 1.0}
    heat = {"largest_activations": [4.0, 8.0], "activation_lows": [-4.0, 0.0], "activation_highs": [1.0, 8.0]}
    return {"step": step, "attempt": attempt, "tokens": 64 * (step + 1), "loss": loss, **numbers, **heat}


@pytest.fixture
def train(tmp_path: Path) -> Artifact:
    """Three steps; the second was taken back and made again."""

    def step(number: int, attempt: int) -> dict:
        place = {"pos_start": 4 * number, "pos_end": 4 * number + 4, "row_pieces": 1, "applied": True}
        return {"step": number, "attempt": attempt, **place}

    def speed(number: int, attempt: int, seconds: float) -> dict:
        mfu = 0.25 if number else None
        return {"step": number, "attempt": attempt, "wall_s": seconds, "tokens_s": 64.0, "mfu": mfu, "rss": 1024}

    held_out = {"source": "books", "rows": 2, "predictions": 32, "bits_per_byte": None}
    tables = {
        "steps": ([step(0, 0), step(1, 0), step(1, 1), step(2, 1)], STEPS),
        "metrics": ([metric(0, 0, 3.0), metric(1, 0, 99.0), metric(1, 1, 2.0), metric(2, 1, 1.0)], METRICS),
        "perf": ([speed(0, 0, 5.0), speed(1, 0, 7.0), speed(1, 1, 1.0), speed(2, 1, 2.0)], PERF),
        "validation": (
            [
                {**held_out, "step": 1, "attempt": 0, "nats_per_token": 9.0},
                {**held_out, "step": 1, "attempt": 1, "nats_per_token": 4.0},
            ],
            VALIDATION,
        ),
        "events": (
            [{"seq": 0, "time": 7.5, "step": 1, "attempt": 0, "kind": "rollback", "class": "", "detail": "{}"}],
            EVENTS,
        ),
    }
    tables["events"][0][0]["positions"] = []

    def run(workspace: Workspace) -> StageReport:
        with workspace.unit("all") as unit:
            for name, (rows, schema) in tables.items():
                write_table(unit, name, pa.Table.from_pylist(rows, schema=schema))
            unit.path("model.json").write_text('{"activation_ranges": ["block 0", "logits"]}')
            unit.add_file("model.json")
        return StageReport()

    stage = Stage("train", roots=("tasks.artifacts.tables.ledger",), libraries=("pyarrow",))
    return build_artifact(RunContext(tmp_path / "root", "run"), stage, StrictConfig(), {}, run)


def test_what_was_taken_back_is_left_out_and_each_step_has_its_time(train: Artifact) -> None:
    reported = read_training({"train": train})
    assert [values["train/loss"] for _, _, values in reported.rows()] == [3.0, 2.0, 1.0]
    began = train.manifest["timings"]["started"]
    assert [time - began for _, time, _ in reported.rows()] == pytest.approx([5.0, 6.0, 8.0])
    assert reported.values[1] == {
        "train/loss": 2.0,
        "train/learning_rate": 0.5,
        "train/gradient_norm": 2.0,
        "train/gradient_norm_limit": 1.0,
        "train/tokens": 128,
        "activations/block_0": 4.0,
        "activations/logits": 8.0,
        "speed/tokens_per_second": 64.0,
        "speed/model_flops_utilisation": 0.25,
        "speed/resident_bytes": 1024,
        "heldout/books/nats_per_token": 4.0,
    }
    assert "speed/model_flops_utilisation" not in reported.values[0]
    (event,) = reported.events
    assert [event[key] for key in ("step", "time", "kind", "detail")] == [1, 7.5, "rollback", "{}"]


def test_a_run_that_trained_nothing_says_so() -> None:
    with pytest.raises(InputError, match="has no trained model"):
        read_training({})


def test_tensorboard_reads_the_same_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(write_tensorboard(TRAINING, tmp_path / "run")), {"scalars": 0, "tensors": 0}).Reload()
    assert read.Tags()["scalars"] == ["train/loss", "train/learning_rate"]
    points = [(point.step, point.wall_time, point.value) for point in read.Scalars("train/loss")]
    assert points == [(0, 1000.0, 3.0), (1, 1002.0, math.inf), (2, 1002.0, 1.25)]
    (event,) = read.Tensors("events/skipped_step/text_summary")
    assert (event.step, event.wall_time) == (1, 1001.5)
    assert event.tensor_proto.string_val[0] == b'skipped_step {"loss": "inf"}'


def test_a_second_export_to_the_same_folder_is_refused(tmp_path: Path) -> None:
    write_tensorboard(TRAINING, tmp_path / "run")
    with pytest.raises(InputError, match="is not empty"):
        write_tensorboard(TRAINING, tmp_path / "run")


def records_of(file: Path) -> Iterator[bytes]:
    """The records of a W&B file: a LevelDB log, 7 bytes of head, then blocks of 32 KiB."""
    block = 1 << 15
    data, place, record = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = block - place % block
        _, length, kind = struct.unpack("<IHB", data[place : place + 7]) if left >= 7 else (0, 0, 0)
        if kind == 0:
            place += left
            continue
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


@pytest.mark.prove
def test_weights_and_biases_reads_the_same_numbers_and_nothing_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    secret = "planted-c0ffee-and-nobody-s"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    written = write_wandb(TRAINING, tmp_path / "run", run_id="20270115T080000Z-abcdef", name="n", config={"seed": 7})
    (file,) = written.glob("*.wandb")
    records = [Record.FromString(data) for data in records_of(file)]
    history = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    assert [(row["_step"], row["train/loss"]) for row in history] == [(0, 3.0), (1, math.inf), (2, 1.25)]
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (run.project, run.run_id, run.git.remote_url) == ("bessemer", "20270115T080000Z-abcdef", "")
    assert ("seed", "7") in [(item.key, item.value_json) for item in run.config.update]
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert secret.encode() not in everything
    assert str(Path(__file__).parents[3]).encode() not in everything, "no place of this machine, no requirements"


def test_the_command_says_what_it_lacks(tmp_path: Path) -> None:
    reported = CliRunner().invoke(app, ["runs", "export-metrics", "--root", str(tmp_path)])
    assert reported.exit_code == 2
    assert "name the program" in reported.output
