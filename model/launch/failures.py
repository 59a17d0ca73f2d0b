"""Classify failures of a training, count restarts, and record them.

Only failures of the machine are restarted (a killed process, memory, disk, a hang), which have the exit code of Infra.

The supervisor appends a line to `restarts.jsonl` before it acts. When the trainer starts and when it ends, it imports
the lines that its metrics log lacks into EVENTS.
"""

import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from model.checksummed_json import append_lines, read_sealed_lines, seal
from model.config.launch import RestartsConfig
from model.errors import BessemerError, Bug, Infra
from model.processes import signal_name, write_log

if TYPE_CHECKING:
    from model.checkpoint.metrics import MetricsLog


CRASH_SIGNALS = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
"""Signals that a process gets for its own fault, perhaps because it lost the other ranks."""

LOST_CONNECTION = "lost the other ranks"

ERROR_REPORT_BYTES = 4096

MACHINE_ERRORS = ("can't allocate memory", "can't start new thread", "out of memory", "(os error ", "CUDA error")
"""Parts of messages of exceptions without a class of their own that mean a machine's failure: from PyTorch's allocator,
Python's threads, safetensors' writer, and CUDA."""


@dataclass(frozen=True)
class RankExit:
    """How a rank ended."""

    rank: int
    code: int
    """Exit code; negative for a signal."""
    error: str | None
    """Its error report; None where it only lost the other ranks, or could write none."""


@dataclass(frozen=True)
class Failure:
    """What ended a launch."""

    message: str
    """`Class: message`, as written to stderr."""
    code: int
    """Exit code of the trainer."""
    rank: int | None = None
    """The rank that caused it; None where no single rank did."""
    signal: str | None = None
    final: bool = False
    """Whether this machine may make no other attempt, whatever the code."""

    @property
    def restarts(self) -> bool:
        """Whether the ranks may be started again."""
        return self.code == Infra.exit_code and not self.final


def infra_failure(message: str, rank: int | None = None, signal: str | None = None) -> Failure:
    """Return a failure of the machine."""
    return Failure(f"Infra: {message}", Infra.exit_code, rank, signal)


def reported_error(error: Exception) -> BessemerError | None:
    """Return the error that a rank reports for an exception; None where it only lost the other ranks."""
    # Pipelining wraps what a stage raises (torch 2.13).
    while type(error) is RuntimeError and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, BessemerError):
        return error
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError | MemoryError):
        return Infra(message)
    if _lost_connection(error):
        return None
    if any(part in str(error) for part in MACHINE_ERRORS):
        return Infra(message)
    return Bug(message)


def _lost_connection(error: Exception) -> bool:
    # gloo raises no class of its own but names itself in the message; NCCL and the rendezvous have a class.
    distributed = sys.modules.get("torch.distributed")
    is_distributed = distributed is not None and isinstance(error, distributed.DistError)
    return is_distributed or "gloo" in str(error).lower()


def root_cause(ends: Sequence[RankExit], size: int) -> Failure | None:
    """Return the failure that caused the ranks to end, given in the order in which they ended; None where all finished.

    Causes come before consequences: a rank killed from outside, then a rank's own error, then a rank that crashed, then
    one that was asked to stop, then those that only lost the others.
    """
    failed = [end for end in ends if end.code != 0]
    return _failure(min(failed, key=_distance_from_cause), size) if failed else None


def _distance_from_cause(end: RankExit) -> int:
    if end.code < 0:
        return 2 if -end.code in CRASH_SIGNALS else 0
    if end.error:
        return 1 if end.code != Infra.exit_code else 3
    return 4


