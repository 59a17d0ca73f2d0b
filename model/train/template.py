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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from model.distributed.protocol import STOP_SIGNALS
from model.launch.template import Work
from model.processes import collecting_seldom, die_with_parent, exit_now


def main(arguments: list[str]) -> int:
    """Import what the ranks of a run need, and start processes until the supervisor closes the socket; return 0."""
    run_file, parent, fd = arguments
    die_with_parent(signal.SIGKILL, parent=int(parent))
    # Ctrl-C reaches this process, too, and only ranks are to stop. Blocked, and not ignored: a rank receives what comes
    # while it starts.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    forks = sys.platform.startswith("linux")
    if forks:
        _import(Path(run_file))
    with socket.socket(fileno=int(fd)) as channel:
        _serve(channel, _fork if forks else _spawn)
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
    gc.collect()
    # Ranks do not go through what is shared, which would copy its pages.
    gc.freeze()


def _serve(channel: socket.socket, start: "Callable[[list[Any], socket.socket], int]") -> None:
    # A child that ends writes a byte to the pipe, which `select` waits for together with requests.
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    received = b""
    while True:
        ready, _, _ = select.select([channel, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report_ends(channel)
        if channel in ready:
            data = channel.recv(65536)
            if not data:
                return
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                _send(channel, "started", start(json.loads(line), channel))


def _report_ends(channel: socket.socket) -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            _send(channel, "ended", found[0], os.waitstatus_to_exitcode(found[1]))


def _send(channel: socket.socket, *words: str | int) -> None:
    channel.sendall(json.dumps(words).encode() + b"\n")


def _fork(request: list[Any], channel: socket.socket) -> int:
    """Fork a process that runs a request, and return its process id."""
    work, arguments, local_rank, speaks = request
    parent = os.getpid()
    if pid := os.fork():
        return pid
    try:
        die_with_parent(signal.SIGKILL, parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        channel.close()
        if not speaks:
            os.dup2(2, 1)
        os.environ["LOCAL_RANK"] = str(local_rank)
        with suppress(OSError):
            # `rank 2 at 0` or `diag 2 at 0`, shown by ps and top: the command of a fork is the template's.
            Path("/proc/self/comm").write_text(f"{work} {arguments[1]} at {local_rank}")
        _run(work, arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _run(work: Work, arguments: list[str]) -> NoReturn:
    if work == "rank":
        from model.train.rank import main
    else:
        from model.launch.diagnostics import main
    exit_now(main(arguments))


def _spawn(request: list[Any], channel: socket.socket) -> int:
    """Start a program that runs a request, and return its process id."""
    del channel
    work, arguments, local_rank, speaks = request
    actions = [] if speaks else [(os.POSIX_SPAWN_DUP2, 2, 1)]
    environment = {**os.environ, "LOCAL_RANK": str(local_rank)}
    module = "model.train.rank" if work == "rank" else "model.launch.diagnostics"
    words = [sys.executable, "-m", module, *arguments]
    return os.posix_spawn(sys.executable, words, environment, file_actions=actions, setsigmask=[])


if __name__ == "__main__":
    exit_now(main(sys.argv[1:]))
