"""A training that continues another one's checkpoints, where its order begins with the same rows, gets the bits of one
from the first step."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from model.checkpoint.checkpoint import checkpoint_steps
from model.checkpoint.run_folder import EARLIER, REPLAY, lasting_steps
from model.checksummed_json import write_sealed
from model.config.train import TrainerRun
from model.data.dataset import SequenceReader
from model.train.replay import differing_positions
from model.train.trainer import train

EXACT_FILES = ("model.safetensors", "model.json", "steps.arrow", "metrics.arrow")
PAD, VOCABULARY = 3, 64


def files(run: TrainerRun) -> dict[str, bytes]:
    return {name: (run.out / "result" / name).read_bytes() for name in EXACT_FILES}


def kinds(run: TrainerRun) -> list[str]:
    with pa.OSFile(str(run.out / "result" / "events.arrow"), "rb") as source:
        return pa.ipc.open_file(source).read_all().column("kind").to_pylist()


@pytest.fixture
def others(make_run, write_sequences, write_order, tmp_path: Path):
    """A run of 20 steps, and one of other row numbers whose positions from 27 on are blank in part."""
    settings = {"positions": 40, "lasting_checkpoints": 4, "checkpoint_steps": 100}
    run = make_run("earlier", **settings)
    data = SequenceReader(run.sequences, run.order)
    rows = data.rows(0, 40)
    tokens = rows.tokens_BL[::-1].copy()
    tokens[[39 - 27, 39 - 30, 39 - 31]] = PAD
    starts = rows.loss_start_B[::-1].tolist()
    sequences = write_sequences(tmp_path / "other.arrow", tokens, loss_start=starts)
    order = write_order(tmp_path / "other-order.arrow", [39 - position for position in range(40)])
    return run, run.model_copy(update={"sequences": (sequences,), "order": order, "out": tmp_path / "later"})


def offer(earlier: TrainerRun, later: TrainerRun) -> None:
    shutil.copytree(earlier.out / "checkpoints", later.out / REPLAY)
    names = {"sequences": [str(path) for path in earlier.sequences], "order": str(earlier.order), "heldout": None}
    write_sealed(later.out / REPLAY / EARLIER, names)


def test_a_training_goes_on_from_the_last_checkpoint_before_its_order_differs(others) -> None:
    earlier, later = others
    train(earlier)
    assert {4, 8, 12, 16} <= set(checkpoint_steps(earlier.out / "checkpoints"))
    alone = later.model_copy(update={"out": later.out.with_name("alone")})
    train(alone)
    offer(earlier, later)
    train(later)
    assert files(later) == files(alone)
    assert files(later)["model.safetensors"] != files(earlier)["model.safetensors"]
    assert kinds(alone)[0] == "start"
    assert kinds(later) == ["start", "resume"]
    assert set(checkpoint_steps(later.out / "checkpoints")) >= {4, 8, 12, 16}


@pytest.mark.parametrize("changed", ["settings", "length", "first row"])
def test_checkpoints_of_another_training_are_left_alone(others, write_order, changed: str) -> None:
    earlier, later = others
    train(earlier)
    if changed == "settings":
        later = later.model_copy(update={"train": later.train.model_copy(update={"seed": 9})})
    elif changed == "length":
        order = write_order(later.out.with_name("short.arrow"), [39 - position for position in range(38)])
        later = later.model_copy(update={"order": order})
    else:
        order = write_order(later.out.with_name("first.arrow"), [0, *[39 - position for position in range(1, 40)]])
        later = later.model_copy(update={"order": order})
    alone = later.model_copy(update={"out": later.out.with_name("alone")})
    train(alone)
    offer(earlier, later)
    train(later)
    assert kinds(later) == ["start"]
    assert files(later) == files(alone)


def test_lasting_checkpoints_change_no_bit_and_no_other_checkpoint(make_run) -> None:
    plain = make_run("plain", positions=40, checkpoint_steps=3, keep_checkpoints=1)
    lasting = make_run("lasting", positions=40, checkpoint_steps=3, keep_checkpoints=1, lasting_checkpoints=4)
    train(plain)
    train(lasting)
    assert files(plain) == files(lasting)
    assert set(checkpoint_steps(lasting.out / "checkpoints")) >= {4, 8, 12, 16}


def test_equal_distances() -> None:
    assert lasting_steps(0, 100) == []
    assert lasting_steps(4, 20) == [4, 8, 12, 16]
    assert lasting_steps(9, 5) == [1, 2, 3, 4]


def test_rows_are_compared_by_content_unless_their_numbers_count(others) -> None:
    earlier, later = others
    one, other = (SequenceReader(run.sequences, run.order) for run in (earlier, later))

    def differing(left: SequenceReader, right: SequenceReader, by_number: bool) -> list[int]:
        return np.concatenate(list(differing_positions(left, right, by_number=by_number))).tolist()

    assert differing(one, other, by_number=False) == [27, 30, 31]
    assert differing(one, other, by_number=True) == list(range(40))
    assert differing(one, one, by_number=True) == []
    assert np.all(other.rows(30, 32).tokens_BL == PAD)
