"""A training in a folder of its own: its rows, its small disk, its processes, and how far it is."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.proofs import PROJECT, mounted, project_environment
from benchmarks.rows import write_rows
from model.config.network import GPTConfig
from model.config.options import ScheduleConfig
from model.config.train import TrainConfig, TrainerRun
from model.distributed.heartbeat import Beat, read_beat

LAYOUTS: dict[str, dict[str, str | int]] = {
    "data": {"ranks": 2},
    "fsdp": {"ranks": 2, "engine": "fsdp"},
    "tensor-pipeline": {"ranks": 4, "tensor_parallel": 2, "pipeline_parallel": 2},
}
"""Settings of the training, by the layout's name."""
BATCH_ROWS = 4
CHECKPOINT_STEPS = 10
CONTEXT, FLOW_CONTEXT = 32, 64
VOCABULARY = 256
ROWS = 4096
DISK_BYTES = 2 << 30
LAUNCH = Path(__file__).with_name("launch.py")


def followed_tokens() -> np.ndarray:
    """Return rows in which most tokens follow from the one before, i64[ROWS, CONTEXT + 1]."""
    random = np.random.default_rng(11)
    tokens = np.empty((ROWS, CONTEXT + 1), np.int64)
    tokens[:, 0] = random.integers(4, VOCABULARY, ROWS)
    for place in range(CONTEXT):
        followed = (5 * tokens[:, place] + 17) % (VOCABULARY - 4) + 4
        strayed = random.integers(4, VOCABULARY, ROWS)
        tokens[:, place + 1] = np.where(random.random(ROWS) < 0.8, followed, strayed)
    return tokens


@dataclass(frozen=True)
class Processes:
    """Process ids of what runs now; None or fewer where something has just died."""

    launcher: int | None
    supervisor: int | None
    ranks: list[int]
    server: int | None = None
    """Prefect's, in a flow."""


