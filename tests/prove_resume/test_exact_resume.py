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

from model.checkpoint import checkpoint_folder, standing_steps
from model.config import TrainerRun

pytestmark = pytest.mark.prove_resume

NAME = "exact resume"
PROJECT = Path(__file__).resolve().parents[2]
ENGINES = {
    "native": {},
    "ZeRO-1": {"engine": "deepspeed", "zero_stage": 1, "ranks": 2},
    "ZeRO-2": {"engine": "deepspeed", "zero_stage": 2, "ranks": 2},
    "ZeRO-3": {"engine": "deepspeed", "zero_stage": 3, "ranks": 2},
}
KILLS = 3
MOST_STARTS = 12
RESULT = ("model.safetensors", "metrics.arrow", "steps.arrow")
CLOCKS = ("perf.arrow", "events.arrow", "COMPLETE")
"""Files of a checkpoint that hold clocks, or their digests."""


@dataclass
class Trainer:
    """A trainer as a process, and what it has told so far."""

    run: TrainerRun
    told: list[tuple[float, dict]] = field(default_factory=list)

    def __post_init__(self) -> None:
        file = self.run.out.with_suffix(".json")
        file.write_text(self.run.model_dump_json())
        self.errors = self.run.out.with_suffix(".err")
        with self.errors.open("a") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "model.train", str(file)], cwd=PROJECT, stdout=subprocess.PIPE, stderr=stream
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                self.told.append((time.monotonic(), json.loads(line)))

    def when(self, kind: str) -> float | None:
        """When something was told first."""
        return next((at for at, message in self.told if message["kind"] == kind), None)

    def count(self, kind: str) -> int:
        """How often something was told."""
        return sum(message["kind"] == kind for _, message in self.told)

    def newest_checkpoint(self) -> int:
        """The last step after which one was told to stand; 0 before the first."""
        return max((message["step"] for _, message in self.told if message["kind"] == "checkpoint"), default=0)

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
        ranks = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        victim = draw.choice(["all", *ranks])
        if victim == "all":
            self.process.kill()
            return "all"
        subprocess.run(["kill", "-KILL", victim], check=False)
        return "a rank"


def bytes_of(run: TrainerRun) -> dict[str, bytes]:
    """All that must be equal: the result, and the last checkpoint with its optimizer's state."""
    (*_, last) = standing_steps(run.out / "checkpoints")
    folder = checkpoint_folder(run.out / "checkpoints", last)
    files = [run.out / "result" / name for name in RESULT]
    files += [path for path in sorted(folder.iterdir()) if path.name not in CLOCKS]
    return {str(path.relative_to(run.out)): path.read_bytes() for path in files}


def disturbed(run: TrainerRun, seconds: float, draw: random.Random) -> list[str]:
    """Train to the end through `KILLS` kills, each within the `seconds` that training takes; returns where they hit."""
    hits: list[str] = []
    for _ in range(MOST_STARTS):
        trainer, starts = Trainer(run), 0
        # The trainer may start its ranks again by itself.
        while len(hits) < KILLS and trainer.wait(lambda trainer=trainer, seen=starts: trainer.count("start") > seen):
            starts = trainer.count("start")
            time.sleep(draw.uniform(0, seconds / 2))
            if trainer.process.poll() is None and not trainer.count("done"):
                hits.append(f"{trainer.kill(draw)} after checkpoint {trainer.newest_checkpoint()}")
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
    whole = Trainer(small_run(architecture, "whole", **ENGINES[engine]))
    assert whole.ends() == 0, whole.errors.read_text()[-2000:]
    start, done = whole.when("start"), whole.when("done")
    assert start is not None
    assert done is not None
    run = small_run(architecture, "killed", **ENGINES[engine])
    hits = disturbed(run, done - start, random.Random(case))
    expected, found = bytes_of(whole.run), bytes_of(run)
    different = [name for name in expected | found if expected.get(name) != found.get(name)]
    missed = f"different: {different}" if different else "" if hits else "it ended before it could be killed"
    tally.add(case, missed, time.monotonic() - began, hits=hits, compared=sorted(expected))
    assert not missed, missed
