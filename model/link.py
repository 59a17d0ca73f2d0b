"""The trainer's link to whoever launched it: JSON lines on stdout, a heartbeat file, and SIGTERM as a request.

Ctrl-C (SIGINT) is the same request.

Each line is one object with a `kind`: start, step, checkpoint, event, done. A line is at most a few hundred bytes.
"""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

SECONDS_BETWEEN_STEPS_TOLD = 0.5
REQUESTS_TO_STOP = (signal.SIGTERM, signal.SIGINT)


class Link:
    """Tells the launcher what happens, and hears its request to stop while it is entered as a context."""

    def __init__(self, heartbeat: Path) -> None:
        self._heartbeat = heartbeat
        self._told_at = 0.0
        self.stop_requested = False

    def __enter__(self) -> "Link":
        self._handlers = {asked: signal.signal(asked, self._on_terminate) for asked in REQUESTS_TO_STOP}
        return self

    def __exit__(self, *error: object) -> None:
        for asked, handler in self._handlers.items():
            signal.signal(asked, handler)

    def _on_terminate(self, signum: int, frame: Any) -> None:
        del signum, frame
        self.stop_requested = True

    def tell(self, kind: str, **facts: Any) -> None:
        """One JSON line on stdout. Numbers must be finite: JSON has no others."""
        sys.stdout.write(json.dumps({"kind": kind, **facts}, allow_nan=False) + "\n")
        sys.stdout.flush()

    def beat(self) -> None:
        """Show that a step was finished."""
        self._heartbeat.touch()

    def step(self, last: bool, **facts: Any) -> None:
        """Tell the step unless another was told less than half a second ago."""
        now = time.monotonic()
        if last or now - self._told_at >= SECONDS_BETWEEN_STEPS_TOLD:
            self._told_at = now
            self.tell("step", **facts)
