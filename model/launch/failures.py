"""Why a training ended before its end, and whether starting it again may help.

Five classes: *infra* (a killed process, memory, disk, a hang: worth another try), *data* (what was read is missing or
damaged), *numerics* (the guard has done what it could), *recipe* (what was asked for cannot be, or passed a limit), and
*bug* (all else). Only infra is started again.

How often failed ranks are started again, and the durable record of it, which becomes part of EVENTS.

The supervisor appends a line to `restarts.jsonl` before it acts; the trainer takes lines that its journal does not have
yet into EVENTS when it starts and when it ends.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from model.checksummed_json import complete_lines, read_sealed_lines, seal
from model.config.launch import RestartsConfig
from model.errors import BessemerError, Bug, Infra, InputError, IntegrityError, Numerics

if TYPE_CHECKING:
    from model.checkpoint.metrics import Journal


Kind = Literal["infra", "data", "numerics", "recipe", "bug"]

OF_THE_PROGRAM = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
"""Signals that a process gets for what it did itself, perhaps because it lost the others."""

LOST_THE_OTHERS = "lost the other ranks"

BYTES_FOR_WORDS = 4096

MACHINE_SAYS = ("can't allocate memory", "can't start new thread", "out of memory", "(os error ", "CUDA error")
"""In messages that have no class for it: of PyTorch's allocator, Python's threads, safetensors' writer, CUDA."""


@dataclass(frozen=True)
class End:
    """How a rank ended: its exit code (negative: the signal) and its last words, none where it only lost the others."""

    rank: int
    code: int
    words: str | None


@dataclass(frozen=True)
class Failure:
    """What ended an attempt, and which rank is to blame (None: not a single one)."""

    kind: Kind
    words: str
    """As for stderr, `Class: message`."""
    code: int
    """What to exit with."""
    rank: int | None = None
    signal: str | None = None
    final: bool = False
    """Whether no other attempt on this machine may be made, whatever the kind."""

    @property
    def restarts(self) -> bool:
        """Whether another attempt may succeed."""
        return self.kind == "infra" and not self.final


def infra(message: str, rank: int | None = None, signal: str | None = None) -> Failure:
    """A failure of the machine, in words."""
    return Failure("infra", f"Infra: {message}", Infra.exit_code, rank, signal)


def as_told(error: Exception) -> BessemerError | None:
    """What a rank tells of an exception that reached its top; None where it only lost the others."""
    if isinstance(error, BessemerError):
        return error
    words = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError | MemoryError):
        return Infra(words)
    if _lost_the_others(error):
        return None
    if any(said in str(error) for said in MACHINE_SAYS):
        return Infra(words)
    return Bug(words)


def _lost_the_others(error: Exception) -> bool:
    """gloo names itself in what it raises, and has no class for it; NCCL and the rendezvous have one."""
    distributed = sys.modules.get("torch.distributed")
    of_the_exchange = distributed is not None and isinstance(error, distributed.DistError)
    return of_the_exchange or "gloo" in str(error).lower()


def judge(ends: Sequence[End], size: int) -> Failure | None:
    """What is to blame of how ranks ended, in the order in which they did; None where all came to their end.

    A cause counts before its consequence: a rank that was killed from outside, then an error of a rank's own, then a
    rank that died of what it did, then one that was asked to stop, then those that only lost the others.
    """
    failed = [end for end in ends if end.code != 0]
    return _failure(min(failed, key=_far_from_the_cause), size) if failed else None


def _far_from_the_cause(end: End) -> int:
    if end.code < 0:
        return 2 if -end.code in OF_THE_PROGRAM else 0
    if end.words:
        return 1 if end.code != Infra.exit_code else 3
    return 4


def _failure(end: End, size: int) -> Failure:
    who = "the trainer" if size == 1 else f"rank {end.rank} of {size}"
    if end.code < 0:
        name = signal.Signals(-end.code).name
        hint = " (often the kernel, when memory runs out)" if -end.code == signal.SIGKILL else ""
        return infra(f"{who} was killed by {name}{hint}", end.rank, name)
    if end.words:
        return Failure(_kind(end.code), end.words.strip(), end.code, end.rank)
    if end.code == Infra.exit_code:
        return infra(f"{who} {LOST_THE_OTHERS}", end.rank)
    # It could not even leave its words: the disk is full, or the interpreter did not come up.
    return infra(f"{who} ended with exit code {end.code} and without a word", end.rank)


