"""Heartbeats of ranks: one line in a file for each rank, overwritten in place, which the supervisor reads.

The line holds a counter, the activity, the steps done, the seconds of the rank's own work in them, and whether it is
waiting for other ranks. A beat takes two microseconds. The reader compares lines and no clocks, so a clock that jumps
does no harm.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STEPPING = "stepping"

BETWEEN_STEPS = "between"
"""Before the first step, and while a checkpoint or the result is written."""

_BYTES = 64


@dataclass(frozen=True)
class Beat:
    """The last line of a rank."""

    number: int
    activity: str
    step: int
    """Steps done, of the whole run."""
    busy_seconds: float
    """The rank's own work in all steps of this process, without waiting for others."""
    waiting: bool
    """Whether it waits for other ranks."""


class Heartbeat:
    """Writes the line, and holds a lock on its file while the process lives; does nothing without a file."""

    def __init__(self, file: Path | None) -> None:
        self._handle = None if file is None else os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        if self._handle is not None:
            fcntl.flock(self._handle, fcntl.LOCK_EX)
        self._number = 0
        self._activity = BETWEEN_STEPS
        self._step = 0
        self._busy = 0.0
        self._since = time.monotonic()
        self._write(waiting=False)

    def step(self, step: int) -> None:
        """Record that `step` steps are done and the next one begins."""
        now = time.monotonic()
        if self._activity == STEPPING:
            self._busy += now - self._since
        self._since, self._activity, self._step = now, STEPPING, step
        self._write(waiting=False)

    def between_steps(self) -> None:
        """Record that no step is running; what follows may take longer than one, and does not count as slow work."""
        self._activity = BETWEEN_STEPS
        self._write(waiting=False)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark the block as waiting for other ranks, which is not the rank's own work."""
        if self._handle is None:
            yield
            return
        self._write(waiting=True)
        began = time.monotonic()
        try:
            yield
        finally:
            self._since += time.monotonic() - began
            self._write(waiting=False)

    def _write(self, *, waiting: bool) -> None:
        if self._handle is None:
            return
        self._number += 1
        line = f"{self._number} {self._activity} {self._step} {self._busy:.6f} {int(waiting)} ."
        os.pwrite(self._handle, line.ljust(_BYTES).encode(), 0)


NO_HEARTBEAT = Heartbeat(None)
"""Of a rank without supervisor."""


def read_beat(file: Path) -> Beat | None:
    """Return the line in a rank's file; None where there is none yet, or it is just being written."""
    try:
        number, activity, step, busy, waiting, end = file.read_text().split()
        return Beat(int(number), activity, int(step), float(busy), waiting == "1") if end == "." else None
    except (OSError, ValueError):
        return None


def is_held(file: Path) -> bool:
    """Return whether the process that writes the file is alive, or not yet removed by the kernel."""
    try:
        handle = os.open(file, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
