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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypedDict

from model.checksummed_json import BrokenSeal, seal, unseal
from model.digests import digest_bytes

LEASE_SECONDS = 60.0
"""Silence after which a lease is taken over from its holder."""

BEATS_PER_LEASE = 12

POLL_SECONDS = (0.005, 0.2)
"""Pauses between two polls of another holder's lease: the first, from which they grow by half, and the longest."""

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


class Lease:
    """A held lease; made by `build_lease`."""

    def __init__(self, folder: Path, number: int, token: str, handle: int, seconds: float) -> None:
        self.token = f"{number:06d}-{token}"
        self._folder = folder
        self._number = number
        self._handle = handle
        self._done = threading.Event()
        self._renewer = threading.Thread(target=self._renew, args=(seconds / BEATS_PER_LEASE,), daemon=True)
        self._renewer.start()

    def is_lost(self) -> bool:
        """Return whether another builder took the lease over, which only happens to a suspended holder."""
        return _latest(self._folder) != self._number

    def release(self) -> None:
        """Release the lease."""
        self._done.set()
        self._renewer.join()
        os.pwrite(self._handle, _state(_RELEASED), 0)
        os.close(self._handle)

    def _renew(self, pause: float) -> None:
        beat = 0
        while not self._done.wait(pause):
            beat += 1
            # A file system over a network may refuse once; the next beat comes within the lease's time.
            with suppress(OSError):
                os.pwrite(self._handle, _state(f"{beat}"), 0)


def ignore(sentence: str) -> None:
    """Do nothing: the callback of leases that report no waits."""


@contextmanager
def build_lease(
    folder: Path,
    on_wait: Callable[[str], None],
    seconds: float = LEASE_SECONDS,
    on_alive: Callable[[str], None] = ignore,
) -> Iterator[Lease]:
    """Hold the lease in `folder`, after waiting for its present holder.

    `on_wait` is called once with a description of the holder ("process 4711 on host since 12:30:01") if there is one,
    and `on_alive` once it is known to be alive: a running process of this machine, or one whose counter changed. A
    holder that died with its machine is only recognised by its silence, so a caller that does not want to wait for a
    live one raises in `on_alive`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lease = _acquire(folder, on_wait, seconds, on_alive)
    try:
        yield lease
    finally:
        lease.release()


def is_held(folder: Path) -> bool:
    """Return whether the lease is held: not released, and its holder not known to be dead."""
    number = _latest(folder)
    record = _read(folder, number) if number else None
    return record is not None and not _is_free(record)


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


def _acquire(folder: Path, on_wait: Callable[[str], None], seconds: float, on_alive: Callable[[str], None]) -> Lease:
    seen, since, reported, alive = None, time.monotonic(), False, False
    pause, longest = POLL_SECONDS
    while True:
        number = _latest(folder)
        record = _read(folder, number) if number else None
        renewed = False
        if (number, record) != seen:
            renewed = seen is not None
            seen, since = (number, record), time.monotonic()
        if record is None or _is_free(record) or time.monotonic() - since > seconds:
            lease = _grant(folder, number + 1, seconds)
            if lease is not None:
                return lease
            continue
        if not reported:
            on_wait(_describe(record))
            reported = True
        if not alive and (renewed or is_known_alive(_holder(record))):
            on_alive(_describe(record))
            alive = True
        time.sleep(pause)
        pause = min(1.5 * pause, longest, seconds / BEATS_PER_LEASE)


def _latest(folder: Path) -> int:
    """Return the number of the latest grant; 0 if there was none."""
    return max((int(path.stem) for path in folder.glob("*.lease")), default=0)


def _grant(folder: Path, number: int, seconds: float) -> Lease | None:
    """Take the number unless another process has it, and delete old grants.

    The previous grant stays: a listing of the folder while one name is deleted and the next created may show neither.
    """
    token = secrets.token_hex(4)
    holder: Holder = {**this_process(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    record = _state("0") + seal(holder)
    try:
        handle = os.open(folder / f"{number}.lease", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return None
    try:
        # A holder that is killed before this write is unknown, and waited for like one of another machine.
        os.pwrite(handle, record, 0)
    except OSError:
        (folder / f"{number}.lease").unlink(missing_ok=True)
        os.close(handle)
        raise
    for old in folder.glob("*.lease"):
        if int(old.stem) < number - 1:
            old.unlink(missing_ok=True)
    if _latest(folder) != number:
        # Numbers far behind are free again: this process worked from an old listing.
        (folder / f"{number}.lease").unlink(missing_ok=True)
        os.close(handle)
        return None
    return Lease(folder, number, token, handle, seconds)


def _state(word: str) -> bytes:
    """Return the first line of a grant's file, of fixed length: the heartbeat counter, or that the lease was
    released."""
    beat = word.rjust(_BEAT_BYTES).encode()
    return b"%s %s\n" % (beat, digest_bytes(beat).encode())


_STATE_BYTES = len(_state("0"))


def _read(folder: Path, number: int) -> bytes | None:
    """Return the bytes of a grant's file; None if a later grant has deleted it."""
    try:
        return (folder / f"{number}.lease").read_bytes()
    except FileNotFoundError:
        return None


def _is_free(record: bytes) -> bool:
    """Return whether the holder released the lease, or is a dead process of this machine."""
    return record.startswith(_state(_RELEASED)) or is_known_dead(_holder(record))


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


def _describe(record: bytes) -> str:
    holder = _holder(record)
    if holder is None:
        return "another process, which has just begun or whose lease is damaged"
    return f"process {holder['pid']} on {holder['host']} since {holder['since']}"


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
