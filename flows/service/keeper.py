"""Starts the server and the worker of a root again when they end without being asked to: a kill, a crash, no memory.

`python -m flows.service.keeper ROOT` stands beside them from `bessemer up` to `bessemer down`. It holds nothing: where
it is killed itself, the next `bessemer up` starts another. Runs are not its business, they have the automations.
"""

import math
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from flows.service.files import ServiceFiles, use_password
from flows.service.processes import Background
from flows.service.server import spawn_server, spawn_worker

SECONDS_BETWEEN_LOOKS = 2.0

STEADY_SECONDS = 60.0
"""What lives as long as this counts as having started well."""

LONGEST_PAUSE = 60.0


class Backoff:
    """When a process may be started again: at once, then after pauses that double while it ends soon after."""

    def __init__(self) -> None:
        self._pause = 0.0
        self._begun = -math.inf

    def is_over(self, now: float) -> bool:
        """Whether the pause since the last start is over; times are seconds of one monotonic clock."""
        return now - self._begun >= self._pause

    def begin(self, now: float) -> None:
        """The process is started."""
        short_lived = now - self._begun < STEADY_SECONDS + self._pause
        self._pause = min(max(1.0, 2 * self._pause), LONGEST_PAUSE) if short_lived else 1.0
        self._begun = now


def keep(root: Path) -> None:
    """Look after the service of `root` until it is brought down, or another keeper has taken over."""
    files = ServiceFiles(root)
    use_password(files.password_file())
    kept = ((files.server, spawn_server, Backoff()), (files.worker, spawn_worker, Backoff()))
    while True:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        for process, spawn, patience in kept:
            if process.pid() is not None or not patience.is_over(time.monotonic()):
                continue
            with files.alone():
                if not _is_ours(files.keeper):
                    return
                if process.pid() is not None or not process.record.exists():
                    continue
                spawn(files)
            patience.begin(time.monotonic())
            told = f"the {process.name} had ended, and was started again"
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {told}", flush=True)


def _is_ours(keeper: Background) -> bool:
    """Whether this very process is the one that the root remembers as its keeper."""
    return keeper.pid() == os.getpid()


def _end(signum: int, frame: FrameType | None) -> None:
    del signum, frame
    sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    keep(Path(sys.argv[1]))
