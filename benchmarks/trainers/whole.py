"""Bessemer's trainer as a run starts it, over the same rows: python whole.py NAME SETTING [OUT [SHARE]]

NAME is eager, compiled, or compiled_fast: without determinism. With the loader, the journal, the guard, the link to its
launcher and checkpoints; of a GPT. With OUT it is not timed: it trains into that folder, from its newest checkpoint,
and up to SHARE of the steps where one is given.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import json
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
from ours import train_config
from setting import Setting, Watch, chosen

from benchmarks.rows import write_rows
from model.checkpoint.weights import load_model
from model.config.train import StartingModel, TrainerRun
from model.errors import Paused
from model.train import trainer as training
from model.train.loop import Callback, Step


def run_of(name: str, setting: Setting, scratch: Path, out: Path, pause: float | None) -> TrainerRun:
    """Write rows and order of a race to files, and return its run."""
    config = load_model(Path(setting.folder) / "ours").config
    sequences, order = write_rows(scratch, setting.rows()["tokens_BL"], config.vocab_size)
    return TrainerRun(
        sequences=(sequences,),
        order=order,
        out=out,
        # No token of the rows: nothing is padding.
        pad=config.vocab_size,
        tokenizer_digest="rows",
        model=config,
        train=train_config(name, setting).model_copy(update={"pause_share": pause}),
        base=StartingModel(folder=Path(setting.folder) / "ours", tokenizer_digest="rows"),
    )


class Watching(Callback):
    """Notes the time after each step."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def after_step(self, step: Step) -> None:
        del step
        self._watch.step_done(0.0)


def main() -> None:
    name, setting = chosen()
    # Rows are one shorter than the network's positions, since the peer's loss shifts within the rows it is given.
    training.check_rows = lambda data, run: None
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if len(sys.argv) > 3:
            pause = float(sys.argv[4]) if len(sys.argv) > 4 else None
            with suppress(Paused):
                training.train(run_of(name, setting, scratch, Path(sys.argv[3]), pause))
            print(json.dumps({}))
            return
        watch = Watch(setting)
        run = run_of(name, setting, scratch, scratch / "out", None)
        with (scratch / "messages").open("w") as messages:
            result = training.train(run, messages=messages, callbacks=[Watching(watch)])
        with pa.OSFile(str(result / "metrics.arrow"), "rb") as source:
            watch.losses = pyarrow.ipc.open_file(source).read_all()["loss"].to_pylist()
    watch.report()


main()
