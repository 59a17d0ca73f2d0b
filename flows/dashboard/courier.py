"""Requests to a server from a thread of their own, in their order, so that nobody waits for the answers.

Prefect's client tries a request again for a minute and more when a server is gone (measured: over 60 s with 3.8.8), and
a stage that asked by itself would stand still for as long.
"""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class Courier:
    """Carries out calls in order; the first that fails, or is not done in time, is told once and is the last."""

    def __init__(self, log: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self._log = log
        self._calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._gave_up = False
        self._thread = threading.Thread(target=self._work, name="dashboard", daemon=True)
        self._thread.start()

    def send(self, call: Callable[[], Any]) -> None:
        """Have `call` carried out soon."""
        self._calls.put(call)

    def close(self, seconds: float) -> None:
        """Wait until all calls are carried out, at most so long."""
        self._calls.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._give_up(f"no answer within {seconds:.0f} s")

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if self._gave_up:
                continue
            try:
                call()
            except Exception as error:  # A view of the run must never end the run.
                self._give_up(repr(error))

    def _give_up(self, why: str) -> None:
        if not self._gave_up:
            self._gave_up = True
            self._log.warning("the server shows nothing more of this run, which goes on: %s", why)
