"""`bessemer down`: the keeper goes first, what runs keeps its work and ends, then the worker, the server last."""

from pathlib import Path

from flows.service.api import cancel_runs, wait_for_runs
from flows.service.files import ServiceFiles
from flows.service.password import use_password
from flows.service.starting import Tell

RUN_SECONDS = 150.0
"""What a run gets to write a checkpoint: a little more than the trainer itself gets (`train.stop_seconds`)."""
SERVER_SECONDS = 20.0


def stop_service(root: Path, tell: Tell, now: bool = False) -> bool:
    """Stop the service of `root`; False where nothing ran. A run that is cut short goes on from where it was.

    Raises InputError, and stops nothing, where a run that the service did not start reports to it, unless `now`.
    """
    files = ServiceFiles(root)
    with files.alone():
        if not now:
            files.check_nobody_reports()
        use_password(files.password_file())
        stale = [process for process in (files.keeper, files.worker, files.server) if process.is_stale()]
        for process in stale:
            process.forget()
            tell(f"the {process.name} had ended by itself; cleaned up")
        keeper, worker, server = files.keeper.pid(), files.worker.pid(), files.server.pid()
        if keeper is not None:
            files.keeper.stop(SERVER_SECONDS)
        if worker is not None:
            if server is not None:
                _end_runs(files, tell)
            _tell_end(files.worker.stop(SERVER_SECONDS), "worker", tell)
        if server is not None:
            _tell_end(files.server.stop(SERVER_SECONDS), "server", tell)
    return any(pid is not None for pid in (keeper, worker, server))


def _end_runs(files: ServiceFiles, tell: Tell) -> None:
    """Cancel what runs while the worker still lives: it ends the run's processes and tells the server so."""
    count = cancel_runs(files.api_url)
    if count:
        tell(f"{count} run{'s' if count > 1 else ''} under way: keeping finished parts and the last checkpoint")
        if not wait_for_runs(files.api_url, RUN_SECONDS):
            tell(f"not ended after {RUN_SECONDS:.0f} s; killing")


def _tell_end(by_itself: bool, name: str, tell: Tell) -> None:
    tell(f"the {name} ended" if by_itself else f"the {name} did not end when asked, and was killed")
