"""What a rank shows of itself while it works: a line in a file of its own, which the supervisor reads.

The line is overwritten in place: how many times, what is done, the steps made, seconds of the rank's own work in them,
and whether it waits for other ranks just now. Two microseconds a beat; the reader compares lines and no clocks, so that
a clock that jumps means nothing.
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
    """What a rank showed last."""

    number: int
    doing: str
    step: int
    """Steps that are made, of the whole run."""
    busy_seconds: float
    """The rank's own work in all steps of this process, without what it waited for others."""
    waiting: bool
    """Whether it waits for other ranks."""


class Heartbeat:
    """Writes the line; without a file it does nothing. A lock on the file tells that the process is there."""

    def __init__(self, file: Path | None) -> None:
        self._handle = None if file is None else os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        if self._handle is not None:
            fcntl.flock(self._handle, fcntl.LOCK_EX)
        self._number = 0
        self._doing = BETWEEN_STEPS
        self._step = 0
        self._busy = 0.0
        self._since = time.monotonic()
        self._write(waiting=False)

    def step(self, step: int) -> None:
        """So many steps are made, and the next one begins."""
        now = time.monotonic()
        if self._doing == STEPPING:
            self._busy += now - self._since
        self._since, self._doing, self._step = now, STEPPING, step
        self._write(waiting=False)

    def between_steps(self) -> None:
        """What follows is no step, and may take longer than one; it does not count as slow work."""
        self._doing = BETWEEN_STEPS
        self._write(waiting=False)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within, the rank waits for others; that is not its own work."""
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
        line = f"{self._number} {self._doing} {self._step} {self._busy:.6f} {int(waiting)} ."
        os.pwrite(self._handle, line.ljust(_BYTES).encode(), 0)


NO_HEARTBEAT = Heartbeat(None)
"""That of a rank without supervisor."""


def read_beat(file: Path) -> Beat | None:
    """The line of a rank; None where it has none yet, or is just being written."""
    try:
        number, doing, step, busy, waiting, end = file.read_text().split()
        return Beat(int(number), doing, int(step), float(busy), waiting == "1") if end == "." else None
    except (OSError, ValueError):
        return None


def is_held(file: Path) -> bool:
    """Whether the process that beats there still is; one that the kernel has not taken down yet is."""
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
