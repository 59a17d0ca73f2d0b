"""Ranks that make steps in several layouts, of which the first of each stage write what they held and sent in the last.

Argument: folder with runs as 0.json, 1.json and so on. Rank R writes of run N the file N.rank-R there.
"""

import ctypes
import functools
import gc
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from model.config.train import TrainerRun, read_run
from model.distributed.process_group import join_process_group
from model.engines import make_engine
from model.engines.divided import DividedEngine
from model.engines.dry_layout import MessageCount
from model.nn.factory import make_shapes
from model.objectives.synthetic import random_batch
from model.optim.optimizers import optimizer_tensors
from model.optim.schedules import StepSchedule
from tests.model.forked_ranks import run_ranks


class InUse(ctypes.Structure):
    """`struct mallinfo2` of the C library: bytes in use are `uordblks`, and `hblkhd` of large blocks."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "_")
    ]


mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = InUse


def allocated() -> int:
    """Bytes that all threads of this process have allocated: PyTorch's tensors and gloo's buffers."""
    found = mallinfo()
    return found.uordblks + found.hblkhd


class MeasuredStep(MessageCount):
    peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = super().__torch_dispatch__(func, types, args, kwargs)
        self.peak = max(self.peak, allocated())
        return returned


def measure(folder: Path, runs: Sequence[tuple[int, TrainerRun]], size: int, rank: int) -> None:
    with join_process_group(rank, size, folder / f"meet-{size}") as ranks:
        for number, run in runs:
            engine = make_engine(run, make_shapes(run.model), ranks)
            assert isinstance(engine, DividedEngine)
            batch = random_batch(run.model, run.train.batch_rows).rows
            engine.step(batch, StepSchedule(1e-3))
            if rank % (size // run.train.pipeline_parallel):
                engine.step(batch, StepSchedule(1e-3))
                continue
            own = list(engine.network.parameters())
            moments = [one for each in own for one in optimizer_tensors(engine.optimizer, each).values() if one.dim()]
            weights, moments = ([getattr(one, "_local_tensor", one).nbytes for one in kind] for kind in (own, moments))
            gc.collect()
            before = allocated()
            with MeasuredStep() as step:
                engine.step(batch, StepSchedule(1e-3))
            state = {"weights": sum(weights), "optimizer": sum(moments)}
            found = {**state, "peak": sum(state.values()) + step.peak - before, "messages": asdict(step.found)}
            (folder / f"{number}.rank-{rank}").write_text(json.dumps(found))
            del engine, own


def main(folder: Path) -> None:
    runs = [(number, read_run(folder / f"{number}.json")) for number in range(len(list(folder.glob("*.json"))))]
    for size, alike in itertools.groupby(runs, lambda one: one[1].train.ranks):
        run_ranks(size, functools.partial(measure, folder, list(alike), size))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
