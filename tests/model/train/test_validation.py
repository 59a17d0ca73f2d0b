"""Validation: the scores of the network as it is, without changing a bit of the training."""

import io
import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest

from model.checkpoint.metrics import MetricsLog, table_file
from model.checkpoint.weights import load_model
from model.config.train import TrainConfig, TrainerRun
from model.data.schema import VALIDATION
from model.distributed.process_group import SINGLE_PROCESS
from model.engines import make_engine
from model.errors import InputError
from model.inference.scoring import text_nats
from model.nn.gpt import GPT
from model.train import validation
from model.train.initial_weights import initial_network
from model.train.trainer import train
from model.train.validation import MOST_TOKENS, TEXT_BYTES, validation_interval

VOCABULARY, CONTEXT = 48, 16
TABLES = ("model.safetensors", "steps.arrow", "metrics.arrow")


def heldout(folder: Path, sources: list[str], seed: int = 5, text: int = CONTEXT + 1, pad: int = 0) -> Path:
    """Random rows of these sources, of two bytes a token and `text` tokens each."""
    tokens = np.random.Generator(np.random.Philox(seed)).integers(4, VOCABULARY, (len(sources), CONTEXT + 1))
    tokens[:, text:] = pad
    flat = pa.array(tokens.astype(np.uint16).ravel())
    table = pa.table(
        {
            "row": pa.array(range(len(sources)), pa.int64()),
            "source": pa.array(sources).dictionary_encode(),
            "tokens": pa.FixedSizeListArray.from_arrays(flat, CONTEXT + 1),
            "loss_start": pa.array([0] * len(sources), pa.int32()),
            TEXT_BYTES: pa.array([2 * CONTEXT] * len(sources), pa.int64()),
        }
    )
    path = folder / "heldout.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return path


def with_looks(run: TrainerRun, path: Path | None, out: str, **settings: int | None) -> TrainerRun:
    reported = run.train.model_copy(update={"validation_steps": 5, **settings})
    return run.model_copy(update={"heldout": path, "out": run.out.parent / out, "train": reported})


def rows_of(result: Path) -> list[dict]:
    with pa.OSFile(str(result / table_file("validation")), "rb") as source:
        return pa.ipc.open_file(source).read_all().to_pylist()


def test_looks_change_no_bit_of_training(make_run, tmp_path: Path) -> None:
    run = make_run()
    assert run.train.batch_rows < 5
    path = heldout(tmp_path, ["b"] * 3 + ["a"] * 5)
    plain = train(run)
    looked = train(with_looks(run, path, "looked"))
    for name in TABLES:
        assert (plain / name).read_bytes() == (looked / name).read_bytes()
    assert rows_of(plain) == []
    reported = rows_of(looked)
    assert [(row["step"], row["source"], row["rows"]) for row in reported] == [
        (step, source, count) for step in (4, 9, 11) for source, count in (("a", 5), ("b", 3))
    ]
    again = train(with_looks(run, path, "again"))
    assert (again / "validation.arrow").read_bytes() == (looked / "validation.arrow").read_bytes()


def test_a_text_is_written_at_each_look_within_its_share_of_the_time(make_run, tmp_path: Path) -> None:
    run = with_looks(make_run(), heldout(tmp_path, ["a"] * 4), "looked")
    messages = io.StringIO()
    train(run, messages=messages)
    sent = [json.loads(line) for line in messages.getvalue().splitlines()]
    looks = [message for message in sent if message["kind"] == "validation"]
    assert [(look["step"], [row["source"] for row in look["rows"]]) for look in looks] == [
        (n, ["a"]) for n in (5, 10, 12)
    ]
    texts = [message for message in sent if message["kind"] == "sample"]
    assert [text["step"] for text in texts] == [5, 10, 12]
    row = np.random.Generator(np.random.Philox(5)).integers(4, VOCABULARY, (4, CONTEXT + 1))[0].tolist()
    assert all(text["prompt"] == row[: len(text["prompt"])] for text in texts)
    assert len({len(text["prompt"]) for text in texts}) == 1
    assert all(0 < len(text["tokens"]) <= MOST_TOKENS for text in texts)


def test_a_text_ends_when_its_share_of_the_time_is_used_up(make_run, tmp_path: Path, monkeypatch) -> None:
    """The clock goes on by a second with each look at it; after 1,000 s the text may take 8 s, so it has 8 tokens."""
    run = with_looks(make_run(), heldout(tmp_path, ["a"] * 4), "looked")
    clock = iter([0, *range(1000, 2000)])
    monkeypatch.setattr(validation, "monotonic", lambda: float(next(clock)))
    writer = validation.LiveSample(run.model_copy(update={"eos": -1}))
    engine = make_engine(run, initial_network(run, resumes=False).network, SINGLE_PROCESS)
    written = writer.write(engine)
    assert written is not None
    assert len(written[1]) == 8


def test_a_text_begins_with_no_padding(make_run, tmp_path: Path) -> None:
    run = make_run()
    run = with_looks(run, heldout(tmp_path, ["a"] * 2, text=3, pad=run.pad), "looked")
    engine = make_engine(run, initial_network(run, resumes=False).network, SINGLE_PROCESS)
    written = validation.LiveSample(run).write(engine)
    assert written is not None
    assert len(written[0]) == 3
    assert run.pad not in written[0]


