"""For how long training pauses at a checkpoint: while it is written, or while its tensors are copied.

    python benchmarks/checkpoint_stall.py [--width N] [--layers N] [--turns N] [--folder PATH]

A GPT with AdamW takes a step, writes a checkpoint and waits for it, takes a step, and writes one beside the next steps,
in turns. Medians of seconds by the wall clock, and of processor time of the training's own thread; shares are of
`checkpoint_steps` = 50 steps.
"""

import os
import shutil
import statistics
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch

from benchmarks.rows import run_without_rows
from model.checkpoint.metrics import MetricsLog
from model.checkpoint.state import CheckpointState
from model.checkpoint.writer import CheckpointWriter
from model.config.network import GPTConfig
from model.config.train import TrainConfig
from model.data.loader import CausalBatch
from model.distributed.process_group import SINGLE_PROCESS
from model.engines.native import NativeEngine
from model.nn.factory import make_network, parameter_count
from model.optim.schedules import StepSchedule

PIECES, CONTEXT, ROWS = 8192, 256, 16
CHECKPOINT_STEPS = 50


class Clock:
    """Seconds of repeated work, by the wall and of this thread."""

    def __init__(self) -> None:
        self._wall: list[float] = []
        self._thread: list[float] = []

    def time(self, work: Callable[[], object]) -> None:
        began, used = time.perf_counter(), time.thread_time()
        work()
        self._wall.append(time.perf_counter() - began)
        self._thread.append(time.thread_time() - used)

    @property
    def wall(self) -> float:
        return statistics.median(self._wall)

    @property
    def thread(self) -> float:
        return statistics.median(self._thread)


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    config = GPTConfig(vocab_size=PIECES, context=CONTEXT, layers=chosen.layers, heads=5, width=chosen.width)
    train = TrainConfig(batch_rows=ROWS, micro_batch_rows=ROWS // 2, threads=chosen.threads)
    engine = NativeEngine(run_without_rows(config, train, pad=3), make_network(config).initialise(1), SINGLE_PROCESS)
    draw = torch.Generator().manual_seed(1)

    def step() -> None:
        tokens = torch.randint(4, PIECES, (ROWS, CONTEXT + 1), generator=draw)
        engine.step(CausalBatch(tokens, torch.zeros(ROWS, dtype=torch.int64)), StepSchedule(1e-4))

    folder = Path(tempfile.mkdtemp(dir=chosen.folder))
    steps, waiting, beside = Clock(), Clock(), Clock()
    step()
    try:
        with CheckpointWriter(folder, SINGLE_PROCESS) as writer:
            journal = MetricsLog()

            def save(waits: bool) -> None:
                for _ in range(CHECKPOINT_STEPS):
                    at = journal.count("steps")
                    journal.add("steps", step=at, pos_start=at, pos_end=at + 1, row_pieces=1, applied=True)
                writer.save(journal.count("steps"), engine, journal, cast(CheckpointState, {}), 2)
                if waits:
                    writer.finish()

            # The first one takes fresh memory for the copies.
            save(waits=True)
            for _ in range(chosen.turns):
                for clock, waits in ((waiting, True), (beside, False)):
                    steps.time(step)
                    clock.time(lambda waits=waits: save(waits))
                    writer.finish()
    finally:
        shutil.rmtree(folder)
    print(f"{parameter_count(config) / 1e6:.1f}M parameters, load {os.getloadavg()[0]:.1f}")
    print(f"a step: {steps.wall:.3f} s, {steps.thread:.3f} s of its thread")
    for name, clock in (("waiting until it is written", waiting), ("written beside", beside)):
        wall, thread = clock.wall / steps.wall / CHECKPOINT_STEPS, clock.thread / steps.thread / CHECKPOINT_STEPS
        print(f"{name}: {clock.wall:.3f} s ({wall:.3%}), {clock.thread:.3f} s of the thread ({thread:.3%})")


if __name__ == "__main__":
    main()
