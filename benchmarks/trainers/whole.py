"""Bessemer's trainer as a run starts it, over the same rows: python whole.py (eager | compiled) SETTING

With the loader, the journal, the guard, the link to its launcher and checkpoints; of a GPT.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
from ours import train_config
from setting import Watch, chosen

from model.checkpoint.weights import load_model
from model.config.train import StartingModel, TrainerRun
from model.data.schema import ORDER, sequences_schema
from model.train import trainer as training
from model.train.trainer import StepLoop


def write(path: Path, table: pa.Table) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return path


def main() -> None:
    name, setting = chosen()
    tokens = setting.rows()["tokens_BL"]
    config = load_model(Path(setting.folder) / "ours").config
    # Rows are one shorter than the network's positions, since the peer's loss shifts within the rows it is given.
    training.check_rows = lambda data, run: None
    watch, step = Watch(setting), StepLoop._step

    def timed(loop: StepLoop, number: int) -> Any:
        done = step(loop, number)
        watch.step_done(0.0)
        return done

    StepLoop._step = timed
    with tempfile.TemporaryDirectory() as scratch:
        count, length = tokens.shape
        columns = {
            "row": pa.array(range(count), pa.int64()),
            "source": pa.array(["rows"] * count).dictionary_encode(),
            "tokens": pa.FixedSizeListArray.from_arrays(pa.array(tokens.astype(np.uint16).ravel()), length),
            "loss_start": pa.array([0] * count, pa.int32()),
        }
        rows = pa.table(columns).cast(sequences_schema(length, config.vocab_size, None))
        order = pa.table({"row": pa.array(range(count), pa.int64()), "epoch": pa.array([0] * count, pa.int16())})
        run = TrainerRun(
            sequences=(write(Path(scratch) / "rows.arrow", rows),),
            order=write(Path(scratch) / "order.arrow", order.cast(ORDER)),
            out=Path(scratch) / "out",
            # No token of the rows: nothing is padding.
            pad=config.vocab_size,
            tokenizer_digest="rows",
            model=config,
            train=train_config(name, setting),
            base=StartingModel(folder=Path(setting.folder) / "ours", tokenizer_digest="rows"),
        )
        with (Path(scratch) / "messages").open("w") as messages:
            result = training.train(run, messages=messages)
        with pa.OSFile(str(result / "metrics.arrow"), "rb") as source:
            watch.losses = pyarrow.ipc.open_file(source).read_all()["loss"].to_pylist()
    watch.report()


main()
