"""A lease on each identity, so that one process builds it: renewed by a heartbeat, and taken over when that stops.

`locks/IDENTITY/` holds one small numbered file for each grant of the lease; the highest number is valid. Files are
created with O_EXCL, so of two processes that want the next number exactly one gets it. The holder renews the lease by
incrementing a heartbeat counter in its file. Others take the lease over when its holder released it, is a dead process
of this machine, or did not change the counter for `lease_seconds` on the *observer's* monotonic clock: clocks of two
machines are never compared, so they may jump and differ. Counter and holder each carry a digest; the holder of a
damaged file is judged by the counter's silence alone.

A lease saves work and is not needed for correctness: a holder that was suspended past its end cannot know that. So each
grant has a token, and each token a work folder of its own (`tasks/artifacts/build.py`): the next holder renames that
folder, and the late one finds nothing there."""

import json
import os
import platform
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypedDict

from model.checksummed_json import BrokenSeal, seal, unseal
from model.digests import digest_bytes

LEASE_SECONDS = 60.0
"""Silence after which a lease is taken over from its holder."""

_BEAT_BYTES = 12

_RELEASED = "released"


class Process(TypedDict):
    """What identifies a process, so that others can check whether it is alive."""

    pid: int
    started: str | None
    """By the clock of its machine, in ticks since its boot; None where the system has no /proc."""
    host: str
    boot: str
    """The boot of the machine and the namespace of the pid; empty where the system has neither."""


class Holder(Process):
    """The holder of a lease, as its file names it."""

    since: str


@dataclass(frozen=True)
class Grant:
    """The latest grant of a lease, as its store has it."""

    number: int
    """0 if there was none."""
    record: object
    """What changes with each heartbeat; None where there is none, or a later grant has deleted it."""
    holder: Holder | None = None
    """None also where the record is damaged or not written yet."""
    is_released: bool = False

    @property
    def is_free(self) -> bool:
        """Return whether the holder released the lease, or is a dead process of this machine."""
        return self.record is None or self.is_released or is_known_dead(self.holder)

    def describe(self) -> str:
        """Return the holder in words."""
        if self.holder is None:
            return "another process, which has just begun or whose lease is damaged"
        return f"process {self.holder['pid']} on {self.holder['host']} since {self.holder['since']}"


class Lease(ABC):
    """A lease whose grants are in a store: a folder, or an object store (`tasks/artifacts/remote/leases.py`)."""

    beats: int
    """Heartbeats within the time after which others take over."""
    pauses: tuple[float, float]
    """Seconds between two polls of another holder's lease: the first, from which they grow by half, and the longest."""

    @abstractmethod
    def latest(self) -> Grant:
        """Return the latest grant."""

    @abstractmethod
    def _take(self, number: int) -> bool:
        """Create the grant of this number and delete old ones but the previous; return False if another process has
        the number."""

    @abstractmethod
    def _renew(self, beat: int) -> None:
        """Write the heartbeat counter. A store may refuse once; the next beat comes within the lease's time."""

    @abstractmethod
    def _release(self) -> None: ...

    @contextmanager
    def hold(self, on_wait: Callable[[str], None], seconds: float, on_alive: Callable[[str], None]) -> Iterator[Self]:
        """Hold the lease, after waiting for its present holder as `build_lease` says, and renew it in a thread."""
        self._acquire(on_wait, seconds, on_alive)
        done = threading.Event()

        def renew() -> None:
            beat = 0
            while not done.wait(seconds / self.beats):
                beat += 1
                self._renew(beat)

        renewer = threading.Thread(target=renew, daemon=True)
        renewer.start()
        try:
            yield self
        finally:
            done.set()
            renewer.join()
            self._release()

    def _acquire(self, on_wait: Callable[[str], None], seconds: float, on_alive: Callable[[str], None]) -> None:
        seen, since, reported, alive = None, time.monotonic(), False, False
        pause, longest = self.pauses
        while True:
            grant = self.latest()
            renewed = seen not in (None, grant)
            if grant != seen:
                seen, since = grant, time.monotonic()
            if grant.is_free or time.monotonic() - since > seconds:
                if self._take(grant.number + 1):
                    return
                continue
            if not reported:
                on_wait(grant.describe())
                reported = True
            if not alive and (renewed or is_known_alive(grant.holder)):
                on_alive(grant.describe())
                alive = True
            time.sleep(pause)
            pause = min(1.5 * pause, longest, max(seconds / self.beats, self.pauses[0]))


