"""The keeper restarts the server and the worker of a root when they end unexpectedly: a kill, a crash, no memory.

`python -m flows.service.keeper ROOT` runs from `bessemer serve start` to `bessemer serve stop`. It has no state: if it
is killed itself, the next `bessemer serve start` starts another. Runs are restarted by the automations, not here.
"""

import math
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from flows.service.files import ServiceFiles, use_password
from flows.service.server import spawn_server, spawn_worker

POLL_SECONDS = 2.0

STEADY_SECONDS = 60.0
"""A process that runs as long as this has started well."""

MAX_PAUSE = 60.0


class Backoff:
    """When a process may be restarted: at once, then after pauses that double while it keeps ending early."""

    def __init__(self) -> None:
        self._pause = 0.0
        self._begun = -math.inf

    def is_over(self, now: float) -> bool:
        """Return whether the pause since the last start is over; `now` is in seconds of a monotonic clock."""
        return now - self._begun >= self._pause

    def begin(self, now: float) -> None:
        """Record that the process is started."""
        short_lived = now - self._begun < STEADY_SECONDS + self._pause
        self._pause = min(max(1.0, 2 * self._pause), MAX_PAUSE) if short_lived else 1.0
        self._begun = now


def keep(root: Path) -> None:
    """Restart the processes of `root`'s service until it is stopped, or another keeper has taken over."""
    files = ServiceFiles(root)
    use_password(files.password_file())
    watched = ((files.server, spawn_server, Backoff()), (files.worker, spawn_worker, Backoff()))
    while True:
        time.sleep(POLL_SECONDS)
        for process, spawn, backoff in watched:
            if process.pid() is not None or not backoff.is_over(time.monotonic()):
                continue
            with files.locked():
                if files.keeper.pid() != os.getpid():
                    return  # Another keeper has taken over.
                if process.pid() is not None or not process.record.exists():
                    continue
                spawn(files)
            backoff.begin(time.monotonic())
            message = f"the {process.name} had ended, and was restarted"
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}", flush=True)


def _end(signum: int, frame: FrameType | None) -> None:
    del signum, frame
    sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    keep(Path(sys.argv[1]))
