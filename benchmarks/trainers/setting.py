"""What each trainer of the comparison is given, and how it prints what it took. NumPy and the standard library only."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

LEARNING_RATE, BETAS, EPS, CLIP = 6e-4, (0.9, 0.95), 1e-8, 1.0
"""GPT-3's for 124M parameters, without weight decay: trainers differ in what they decay."""


@dataclass(frozen=True)
class Setting:
    """One race. `rows.npz` in `folder` are arrays [steps * batch_rows, ...] by the names of a batch of Bessemer's,
    read in order; `ours` and `transformers` the first weights in both formats."""

    folder: str
    batch_rows: int
    warm: int
    """Steps that are not timed: compilation, first touches of memory."""
    timed: int
    dtype: str
    device: str
    threads: int
    dropout: float = 0.0

    @property
    def steps(self) -> int:
        """All steps."""
        return self.warm + self.timed

    def rows(self) -> dict[str, np.ndarray]:
        """Return all rows by the names of a batch."""
        return dict(np.load(Path(self.folder) / "rows.npz"))

    def batch(self, rows: dict[str, Any], step: int) -> dict[str, Any]:
        """Return the rows of a step."""
        return {name: values[step * self.batch_rows : (step + 1) * self.batch_rows] for name, values in rows.items()}


class Watch:
    """Seconds of the timed steps: processor time of all threads on a CPU, wall time on a GPU."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._times: list[float] = []
        self.losses: list[float] = []

    def step_done(self, loss: float) -> None:
        """Record the end of a step, and its loss as a number (which waits for a device)."""
        self.losses.append(loss)
        self._times.append(self._now())

    def report(self) -> None:
        """Print what the driver reads, as the last line."""
        taken = [b - a for a, b in pairwise(self._times[self._setting.warm - 1 :])]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if self._setting.device == "cuda":
            import torch

            peak = torch.cuda.max_memory_allocated()
        print(json.dumps({"seconds": sorted(taken)[len(taken) // 2], "losses": self.losses, "peak_bytes": peak}))

    def _now(self) -> float:
        return time.perf_counter() if self._setting.device == "cuda" else time.process_time()


def run_trainer(
    program: Path,
    words: Sequence[str],
    setting: Setting,
    python: str | Path = sys.executable,
    paths: Sequence[Path] = (),
) -> dict[str, Any]:
    """Run `program NAME SETTING ...`, of which `words` are the name and what follows the setting; return its report."""
    folder = Path(__file__).parent
    done = subprocess.run(
        [python, program, words[0], as_argument(setting), *words[1:]],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), *map(str, paths), os.environ.get("PYTHONPATH")])),
            "OMP_WAIT_POLICY": "passive",
        },
    )
    if done.returncode:
        raise SystemExit(f"{program.name} {words[0]} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def setting_from(argument: str) -> Setting:
    """Read the setting that the driver gave as JSON."""
    return Setting(**json.loads(argument))


def as_argument(setting: Setting) -> str:
    """Return the setting as JSON, which `setting_from` reads."""
    return json.dumps(asdict(setting))


def chosen() -> tuple[str, Setting]:
    """Return the contender's name and its setting, from the command line."""
    return sys.argv[1], setting_from(sys.argv[2])