def test_the_last_look_is_the_loss_of_the_finished_network(make_run, tmp_path: Path) -> None:
    run = make_run()
    path = heldout(tmp_path, ["a"] * 4)
    result = train(with_looks(run, path, "looked", validation_rows=3))
    with pa.OSFile(str(path), "rb") as source:
        tokens = pa.ipc.open_file(source).read_all().column("tokens").to_pylist()[:3]
    network = load_model(result, run.tokenizer_digest)
    assert isinstance(network, GPT)
    nats = sum(text_nats(network, [row[1:]], row[0])[0] for row in tokens)
    last = rows_of(result)[-1]
    assert (last["rows"], last["predictions"]) == (3, 3 * CONTEXT)
    assert last["nats_per_token"] == pytest.approx(nats / (3 * CONTEXT), rel=1e-5)
    assert last["bits_per_byte"] == pytest.approx(nats / math.log(2) / (3 * 2 * CONTEXT), rel=1e-5)


def test_after_a_prefix_the_bytes_of_what_is_predicted_are_unknown(make_run, tmp_path: Path) -> None:
    run = make_run()
    run = run.model_copy(update={"model": run.model.model_copy(update={"attention": "prefix"})})
    last = rows_of(train(with_looks(run, heldout(tmp_path, ["a"] * 4), "looked")))[-1]
    assert 0 < last["predictions"] < 4 * CONTEXT
    assert last["nats_per_token"] > 0
    assert last["bits_per_byte"] is None


def test_dropout_is_off_in_a_look_and_on_again_behind_it(make_run, tmp_path: Path) -> None:
    run = make_run()
    run = run.model_copy(update={"model": run.model.model_copy(update={"dropout": 0.3})})
    path = heldout(tmp_path, ["a"] * 4)
    plain, looked = train(with_looks(run, path, "plain", validation_steps=1000)), train(with_looks(run, path, "looked"))
    for name in TABLES:
        assert (plain / name).read_bytes() == (looked / name).read_bytes()
    assert rows_of(plain)[-1] == rows_of(looked)[-1]


def test_without_held_out_rows_a_look_is_refused(make_run) -> None:
    with pytest.raises(InputError, match="no text was held out"):
        train(with_looks(make_run(), None, "looked"))


@pytest.mark.parametrize(
    ("given", "positions", "steps", "rows", "interval"),
    [
        (None, 10_000, 1000, 16, 50),  # twenty
        (None, 7000, 1750, 80, 350),  # 6% of 7,000 rows are five times 80
        (None, 1000, 1000, 80, None),  # not even once
        (None, 10_000, 1000, 0, None),  # nothing was held out
        (7, 1000, 1000, 80, 7),
        (0, 10_000, 1000, 16, None),
    ],
)
def test_the_interval_by_default_costs_little(
    given: int | None, positions: int, steps: int, rows: int, interval: int | None
) -> None:
    assert validation_interval(TrainConfig(validation_steps=given), positions, steps, rows) == interval


def test_by_default_held_out_rows_are_looked_at_without_changing_a_bit(make_run, tmp_path: Path) -> None:
    run = make_run(positions=72)
    path = heldout(tmp_path, ["a"])
    plain = train(with_looks(run, path, "plain", validation_steps=0))
    looked = train(with_looks(run, path, "looked", validation_steps=None))
    for name in TABLES:
        assert (plain / name).read_bytes() == (looked / name).read_bytes()
    assert rows_of(plain) == []
    assert [row["step"] for row in rows_of(looked)] == [8, 17, 26, 35]  # four times one row are 6% of 72


def test_a_journal_of_an_earlier_version_has_no_looks(tmp_path: Path) -> None:
    journal = MetricsLog()
    journal.add("validation", step=0, source="a", rows=1, predictions=2, nats_per_token=1.0, bits_per_byte=None)
    journal.write(tmp_path)
    assert MetricsLog.read(tmp_path).tables()["validation"].num_rows == 1
    (tmp_path / "validation.arrow").unlink()
    assert MetricsLog.read(tmp_path).tables()["validation"] == VALIDATION.empty_table()


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="native"),
        pytest.param({"engine": "fsdp"}, id="fsdp"),
        pytest.param({"tensor_parallel": 2}, id="tensor", marks=pytest.mark.prove),
        pytest.param({"pipeline_parallel": 2}, id="pipeline"),
        pytest.param({"engine": "deepspeed", "zero_stage": 1}, id="zero-1", marks=pytest.mark.prove),
        pytest.param({"engine": "deepspeed", "zero_stage": 3}, id="zero-3", marks=pytest.mark.prove),
    ],
)
def test_two_ranks_look_together_and_see_what_one_sees(
    make_run, launch, tmp_path: Path, settings: dict[str, object]
) -> None:
    path = heldout(tmp_path, ["b"] * 3 + ["a"] * 5)
    alone = train(with_looks(make_run(), path, "alone"))
    two = make_run(ranks=2, **settings)
    results = []
    for run in (two, with_looks(two, path, "together")):
        trainer = launch(run)
        _, err = trainer.communicate(timeout=300)
        assert trainer.returncode == 0, err
        results.append(run.out / "result")
    plain, looked = results
    for name in TABLES:
        assert (plain / name).read_bytes() == (looked / name).read_bytes()
    assert len(rows_of(looked)) == len(rows_of(alone)) == 6
    for one, other in zip(rows_of(alone), rows_of(looked), strict=True):
        assert one["nats_per_token"] == pytest.approx(other["nats_per_token"], rel=1e-4)
        assert (one["source"], one["predictions"]) == (other["source"], other["predictions"])