class World:
    """One training, to be disturbed or not."""

    def __init__(self, folder: Path, steps: int, width: int, layout: str, *, small_disk: bool) -> None:
        self.folder = folder
        self.steps = steps
        self.layout = LAYOUTS[layout] | {"micro_batch_rows": BATCH_ROWS // int(LAYOUTS[layout]["ranks"])}
        self.model = GPTConfig(vocab_size=VOCABULARY, context=CONTEXT, layers=6, heads=6, width=width)
        folder.mkdir(parents=True, exist_ok=True)
        self.disk = folder / "disk"
        self.disk.mkdir(exist_ok=True)
        self.has_disk = small_disk and mounted(self.disk, DISK_BYTES)
        self.run_file = folder / "run.json"
        self._automation: subprocess.Popen[bytes] | None = None
        self.prepare()

    @property
    def out(self) -> Path:
        """Folder of checkpoints and of the result."""
        return self.disk / "out"

    def logs(self) -> bytes:
        """Return the log of all trainers so far."""
        log = self.folder / "train.log"
        return log.read_bytes() if log.exists() else b""

    def results(self) -> dict[str, Path]:
        """Return by name the files to compare in the end: the result, and the optimizer of the last checkpoint."""
        names = ("model.safetensors", "model.json", "metrics.arrow", "steps.arrow")
        moments = list(self.checkpoints()[-1].glob("optimizer*"))
        return {path.name: path for path in [*(self.out / "result" / name for name in names), *moments]}

    def prepare(self) -> None:
        """Write what training reads, where that was not done before."""
        if self.run_file.exists():
            return
        self.out.mkdir(exist_ok=True)
        read = [position % ROWS for position in range(self.steps * BATCH_ROWS)]
        sequences, order = write_rows(self.folder, followed_tokens(), VOCABULARY, read)
        settings = {
            "threads": 1,
            "batch_rows": BATCH_ROWS,
            "checkpoint_steps": CHECKPOINT_STEPS,
            "schedule": ScheduleConfig(peak_lr=3e-4, end_lr=3e-5),
            "hang_seconds": 15,
            "start_seconds": 240,
            "restarts": {"pause_seconds": 0.5},
        }
        run = TrainerRun(
            sequences=(sequences,),
            order=order,
            out=self.out,
            pad=3,
            tokenizer_digest="none",
            model=self.model,
            train=TrainConfig.model_validate(settings | self.layout),
        )
        self.run_file.write_text(run.model_dump_json(indent=1))

    def command(self) -> list[str]:
        """Return the arguments of `launch.py`, which runs the training and starts again what is killed."""
        return ["automation", str(self.run_file), str(self.folder / "train.log"), str(os.getpid())]

    def start(self) -> None:
        """Start the training as a flow would be; from here on nobody but the product starts anything again."""
        with (self.folder / "launch.log").open("ab") as log:
            self._automation = subprocess.Popen(
                [sys.executable, str(LAUNCH), *self.command()],
                cwd=PROJECT,
                env=project_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        """End all processes; what is reached stays."""
        if self._automation is not None:
            self._automation.kill()
            self._automation.wait()
        if self.has_disk:
            # The last processes die with the automation, but not within the same instant.
            subprocess.run(["umount", "--lazy", str(self.disk)], check=True)

    def code(self) -> int | None:
        """Return the exit code of the training, None while it runs."""
        return None if self._automation is None else self._automation.poll()

    def processes(self) -> Processes:
        """Find the processes below the automation."""
        launcher, supervisor, ranks, server = None, None, [], None
        below: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            below = psutil.Process(self._automation.pid).children(recursive=True) if self._automation else []
        for process in below:
            with suppress(psutil.Error):
                words, name = process.cmdline(), process.name()
                if "task" in words or "flows.cli" in words:
                    launcher = process.pid
                elif "flows.service.local_server" in words:
                    server = process.pid
                elif "model.train" in words:
                    supervisor = process.pid
                elif name.startswith(("rank ", "diag ")):
                    ranks.append((int(name.split()[1]), process.pid))
        return Processes(launcher, supervisor, [pid for _, pid in sorted(ranks)], server)

    def beats(self) -> list[Beat]:
        """Return the heartbeats of the ranks that train."""
        try:
            files = sorted(self.out.glob("ranks-*/rank-*.beat"))
        except FileNotFoundError:  # The folder of a start goes with it, perhaps while it is looked through.
            return []
        return [beat for beat in map(read_beat, files) if beat is not None]

    def step(self) -> int:
        """Return the number of steps that are made, 0 where no rank trains."""
        return max((beat.step for beat in self.beats()), default=0)

    def starts(self) -> list[int]:
        """Return the steps from which ranks have trained, in order."""
        lines = [line for line in self.logs().split(b"\n") if line.startswith(b'{"kind": "start"')]
        return [json.loads(line)["step"] for line in lines]

    def count(self, event: str) -> int:
        """Return how many events of this kind the log holds."""
        return self.logs().count(f'"event": "{event}"'.encode())

    def checkpoints(self) -> list[Path]:
        """Return the folders of the complete checkpoints, oldest first."""
        return sorted(path.parent for path in (self.out / "checkpoints").glob("step-*/COMPLETE"))

    def is_saving(self) -> bool:
        """Return whether a checkpoint is being written."""
        return any((self.out / "checkpoints").glob("tmp-0*"))


class FlowWorld(World):
    """The same by `bessemer run`: the demo's text, trained to by the flow's own stages."""

    @property
    def _flow(self) -> list[str]:
        settings = {
            "budget_tokens": self.steps * BATCH_ROWS * FLOW_CONTEXT,
            "train.model.layers": self.model.layers,
            "train.model.heads": self.model.heads,
            "train.model.width": self.model.width,
            "train.model.context": FLOW_CONTEXT,
            **{f"train.{name}": value for name, value in self.layout.items()},
            "train.threads": 1,
            "train.batch_rows": BATCH_ROWS,
            "train.checkpoint_steps": CHECKPOINT_STEPS,
            "train.schedule.peak_lr": 3e-4,
            "train.schedule.end_lr": 3e-5,
            "train.hang_seconds": 15,
            "train.start_seconds": 240,
            "train.restarts.pause_seconds": 0.5,
        }
        sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        return [sys.executable, "-m", "flows.cli", "run", "quickstart", "--root", str(self.folder / "root"), *sets]

    @property
    def out(self) -> Path:
        """Where the build is that is under way."""
        return max((self.folder / "root" / "work").glob("*/scratch/train"), default=self.folder / "root" / "none")

    def logs(self) -> bytes:
        """Return the training logs of all runs, in their order."""
        return b"".join(log.read_bytes() for log in sorted((self.folder / "root" / "runs").glob("*/train.log")))

    def results(self) -> dict[str, Path]:
        """Return the artifact's own files by name."""
        names = ("model.safetensors", "model.json", "metrics.arrow", "steps.arrow")
        (artifact,) = (self.folder / "root" / "artifacts" / "train").glob("*")
        return {name: artifact / name for name in names}

    def prepare(self) -> None:
        """Run the stages before training, to which no fault is done."""
        command = [*self._flow, "--until", "chunk"]
        subprocess.run(command, cwd=PROJECT, env=project_environment(), check=True, capture_output=True)

    def command(self) -> list[str]:
        """Return the arguments of `launch.py`, which runs the flow and starts it again where it is killed."""
        return ["flow", str(os.getpid()), *self._flow, "--until", "train"]
