"""The channel between a trainer and the process that launched it, and the directory that the ranks of a launch share.

The first rank writes messages to stdout (`model/distributed/messages.py`) and touches a heartbeat file. SIGTERM and
SIGINT (Ctrl-C) ask the trainer to stop after the step at hand; every rank receives the signal, only the first one
writes.

The rank directory holds the rendezvous file and, for each rank, its heartbeat, its error report and its stack dumps.
"""

import json
import os
import shutil
import signal
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Self, TextIO

from model.distributed.heartbeat import NO_HEARTBEAT, Heartbeat, is_held
from model.distributed.messages import EventName, Message, StepDone

STEP_MESSAGE_SECONDS = 0.5
"""Least time between two step messages."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

RANK_DIRECTORY_PREFIX = "ranks-"

CLEANUP_SECONDS = 10.0
"""How long to wait for processes of an earlier launch: killed ones that the kernel still writes for, or paused ones,
which are then ignored."""


def claim_stdout() -> TextIO:
    """Return the process's stdout for messages alone: what libraries print from here on, in C++ too, goes to stderr."""
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return messages


class StopRequest:
    """Notices SIGTERM and Ctrl-C while it is entered as a context."""

    def __init__(self) -> None:
        self.stop_requested = False

    def __enter__(self) -> Self:
        self._handlers = {signum: signal.signal(signum, self._handle) for signum in STOP_SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        self.stop_requested = True
        self.pass_on()

    def pass_on(self) -> None:
        """Ask others to stop, too."""


class LauncherChannel(StopRequest):
    """Sends messages to the launcher, and notices its request to stop. Without `messages` it sends none."""

    def __init__(self, heartbeat: Path, messages: TextIO | None, of_rank: Heartbeat = NO_HEARTBEAT) -> None:
        super().__init__()
        self._heartbeat = heartbeat
        self._of_rank = of_rank
        self._messages = messages
        self._step_sent_at = 0.0

    def send(self, message: Message) -> None:
        """Write one JSON line; ValueError for numbers that are not finite, which JSON lacks."""
        self._write(message)

    def send_event(self, event: EventName, **facts: object) -> None:
        """Write an event whose fields are shown as they are."""
        self._write({"kind": "event", "event": event, **facts})

    def send_step(self, message: StepDone) -> None:
        """Write a step's message unless another was written less than half a second ago; always that of the last."""
        now = time.monotonic()
        if message["step"] == message["steps"] or now - self._step_sent_at >= STEP_MESSAGE_SECONDS:
            self._step_sent_at = now
            self._write(message)

    def _write(self, message: Mapping[str, object]) -> None:
        if self._messages is not None:
            self._messages.write(json.dumps(message, allow_nan=False) + "\n")
            self._messages.flush()

    def beat(self, step: int) -> None:
        """Show launcher and supervisor that `step` steps are done."""
        self._of_rank.step(step)
        if self._messages is not None:
            self._heartbeat.touch()

    def between_steps(self) -> None:
        """Show that no step is running: the start, a checkpoint or the result is being worked on."""
        self._of_rank.between_steps()


def create_rank_directory(out: Path, host: str = "") -> Path:
    """Create the directory that the ranks of one launch on this machine share; `host` names the machine where several
    see the same files.

    Directories of earlier launches are deleted once their processes have ended: the kernel kills these with their
    supervisor, but not in the same instant.
    """
    deadline = time.monotonic() + CLEANUP_SECONDS
    prefix = f"{RANK_DIRECTORY_PREFIX}{host}-" if host else RANK_DIRECTORY_PREFIX
    for earlier in out.glob(f"{prefix}*"):
        while any(map(is_held, earlier.glob("*.beat"))) and time.monotonic() < deadline:
            time.sleep(0.05)
        shutil.rmtree(earlier, ignore_errors=True)
    rank_directory = out / f"{prefix}{uuid.uuid4().hex[:8]}"
    rank_directory.mkdir(parents=True)
    return rank_directory


def error_file(rank_directory: Path, rank: int) -> Path:
    """Return the file into which a rank writes its error report."""
    return rank_directory / f"rank-{rank}.words"


def heartbeat_file(rank_directory: Path, rank: int) -> Path:
    """Return the file of a rank's heartbeat."""
    return rank_directory / f"rank-{rank}.beat"


def stacks_file(rank_directory: Path, rank: int) -> Path:
    """Return the file into which a rank dumps its stacks on request."""
    return rank_directory / f"rank-{rank}.stacks"


def rendezvous_file(rank_directory: Path) -> Path:
    """Return the file through which the ranks find each other."""
    return rank_directory / "rendezvous"