class FolderLease(Lease):
    """A lease whose grants are files in a folder."""

    beats, pauses = 12, (0.005, 0.2)

    def __init__(self, folder: Path) -> None:
        self._folder, self._number, self._handle, self.token = folder, 0, -1, ""

    def latest(self) -> Grant:
        """Return the latest grant."""
        number = _latest(self._folder)
        try:
            record = (self._folder / f"{number}.lease").read_bytes()
        except FileNotFoundError:
            return Grant(number, None)
        return Grant(number, record, _holder(record), record.startswith(_state(_RELEASED)))

    def is_lost(self) -> bool:
        """Return whether another builder took the lease over, which only happens to a suspended holder."""
        return _latest(self._folder) != self._number

    def _take(self, number: int) -> bool:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{number}.lease"
        holder: Holder = {**this_process(), "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())}
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            return False
        try:
            # A holder that is killed before this write is unknown, and waited for like one of another machine.
            os.pwrite(handle, _state("0") + seal(holder), 0)
        except OSError:
            path.unlink(missing_ok=True)
            os.close(handle)
            raise
        for old in self._folder.glob("*.lease"):
            # The previous grant stays: a listing while one name is deleted and the next created may show neither.
            if int(old.stem) < number - 1:
                old.unlink(missing_ok=True)
        if _latest(self._folder) != number:
            # Numbers far behind are free again: this process worked from an old listing.
            path.unlink(missing_ok=True)
            os.close(handle)
            return False
        self._number, self._handle, self.token = number, handle, f"{number:06d}-{secrets.token_hex(4)}"
        return True

    def _renew(self, beat: int) -> None:
        with suppress(OSError):
            os.pwrite(self._handle, _state(f"{beat}"), 0)

    def _release(self) -> None:
        os.pwrite(self._handle, _state(_RELEASED), 0)
        os.close(self._handle)


def ignore(sentence: str) -> None:
    """Do nothing: the callback of leases that report no waits."""


def build_lease(
    folder: Path,
    on_wait: Callable[[str], None],
    seconds: float = LEASE_SECONDS,
    on_alive: Callable[[str], None] = ignore,
) -> AbstractContextManager[FolderLease]:
    """Hold the lease in `folder`, after waiting for its present holder.

    `on_wait` is called once with a description of the holder ("process 4711 on host since 12:30:01") if there is one,
    and `on_alive` once it is known to be alive: a running process of this machine, or one whose counter changed. A
    holder that died with its machine is only recognised by its silence, so a caller that does not want to wait for a
    live one raises in `on_alive`.
    """
    return FolderLease(folder).hold(on_wait, seconds, on_alive)


def is_held(folder: Path) -> bool:
    """Return whether the lease is held: not released, and its holder not known to be dead."""
    return not FolderLease(folder).latest().is_free


def is_alive(folder: Path, seconds: float = LEASE_SECONDS) -> bool:
    """Return whether the lease is held by a live process: a holder on another machine, or from before this machine was
    restarted, must renew it within `seconds`. The lease of a silent holder is released."""
    return is_held(folder) and responds(lambda on_alive: build_lease(folder, ignore, seconds, on_alive))


def responds(lease: Callable[[Callable[[str], None]], AbstractContextManager[Any]]) -> bool:
    """Return whether a lease's holder proves alive before the lease is taken over; `lease` acquires it with
    `on_alive`."""

    def on_alive(holder: str) -> None:
        raise _AliveError

    try:
        with lease(on_alive):
            return False
    except _AliveError:
        return True


class _AliveError(Exception):
    """Ends a wait for a lease."""


def _latest(folder: Path) -> int:
    """Return the number of the latest grant; 0 if there was none."""
    return max((int(path.stem) for path in folder.glob("*.lease")), default=0)


def _state(word: str) -> bytes:
    """Return the first line of a grant's file, of fixed length: the heartbeat counter, or that the lease was
    released."""
    beat = word.rjust(_BEAT_BYTES).encode()
    return b"%s %s\n" % (beat, digest_bytes(beat).encode())


_STATE_BYTES = len(_state("0"))


def is_known_dead(holder: Process | None) -> bool:
    """Return whether a holder was a process of this machine and is dead; of None nothing is known."""
    return holder is not None and _is_of_this_machine(holder) and start_of(holder["pid"]) != holder["started"]


def is_known_alive(holder: Process | None) -> bool:
    """Return whether a holder is a live process of this machine; without /proc (macOS) nothing is known."""
    if holder is None or holder["started"] is None:
        return False
    return _is_of_this_machine(holder) and start_of(holder["pid"]) == holder["started"]


def is_of_an_earlier_boot(holder: Process | None) -> bool:
    """Return whether a holder ran on a machine of this one's name before its restart.

    Two machines may have the same name, so this does not free a lease.
    """
    here = this_process()
    if holder is None or holder["host"] != here["host"]:
        return False
    before, now = (one["boot"].partition(" ")[0] for one in (holder, here))
    return "" not in (before, now) and before != now


def _is_of_this_machine(holder: Process) -> bool:
    here = this_process()
    return (holder["host"], holder["boot"]) == (here["host"], here["boot"])


def _holder(record: bytes) -> Holder | None:
    """Return the holder named in a grant's file; None if the file is damaged or not written yet."""
    return None if not record or problem_of(record) else json.loads(unseal(record[_STATE_BYTES:]))


def problem_of(record: bytes) -> str | None:
    """Return why the bytes of a grant's file are damaged; None if they are intact or not written yet."""
    if not record:
        return None
    beat = record[:_BEAT_BYTES].decode(errors="replace").strip()
    if not record.startswith(_state(beat)) or not (beat == _RELEASED or (beat.isascii() and beat.isdigit())):
        return "its heartbeat is damaged"
    try:
        unseal(record[_STATE_BYTES:])
    except BrokenSeal as broken:
        return f"its holder is damaged: {broken}"
    return None


def this_process() -> Process:
    """Return what identifies this process."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return {
        "pid": os.getpid(),
        "started": start_of(os.getpid()),
        "host": platform.node(),
        "boot": f"{boot.read_text().strip()} {os.readlink('/proc/self/ns/pid')}" if boot.exists() else "",
    }


def start_of(pid: int) -> str | None:
    """Return when a process of this machine started, in ticks since its boot, which distinguishes it from a later one
    with its pid; None if it is dead, or the system has no /proc."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # The second where it ends between opening and reading.
        return None
    # The name of the program, in parentheses, may itself contain spaces and parentheses.
    state, *fields = status.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]
