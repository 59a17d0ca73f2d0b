"""Killed from outside at seeded times and started again, a training ends with the bytes of an undisturbed one."""

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from model.checkpoint.checkpoint import checkpoint_steps
from model.checkpoint.run_folder import checkpoint_folder
from model.config.train import TrainerRun
from tests.model.rank_processes import rank_processes

pytestmark = pytest.mark.prove_resume

NAME = "exact resume"
PROJECT = Path(__file__).resolve().parents[2]
ENGINES = {
    "native": {},
    "FSDP": {"engine": "fsdp", "ranks": 2},
    "ZeRO-1": {"engine": "deepspeed", "zero_stage": 1, "ranks": 2},
    "ZeRO-2": {"engine": "deepspeed", "zero_stage": 2, "ranks": 2},
    "ZeRO-3": {"engine": "deepspeed", "zero_stage": 3, "ranks": 2},
}
STEPS, CHECKPOINT_STEPS = 60, 5
LAST = STEPS - 3 * CHECKPOINT_STEPS
"""Checkpoint behind which the last kill may come."""
KILLS = 2
MOST_STARTS = 12
RESULT = ("model.safetensors", "metrics.arrow", "steps.arrow")
CLOCKS = ("perf.arrow", "events.arrow", "COMPLETE")
"""Files of a checkpoint that hold clocks, or their digests."""


@dataclass
class Trainer:
    """A trainer as a process, and what it has printed so far."""

    run: TrainerRun
    printed: list[tuple[float, dict]] = field(default_factory=list)

    def __post_init__(self) -> None:
        file = self.run.out.with_suffix(".json")
        file.write_text(self.run.model_dump_json())
        self.errors = self.run.out.with_suffix(".err")
        with self.errors.open("a") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "model.train", str(file)],
                cwd=PROJECT,
                stdout=subprocess.PIPE,
                stderr=stream,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                self.printed.append((time.monotonic(), json.loads(line)))

    def when(self, kind: str) -> float | None:
        """When something was printed first."""
        return next((at for at, message in self.printed if message["kind"] == kind), None)

    def count(self, kind: str) -> int:
        """How often something was printed."""
        return sum(message["kind"] == kind for _, message in self.printed)

    def newest_checkpoint(self) -> int:
        """The last step after which one exists, as far as was printed; 0 before the first."""
        return max(
            (message["step"] for _, message in self.printed if message["kind"] in ("start", "checkpoint")), default=0
        )

    def wait(self, true: Callable[[], bool], seconds: float = 300.0) -> bool:
        """Whether it became true before the trainer ended."""
        deadline = time.monotonic() + seconds
        while not true():
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < deadline, f"waited {seconds} s in vain"
            time.sleep(0.001)
        return True

    def ends(self) -> int:
        code = self.process.wait(timeout=300)
        self._reader.join()
        return code

    def kill(self, draw: random.Random) -> str:
        """SIGKILL to it, or to one of its ranks."""
        pid = self.process.pid
        victim = draw.choice([pid, *(process.pid for process in rank_processes(pid))])
        subprocess.run(["kill", "-KILL", str(victim)], check=False)
        return "all" if victim == pid else "a rank"


def bytes_of(run: TrainerRun) -> dict[str, bytes]:
    """All that must be equal: the result, and the last checkpoint with its optimizer's state."""
    (*_, last) = checkpoint_steps(run.out / "checkpoints")
    folder = checkpoint_folder(run.out / "checkpoints", last)
    files = [run.out / "result" / name for name in RESULT]
    files += [path for path in sorted(folder.iterdir()) if path.name not in CLOCKS]
    return {str(path.relative_to(run.out)): path.read_bytes() for path in files}


def disturbed(run: TrainerRun, interval: float, draw: random.Random) -> list[str]:
    """Train to the end through `KILLS` kills; returns where they hit.

    Each comes within the `interval` that lies between two checkpoints, behind a drawn one: by the clock alone it would
    miss on a machine that gets less busy.
    """
    behind = sorted(draw.sample(range(0, LAST, CHECKPOINT_STEPS), KILLS))
    hits: list[str] = []
    for _ in range(MOST_STARTS):
        trainer, starts = Trainer(run), 0
        while len(hits) < KILLS:
            # The trainer may start its ranks again by itself.
            if not trainer.wait(lambda t=trainer, seen=starts: t.count("start") > seen):
                break
            starts = trainer.count("start")
            aim = behind[len(hits)]
            if not trainer.wait(lambda t=trainer, aim=aim: t.newest_checkpoint() >= aim):
                break
            # Sooner where the machine got less busy, so that training does not end before it.
            late, reached = time.monotonic() + draw.uniform(0, interval), trainer.newest_checkpoint()
            trainer.wait(lambda t=trainer, at=late, n=reached: time.monotonic() > at or t.newest_checkpoint() > n)
            if trainer.process.poll() is None and not trainer.count("done"):
                hits.append(f"{trainer.kill(draw)} behind checkpoint {trainer.newest_checkpoint()}")
        if trainer.ends() == 0:
            return hits
    raise AssertionError(f"not done after {MOST_STARTS} starts: {trainer.errors.read_text()[-2000:]}")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("architecture", ["gpt", "bert", "t5"])
def test_the_bytes_are_those_of_an_undisturbed_run(
    proof: Callable, small_run: Callable, architecture: str, engine: str
) -> None:
    tally = proof(NAME)
    case = f"{architecture} {engine}"
    if case in tally.done:
        pytest.skip("done before")
    if tally.out_of_time:
        pytest.skip("left for another call")
    began = time.monotonic()
    settings = {"positions": 4 * STEPS, "batch_rows": 4, "checkpoint_steps": CHECKPOINT_STEPS, **ENGINES[engine]}
    whole = Trainer(small_run(architecture, "whole", **settings))
    assert whole.ends() == 0, whole.errors.read_text()[-2000:]
    start, done = whole.when("start"), whole.when("done")
    assert start is not None
    assert done is not None
    run = small_run(architecture, "killed", **settings)
    hits = disturbed(run, (done - start) * CHECKPOINT_STEPS / STEPS, random.Random(case))
    expected, found = bytes_of(whole.run), bytes_of(run)
    different = [name for name in expected | found if expected.get(name) != found.get(name)]
    missed = f"different: {different}" if different else "" if len(hits) == KILLS else f"only {len(hits)} kills hit"
    tally.add(case, missed, time.monotonic() - began, hits=hits, compared=sorted(expected))
    assert not missed, missed