def _failure(end: RankExit, size: int) -> Failure:
    who = "the trainer" if size == 1 else f"rank {end.rank} of {size}"
    if end.code < 0:
        name = signal_name(-end.code)
        hint = " (often the kernel, when memory runs out)" if -end.code == signal.SIGKILL else ""
        return infra_failure(f"{who} was killed by {name}{hint}", end.rank, name)
    if end.error:
        return Failure(end.error.strip(), end.code, end.rank)
    if end.code == Infra.exit_code:
        return infra_failure(f"{who} {LOST_CONNECTION}", end.rank)
    # It could not write its error report: the disk is full, or the interpreter did not start.
    return infra_failure(f"{who} ended with exit code {end.code} and without an error report", end.rank)


def reserve_error_report(file: Path) -> None:
    """Reserve disk space for a rank's error report, which may have to say that the disk is full."""
    file.write_bytes(bytes(ERROR_REPORT_BYTES))


def write_error_report(file: Path, message: str) -> None:
    """Write a rank's error report, into the space reserved for it if there is any."""
    with file.open("r+b" if file.exists() else "wb") as stream:
        stream.write(message.encode(errors="backslashreplace")[:ERROR_REPORT_BYTES])


def read_error_report(file: Path) -> str | None:
    """Return the error report of a rank, or None."""
    try:
        return file.read_bytes().rstrip(b"\0").decode(errors="replace") or None
    except OSError:
        return None


RESTARTS_FILE = "restarts.jsonl"

HINT = "Remove the file to go on without its record of earlier restarts."

LONGEST_PAUSE = 60.0
"""Seconds before a restart, at most."""

FEWER_RANKS: Final = "fewer_ranks"
"""Event: the following steps are computed by fewer ranks than the run asks for."""

RECORDED = ("restart", "slow_rank", "all_ranks", "hosts")
"""Kinds of lines, which are kinds of EVENTS too."""


class RestartBudget:
    """Counts restarts without progress, and decides how long each waits."""

    def __init__(self, config: RestartsConfig) -> None:
        self._config = config
        self.consecutive = 0

    def progress(self) -> None:
        """Reset the count, after a new checkpoint."""
        self.consecutive = 0

    def next_pause(self) -> float | None:
        """Count one more restart and return the seconds to wait before it; None where no more are allowed."""
        if self.consecutive >= self._config.most:
            return None
        self.consecutive += 1
        return min(self._config.pause_seconds * 2.0 ** (self.consecutive - 1), LONGEST_PAUSE)


class RestartLog:
    """The file `restarts.jsonl`. A full disk delays lines; none is lost while this process lives."""

    def __init__(self, out: Path) -> None:
        self._file = out / RESTARTS_FILE
        self._pending = b""

    def append(self, kind: str, **facts: Any) -> None:
        """Append a line, durable when this returns; where the disk refuses, it is written with the next one."""
        assert kind in RECORDED, f"{kind} is no kind that the trainer imports"
        self._pending += seal({"kind": kind, "time": time.time(), **facts}, sort_keys=True, indent=None)
        try:
            append_lines(self._file, self._pending, HINT)
            self._pending = b""
        except OSError as error:
            write_log(f"{self._file} could not be written yet: {error}\n")


def read_restarts(out: Path) -> list[dict[str, Any]]:
    """Return all whole lines of the record; IntegrityError where one is damaged."""
    return read_sealed_lines(out / RESTARTS_FILE, HINT)


def import_restarts(out: Path, log: "MetricsLog") -> None:
    """Append the supervisor's lines that `log` lacks to its EVENTS, with their original times."""
    events = log.tables()["events"]
    # Not by their number: the record may have been removed, and begun again.
    known = set(zip(*(events[name].to_pylist() for name in ("kind", "time", "detail")), strict=True))
    for line in read_restarts(out):
        facts = {key: value for key, value in line.items() if key not in ("kind", "time", "step")}
        detail = json.dumps(facts, sort_keys=True)
        if (line["kind"], line["time"], detail) in known:
            continue
        log.add(
            "events",
            seq=log.count("events"),
            time=line["time"],
            step=line["step"],
            kind=line["kind"],
            detail=detail,
            positions=[],
            **{"class": "Infra"},
        )