def _kind(code: int) -> Kind:
    if code == Infra.exit_code:
        return "infra"
    if code in (InputError.exit_code, IntegrityError.exit_code):
        return "data"
    if code == Numerics.exit_code:
        return "numerics"
    return "bug" if code == Bug.exit_code else "recipe"


def make_room_for_words(file: Path) -> None:
    """Take a block of the disk for last words: that the disk is full may be what they say."""
    file.write_bytes(bytes(BYTES_FOR_WORDS))


def leave_words(file: Path, words: str) -> None:
    """Write a rank's last words, into the room made for them where there is some."""
    with file.open("r+b" if file.exists() else "wb") as stream:
        stream.write(words.encode()[:BYTES_FOR_WORDS])


def read_words(file: Path) -> str | None:
    """The last words of a rank, where it left any."""
    try:
        return file.read_bytes().rstrip(b"\0").decode(errors="replace") or None
    except OSError:
        return None


RECORD = "restarts.jsonl"

LOST = "Remove the file to go on without what it tells of earlier restarts."

LONGEST_PAUSE = 60.0
"""Seconds."""

FEWER_RANKS = "fewer_ranks"
"""The event that says that steps were computed by fewer ranks than the run asks for."""

RECORDED = ("restart", "slow_rank", "all_ranks", "hosts")
"""Kinds of lines, which are kinds of EVENTS."""


class Patience:
    """Restarts in a row without progress, and what each waits."""

    def __init__(self, config: RestartsConfig) -> None:
        self._config = config
        self.in_a_row = 0

    def progress(self) -> None:
        """Something new was reached: counting begins anew."""
        self.in_a_row = 0

    def next_pause(self) -> float | None:
        """Seconds to wait before one more restart; None where there were as many as may be."""
        if self.in_a_row >= self._config.most:
            return None
        self.in_a_row += 1
        return min(self._config.pause_seconds * 2.0 ** (self.in_a_row - 1), LONGEST_PAUSE)


class Record:
    """The file `restarts.jsonl`. A full disk delays lines and loses none while this process lives."""

    def __init__(self, out: Path) -> None:
        self._file = out / RECORD
        self._pending = b""

    def append(self, kind: str, **facts: Any) -> None:
        """Add a line, durable when this returns unless the disk refuses; then it comes with the next one."""
        assert kind in RECORDED, f"{kind} is no kind that the trainer takes over"
        self._pending += seal({"kind": kind, "time": time.time(), **facts}, sort_keys=True, indent=None)
        try:
            self._write()
        except OSError as error:
            sys.stderr.write(f"{self._file} could not be written yet: {error}\n")

    def _write(self) -> None:
        with self._file.open("ab", buffering=0) as file:
            # A kill may have left a part of a line behind the last whole one.
            whole = sum(map(len, complete_lines(self._file, LOST)))
            file.truncate(whole)
            try:
                written = file.write(self._pending)
                if written < len(self._pending):
                    raise OSError(f"{written} of {len(self._pending)} bytes were written")
                os.fsync(file.fileno())
            except OSError:
                file.truncate(whole)
                raise
        self._pending = b""


def read_record(out: Path) -> list[dict[str, Any]]:
    """All whole lines of the record; IntegrityError where one is damaged."""
    return read_sealed_lines(out / RECORD, LOST)


def take_over(out: Path, journal: "Journal") -> None:
    """Add what the supervisor recorded, and `journal` does not have yet, to its EVENTS, under the times of then."""
    kinds = journal.tables()["events"]["kind"].to_pylist()
    taken = sum(kind in RECORDED for kind in kinds)
    for line in read_record(out)[taken:]:
        facts = {key: value for key, value in line.items() if key not in ("kind", "time", "step")}
        journal.add(
            "events",
            seq=journal.count("events"),
            time=line["time"],
            step=line["step"],
            kind=line["kind"],
            detail=json.dumps(facts, sort_keys=True),
            positions=[],
            **{"class": "Infra"},
        )
