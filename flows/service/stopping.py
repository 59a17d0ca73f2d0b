"""`bessemer down`: the worker takes nothing new, what runs keeps its work and ends, the server goes last."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from flows.service.files import ServiceFiles
from flows.service.processes import descendants, wait_until_gone
from flows.service.starting import Tell

RUN_SECONDS = 150.0
"""What a run gets to write a checkpoint: a little more than the trainer itself gets (`train.stop_seconds`)."""
SERVER_SECONDS = 20.0


def stop_service(root: Path, tell: Tell) -> bool:
    """Stop the service of `root`; False where nothing ran. A run that is cut short goes on from where it was."""
    files = ServiceFiles(root)
    with files.alone():
        stale = [process for process in (files.worker, files.server) if process.is_stale()]
        for process in stale:
            process.forget()
            tell(f"the {process.name} had ended by itself; cleaned up")
        worker, server = files.worker.pid(), files.server.pid()
        if worker is not None:
            _stop_worker(files, worker, tell)
        if server is not None:
            _tell_end(files.server.stop(SERVER_SECONDS), "server", tell)
    return worker is not None or server is not None


def _stop_worker(files: ServiceFiles, worker: int, tell: Tell) -> None:
    # The worker's first SIGTERM makes it wait for its runs; the runs need one of their own.
    runs = descendants(worker, direct=True)
    for pid in (worker, *runs):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    if runs:
        tell("a run is under way: it keeps finished parts and its last checkpoint, and ends")
        wait_until_gone([worker, *runs], RUN_SECONDS)
    _tell_end(files.worker.stop(SERVER_SECONDS), "worker", tell)


def _tell_end(by_itself: bool, name: str, tell: Tell) -> None:
    tell(f"the {name} ended" if by_itself else f"the {name} did not end when asked, and was killed")
