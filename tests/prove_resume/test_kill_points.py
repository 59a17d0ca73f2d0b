"""SIGKILL at a thousand seeded times, in a process that only writes checkpoints: what is on disk is whole."""

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.checkpoint.checkpoint import checkpoint_at, checkpoint_steps, newest_checkpoint, quarantine_damaged
from model.checkpoint.metrics import MetricsLog
from model.checkpoint.run_folder import COMPLETE
from model.checkpoint.writer import CheckpointWriter
from model.distributed.process_group import SINGLE_PROCESS

pytestmark = pytest.mark.prove_resume

NAME = "kill points within writing"
ELEMENTS = 20_000
KEEP = 2
HEALTHY_EVERY = 7
SAVES_AWAY = 3.0
"""A kill comes at any time within so many checkpoints after the process begins to write."""


@dataclass
class Engine:
    """A network of one vector that holds nothing but the number of its step."""

    at: int
    optimizer_shards: int = 1
    weight_shards: int = 1

    def weights(self) -> dict[str, Tensor]:
        return {"weight": torch.full((ELEMENTS,), float(self.at))}

    def begins(self) -> dict[str, tuple[int, ...]]:
        return {}

    def optimizer_state(self) -> dict[str, Tensor]:
        return {"weight|exp_avg": torch.full((ELEMENTS,), -float(self.at))}


def journal_at(step: int) -> MetricsLog:
    journal = MetricsLog()
    journal.add("steps", step=step, pos_start=step, pos_end=step + 1, row_pieces=1, applied=True)
    return journal


def healthy_at(step: int) -> list[int]:
    """The last three multiples of seven before a step."""
    return list(range(step - step % HEALTHY_EVERY, 0, -HEALTHY_EVERY))[:3]


def write_for_ever(folder: Path, begins_at: int, reported: int) -> None:
    """Checkpoints of one step after the other; each is reported when it begins and when it is complete."""

    def report(kind: str, step: int) -> None:
        os.write(reported, f"{kind} {step}\n".encode())

    writer = CheckpointWriter(folder, SINGLE_PROCESS, lambda step: report("complete", step))
    step = begins_at
    while True:
        report("begins", step)
        writer.save(step, Engine(step), journal_at(step), {"step": step, "tokens": step}, KEEP, healthy_at(step))
        writer.finish()
        step += 1


def killed_after(seconds: float, folder: Path, begins_at: int) -> tuple[int, int]:
    """The last step that was complete and the last that was begun when the writing process was killed."""
    reads, reported = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        try:
            write_for_ever(folder, begins_at, reported)
        except BaseException as error:
            os.write(2, f"child: {type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os.close(reported)
    with os.fdopen(reads) as lines:
        # The first line: the child is at work.
        first = lines.readline()
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        words = [line.split() for line in (first, *lines) if line.endswith("\n")]
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "the child ended by itself"
    steps = {kind: [int(step) for said, step in words if said == kind] for kind in ("begins", "complete")}
    return max(steps["complete"], default=begins_at - 1), max(steps["begins"])


def to_keep(newest: int) -> set[int]:
    """Steps of the checkpoints that stay when the newest is complete."""
    return {step for step in (*range(newest - KEEP + 1, newest + 1), *healthy_at(newest)) if step > 0}


def phase(folder: Path) -> str:
    """Where in the writing of a checkpoint the kill came, from what lies there."""
    left_over = list(folder.glob("tmp-*"))
    if any(path.name.startswith("tmp-step-") for path in left_over):
        return "within a removal"
    if not left_over:
        existing = checkpoint_steps(folder)
        return "before a removal" if set(existing) - to_keep(existing[-1]) else "before the folder"
    names = {path.name for path in left_over[0].iterdir()}
    if COMPLETE not in names:
        return "in files" if names else "before the files"
    return "before the rename" if (left_over[0] / COMPLETE).read_bytes().endswith(b"}\n") else "in COMPLETE"


def what_is_wrong(folder: Path, complete: int, begun: int) -> str:
    """What does not hold of the checkpoints on disk, in words; nothing where all is well."""
    if damaged := quarantine_damaged(folder):
        return f"damaged: {damaged}"
    newest = newest_checkpoint(folder, {})
    existing = checkpoint_steps(folder)
    if newest is None or newest.state["step"] not in (complete, begun):
        return f"{existing} exist, where {complete} was complete and {begun} was begun"
    if missing := to_keep(newest.state["step"]) - set(existing):
        return f"missing: {sorted(missing)} of {existing}"
    for step in existing:
        checkpoint = checkpoint_at(folder, step, {"tokens": step})
        held = {
            "weights": checkpoint.weights()["weight"].unique().tolist() == [step],
            "moments": checkpoint.optimizer_state(0, 1)["weight|exp_avg"].unique().tolist() == [-step],
            "journal": checkpoint.metrics_log().tables()["steps"].column("step").to_pylist() == [step],
        }
        if not all(held.values()):
            return f"step {step} holds what is not its own: {held}"
    return ""


def test_what_exists_after_a_kill_is_whole(proof: Callable, tmp_path: Path) -> None:
    tally = proof(NAME)
    folder = tmp_path / "checkpoints"
    torch.set_num_threads(1)
    began = time.monotonic()
    with CheckpointWriter(folder, SINGLE_PROCESS) as writer:
        for step in range(1, 11):
            writer.save(step, Engine(step), journal_at(step), {"step": step, "tokens": step}, KEEP, healthy_at(step))
    seconds_a_save = (time.monotonic() - began) / 10
    for number in range(tally.cases):
        case = f"kill {number:04d}"
        if case in tally.done:
            continue
        if tally.out_of_time:
            break
        began = time.monotonic()
        away = random.Random(case).uniform(0, SAVES_AWAY * seconds_a_save)
        complete, begun = killed_after(away, folder, checkpoint_steps(folder)[-1] + 1)
        where = phase(folder)
        wrong = what_is_wrong(folder, complete, begun)
        tally.add(case, wrong, time.monotonic() - began, where, after_s=round(away, 6), complete=complete, begun=begun)
    tally.verdict()
