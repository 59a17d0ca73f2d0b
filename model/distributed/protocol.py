"""The trainer's link to whoever launched it: JSON lines on stdout, a heartbeat file, and SIGTERM as a request.

Ctrl-C (SIGINT) is the same request. Of several ranks each hears the request, and only the first speaks.

Each line is one object with a `kind`: start, step, checkpoint, event, paused, done. A line is at most a few hundred
bytes.

The folder in which the ranks of one launch meet: how they find each other, what they leave for the supervisor.
"""

import json
import os
import shutil
import signal
import time
import uuid
from pathlib import Path
from typing import Any, TextIO

from model.distributed.heartbeat import SILENT, Heartbeat, is_held

SECONDS_BETWEEN_STEPS_TOLD = 0.5

REQUESTS_TO_STOP = (signal.SIGTERM, signal.SIGINT)


def claim_stdout() -> TextIO:
    """The process's stdout, for messages alone: what libraries print from here on, in C++ too, goes to stderr."""
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return messages


class LauncherChannel:
    """Tells the launcher what happens, and hears its request to stop while it is entered as a context.

    Without `messages` it only hears.
    """

    def __init__(self, heartbeat: Path, messages: TextIO | None, of_rank: Heartbeat = SILENT) -> None:
        self._heartbeat = heartbeat
        self._of_rank = of_rank
        self._messages = messages
        self._told_at = 0.0
        self.stop_requested = False

    def __enter__(self) -> "LauncherChannel":
        self._handlers = {asked: signal.signal(asked, self._on_terminate) for asked in REQUESTS_TO_STOP}
        return self

    def __exit__(self, *error: object) -> None:
        for asked, handler in self._handlers.items():
            signal.signal(asked, handler)

    def _on_terminate(self, signum: int, frame: Any) -> None:
        del signum, frame
        self.stop_requested = True

    def send(self, kind: str, **facts: Any) -> None:
        """One JSON line of `messages`. Numbers must be finite: JSON has no others."""
        if self._messages is not None:
            self._messages.write(json.dumps({"kind": kind, **facts}, allow_nan=False) + "\n")
            self._messages.flush()

    def beat(self, step: int) -> None:
        """Show the launcher and the supervisor that so many steps are made."""
        self._of_rank.step(step)
        if self._messages is not None:
            self._heartbeat.touch()

    def between_steps(self) -> None:
        """Show that what follows is no step: a start, a checkpoint, the result."""
        self._of_rank.between_steps()

    def step(self, last: bool, **facts: Any) -> None:
        """Tell the step unless another was told less than half a second ago."""
        now = time.monotonic()
        if last or now - self._told_at >= SECONDS_BETWEEN_STEPS_TOLD:
            self._told_at = now
            self.send("step", **facts)


PREFIX = "ranks-"

SECONDS_TO_GO = 10.0
"""A killed process that the kernel still writes for, or one that is paused. The latter was given up."""


def new_rank_dir(out: Path, host: str = "") -> Path:
    """A folder for ranks of one machine to meet in; `host` names it among several that see the same files. Left-overs
    go, once the processes of a supervisor that was killed are gone too: the kernel ends them with it, but not within
    the same instant."""
    deadline = time.monotonic() + SECONDS_TO_GO
    prefix = f"{PREFIX}{host}-" if host else PREFIX
    for left_over in out.glob(f"{prefix}*"):
        while any(map(is_held, left_over.glob("*.beat"))) and time.monotonic() < deadline:
            time.sleep(0.05)
        shutil.rmtree(left_over, ignore_errors=True)
    rank_dir = out / f"{prefix}{uuid.uuid4().hex[:8]}"
    rank_dir.mkdir(parents=True)
    return rank_dir


def error_file(rank_dir: Path, rank: int) -> Path:
    """Where a rank leaves its last words."""
    return rank_dir / f"rank-{rank}.words"


def beat_file(rank_dir: Path, rank: int) -> Path:
    """Where a rank shows that it works."""
    return rank_dir / f"rank-{rank}.beat"


def stacks_file(rank_dir: Path, rank: int) -> Path:
    """Where a rank writes what its threads are at, when it is asked."""
    return rank_dir / f"rank-{rank}.stacks"


def rendezvous_file(rank_dir: Path) -> Path:
    """The file through which the ranks find each other."""
    return rank_dir / "rendezvous"
