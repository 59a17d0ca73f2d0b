"""The template: a process that imports what the ranks of a machine need, and forks them.

Started by `model/launch/template.py` as `python -m model.train.template RUN_FILE PARENT FD`. It reads requests from the
socket FD, one JSON array per line, and writes `["started", PID]` and `["ended", PID, EXIT_CODE]`. It dies with its
parent, and what it started dies with it.

On other systems than Linux it starts each rank as a program: libraries of macOS do not compute in forks.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from model.distributed.protocol import STOP_SIGNALS
from model.launch.template import Request
from model.processes import collecting_seldom, die_with_parent, exit_now

FORKS = sys.platform.startswith("linux")


def main(arguments: list[str]) -> int:
    """Import what the ranks of a run need, and start processes until the supervisor closes the socket; return 0."""
    run_file, parent, fd = arguments
    die_with_parent(int(parent))
    # Ctrl-C reaches this process, too, and only ranks are to stop. Blocked, and not ignored: a rank receives what comes
    # while it starts.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    if FORKS:
        _import(Path(run_file))
    _Starter(socket.socket(fileno=int(fd))).serve()
    return 0


def _import(run_file: Path) -> None:
    """Import what a rank of the run imports. Where that fails, the rank reports it, which imports it again."""
    with suppress(Exception), collecting_seldom():
        import model.launch.diagnostics
        import model.train.rank
        import model.train.trainer  # noqa: F401
        from model.config.train import read_run
        from model.data.without_pandas import leave_out_pandas
        from model.engines import engine_class
        from model.guard.decisions import effective_config, read_decisions

        leave_out_pandas()
        run = read_run(run_file)
        train = effective_config(run, read_decisions(run.out)).train
        if train.device == "cpu":
            # DeepSpeed and the compiler look for devices when they are imported, and CUDA does not survive a fork.
            engine_class(train)
    # Ranks do not go through what is shared, which would copy its pages.
    gc.collect()
    gc.freeze()
    # Python 3.12 warns of the idle threads of OpenBLAS, which ends them before a fork and starts them when needed.
    warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)


class _Starter:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        # A process that ends writes a byte to the pipe, for which `serve` waits together with requests.
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes)

    def serve(self) -> None:
        """Start what is requested and report what ends, until the socket is closed."""
        received = b""
        while True:
            ready, _, _ = select.select([self._channel, self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._report_ends()
            if self._channel in ready:
                data = self._channel.recv(65536)
                if not data:
                    return
                *lines, received = (received + data).split(b"\n")
                for request in (Request(*json.loads(line)) for line in lines):
                    self._send("started", self._fork(request) if FORKS else _spawn(request))

    def _report_ends(self) -> None:
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                self._send("ended", found[0], os.waitstatus_to_exitcode(found[1]))

    def _send(self, *words: str | int) -> None:
        self._channel.sendall(json.dumps(words).encode() + b"\n")

    def _fork(self, request: Request) -> int:
        """Fork a process that does what is requested, and return its process id."""
        parent = os.getpid()
        if pid := os.fork():
            return pid
        try:
            die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            for inherited in (self._channel.fileno(), self._woken, self._wakes):
                os.close(inherited)
            if not request.speaks:
                os.dup2(2, 1)
            os.environ["LOCAL_RANK"] = str(request.local_rank)
            _run(request)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)


def _run(request: Request) -> NoReturn:
    with suppress(OSError):
        # `rank 2 at 0` or `diag 2 at 0`, shown by ps and top: the command of a fork is the template's.
        Path("/proc/self/comm").write_text(f"{request.work} {request.arguments[1]} at {request.local_rank}")
    if request.work == "rank":
        from model.train.rank import main
    else:
        from model.launch.diagnostics import main
    exit_now(main(list(request.arguments)))


def _spawn(request: Request) -> int:
    """Start a program that does what is requested, and return its process id."""
    module = "model.train.rank" if request.work == "rank" else "model.launch.diagnostics"
    words = [sys.executable, "-m", module, *request.arguments]
    environment = {**os.environ, "LOCAL_RANK": str(request.local_rank)}
    actions = [] if request.speaks else [(os.POSIX_SPAWN_DUP2, 2, 1)]
    return os.posix_spawn(sys.executable, words, environment, file_actions=actions, setsigmask=[])


if __name__ == "__main__":
    exit_now(main(sys.argv[1:]))
