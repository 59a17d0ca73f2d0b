"""Background processes that outlive the command that starts them, found again by pid and start time.

The kernel reuses the pids of dead processes, soon after a reboot; a signal to a reused pid would end another program.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from model.checksummed_json import find_sealed, write_sealed
from tasks.artifacts.lease import start_of

if TYPE_CHECKING:
    import psutil


class StartedProcess(TypedDict):
    """The pid of a process, and what distinguishes it from others with this pid (`started`)."""

    pid: int
    started: str | None


@dataclass(frozen=True)
class Background:
    """A background process, the file that records it, and the log that it writes."""

    name: str
    record: Path
    log: Path

    def start(self, words: Sequence[str], environment: Mapping[str, str], folder: Path) -> int:
        """Start `words` in a session of its own, detached from the terminal, and return its pid."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        write_sealed(self.record, {"pid": process.pid, "started": started(process.pid)})
        return process.pid

    def pid(self) -> int | None:
        """Return the pid of the running process; None where none was started or it has ended."""
        found = self._read_record()
        if found is None or found["started"] is None or started(found["pid"]) != found["started"]:
            return None
        return found["pid"]

    def is_stale(self) -> bool:
        """Return whether a recorded process ended without `bessemer serve stop`: a kill, a crash, a reboot."""
        return self.record.exists() and self.pid() is None

    def stop(self, seconds: float) -> bool:
        """Send SIGTERM and wait, then kill the process and its children; return whether it ended by itself."""
        pid = self.pid()
        ended = True
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            ended = wait_until_ended([pid], seconds)
            if not ended:
                for member in (*descendants(pid), pid):
                    with suppress(ProcessLookupError):
                        os.kill(member, signal.SIGKILL)
                wait_until_ended([pid], 10.0)
        self.forget()
        return ended

    def forget(self) -> None:
        self.record.unlink(missing_ok=True)

    def end_of_log(self) -> str:
        """Return how its log ends, for errors."""
        return end_of(self.log)

    def _read_record(self) -> StartedProcess | None:
        hint = f"It ends no process: if the {self.name} still runs, end it manually."
        return cast("StartedProcess | None", find_sealed(self.record, hint))


def end_of(log: Path) -> str:
    """Return the last lines of a log, if there is one, as the end of an error."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([f"its log {log} ends:", *lines[-12:]])


def started(pid: int) -> str | None:
    """Return what distinguishes the process with this pid from earlier and later ones; None where none runs.

    On Linux it is the boot and the ticks since, which no change of the clock affects; elsewhere the start time.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    if boot.exists():
        ticks = start_of(pid)
        return None if ticks is None else f"{boot.read_text().strip()} {ticks}"
    process = _process(pid)
    return None if process is None else str(process.create_time())


def descendants(pid: int) -> list[int]:
    """Return the pids of all descendants of a process."""
    import psutil

    process = _process(pid)
    try:
        return [child.pid for child in process.children(recursive=True)] if process is not None else []
    except psutil.NoSuchProcess:
        return []


def wait_until_ended(pids: Sequence[int], seconds: float) -> bool:
    """Wait until none of the processes runs; return False when some still do after `seconds`."""
    import psutil

    waiting = [process for process in map(_process, pids) if process is not None]
    _, alive = psutil.wait_procs(waiting, timeout=seconds)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def _process(pid: int) -> "psutil.Process | None":
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except psutil.NoSuchProcess:
        return None
