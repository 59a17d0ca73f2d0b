"""Start the ranks of a machine as forks of one process that has imported what they need (`model/train/template.py`).

Importing PyTorch and the trainer takes 3 to 5 s of processor time, for each rank and again after each failure, when the
machine is checked and when the ranks start again. A fork takes .02 s and shares the imported memory.

The supervisor does not fork itself: it is to survive where memory runs out, so it stays small, and with several
machines it has threads, which a fork does not copy.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from model.distributed.protocol import STOP_SIGNALS
from model.environment import trainer_environment

POLL_SECONDS = 0.05

Work = Literal["rank", "diag"]
"""Training (`model/train/rank.py`) or diagnosis (`model/launch/diagnostics.py`)."""


class Request(NamedTuple):
    """What the template is asked to start."""

    work: Work
    arguments: Sequence[str]
    """Those of `model.train.rank.main`."""
    local_rank: int
    """The environment variable LOCAL_RANK."""
    speaks: bool
    """Whether what it prints goes to stdout; otherwise to stderr."""


class RankProcess:
    """A process that a template started; its methods are those of `subprocess.Popen`."""

    def __init__(self, template: "Template", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._template = template

    def poll(self) -> int | None:
        """Return the exit code, the negated signal that ended the process, or None while it runs."""
        if self.returncode is None:
            self._template.receive(0)
        return self.returncode

    def wait(self) -> int:
        """Wait for the end, and return as `poll` does."""
        while self.returncode is None:
            self._template.receive(POLL_SECONDS)
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM to a process that runs."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to a process that runs."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # Without `poll`: a signal handler calls this, perhaps in the middle of `receive`.
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Template:
    """The template of a training on this machine; it starts with the first rank, and again where it has ended."""

    def __init__(self, run_file: Path, given: Mapping[str, str], start_seconds: float) -> None:
        self._run_file = run_file
        self._given = given
        self._start_seconds = start_seconds
        self._program: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._received = b""
        # Those that `start` has not returned yet; one may have ended again before.
        self._started: list[RankProcess] = []
        self._running: dict[int, RankProcess] = {}

    def start(self, request: Request) -> RankProcess:
        """Start a process.

        Raises OSError where the template ends, or does not answer within `train.start_seconds`.
        """
        channel = self._channel or self._launch()
        program = self._program
        assert program is not None
        with suppress(BrokenPipeError, ConnectionResetError):
            channel.sendall(json.dumps(request).encode() + b"\n")
        deadline = time.monotonic() + self._start_seconds
        while not self._started:
            if not self.receive(POLL_SECONDS):
                raise OSError(f"the process that starts ranks ended with exit code {program.returncode}")
            if time.monotonic() > deadline:
                self.close()
                raise OSError(
                    f"importing PyTorch and the trainer took more than {self._start_seconds:g} seconds"
                    f" (train.start_seconds)"
                )
        return self._started.pop()

    def receive(self, seconds: float) -> bool:
        """Note what the template reports within some seconds; return whether it runs."""
        channel = self._channel
        if channel is None:
            return False
        if not select.select([channel], [], [], seconds)[0]:
            return True
        data = b""
        with suppress(ConnectionResetError):
            data = channel.recv(65536)
        if not data:
            self.close()
            return False
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            kind, pid, *code = json.loads(line)
            if kind == "started":
                self._running[pid] = RankProcess(self, pid)
                self._started.append(self._running[pid])
            else:
                self._running.pop(pid).returncode = code[0]
        return True

    def close(self) -> None:
        """Kill the template, and with it all that it started."""
        if self._program is not None:
            self._program.kill()
            self._program.wait()
        if self._channel is not None:
            self._channel.close()
        self._program, self._channel, self._received = None, None, b""
        for process in self._running.values():
            # By the kernel, when the template ended.
            process.returncode = -signal.SIGKILL
        self._running.clear()
        self._started.clear()

    def _launch(self) -> socket.socket:
        channel, other = socket.socketpair()
        words = [sys.executable, "-m", "model.train.template", str(self._run_file), str(os.getpid())]
        # The program inherits it: Ctrl-C would end it before it blocks the signals itself.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            with other:
                self._program = subprocess.Popen(
                    [*words, str(other.fileno())],
                    stdin=subprocess.DEVNULL,
                    env=trainer_environment(os.environ, self._given),
                    pass_fds=[other.fileno()],
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._channel = channel
        return channel
