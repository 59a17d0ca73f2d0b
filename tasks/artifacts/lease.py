"""One builder per identity: a lease that its holder keeps renewing, and that passes on when it no longer does.

`locks/IDENTITY/` holds one small file for each time the lease was granted, numbered; the highest number holds. A file
is made with O_EXCL, so of two that want the next number exactly one gets it. The holder renews by counting up a beat
in its file. Others take the lease over when its holder gave it back, is a dead process of this machine, or let the
beat stand still for the whole of `lease_seconds` on the *observer's* monotonic clock: no clock is ever compared with
another's, so that clocks may jump and differ. Beat and holder each stand with a digest; of a damaged file only that
silence tells.

A lease saves work and never carries correctness: a holder that was paused past its end cannot know. That is why each
grant has a token, and each token a work folder of its own (`tasks/artifacts/build.py`): the next holder renames that
folder, and the late one finds nothing where it left off."""

import json
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from model.checksummed_json import BrokenSeal, seal, unseal
from model.digests import digest_bytes

LEASE_SECONDS = 60.0
"""A holder that shows no sign of life for so long is passed over."""

BEATS_PER_LEASE = 12

POLL_SECONDS = (0.005, 0.2)
"""Pauses between two looks at another's lease: the first, from which they grow by half, and the longest."""

_BEAT_BYTES = 12

_RELEASED = "released"


class Lease:
    """A lease that is held; made by `build_lease`."""

    def __init__(self, folder: Path, number: int, token: str, handle: int, seconds: float) -> None:
        self.token = f"{number:06d}-{token}"
        self._folder = folder
        self._number = number
        self._handle = handle
        self._done = threading.Event()
        self._renewer = threading.Thread(target=self._renew, args=(seconds / BEATS_PER_LEASE,), daemon=True)
        self._renewer.start()

    def is_lost(self) -> bool:
        """Whether another builder took the lease over, which can only happen to one that was paused."""
        return _latest(self._folder) != self._number

    def release(self) -> None:
        """Give the lease back."""
        self._done.set()
        self._renewer.join()
        os.pwrite(self._handle, _state(_RELEASED), 0)
        os.close(self._handle)

    def _renew(self, pause: float) -> None:
        beat = 0
        while not self._done.wait(pause):
            beat += 1
            os.pwrite(self._handle, _state(f"{beat}"), 0)


def no_word(holder: str) -> None:
    """For leases whose wait is told to nobody."""


@contextmanager
def build_lease(
    folder: Path,
    on_wait: Callable[[str], None],
    seconds: float = LEASE_SECONDS,
    on_alive: Callable[[str], None] = no_word,
) -> Iterator[Lease]:
    """Hold the lease kept in `folder`.

    `on_wait` is called once with the holder in words ("process 4711 on host since 12:30:01") where one has to be
    waited for, and `on_alive` once a holder is known to live: a process of this machine that stands, or one that was
    seen to renew. Of one that went down with its machine only silence tells, so that whoever would rather not wait
    raises in `on_alive`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lease = _acquire(folder, on_wait, seconds, on_alive)
    try:
        yield lease
    finally:
        lease.release()


def is_held(folder: Path) -> bool:
    """Whether somebody may be building under this lease: it was not given back, and its holder is not known dead."""
    number = _latest(folder)
    record = _read(folder, number) if number else None
    return record is not None and not _is_free(record)


def is_alive(folder: Path, seconds: float = LEASE_SECONDS) -> bool:
    """Whether somebody builds under this lease: `is_held`, and a holder on another machine, or before this one was
    started anew, has shown itself within `seconds`. A silent one's lease is given back for it."""
    return is_held(folder) and is_ever_alive(lambda on_alive: build_lease(folder, no_word, seconds, on_alive))


def is_ever_alive(lease: Callable[[Callable[[str], None]], AbstractContextManager[Any]]) -> bool:
    """Whether the holder of a lease shows itself before the lease passes on; given what makes it, with `on_alive`."""

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
    seen, since, told, lives = None, time.monotonic(), False, False
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
        if not told:
            on_wait(_words(record))
            told = True
        if not lives and (renewed or is_known_alive(_holder(record))):
            on_alive(_words(record))
            lives = True
        time.sleep(pause)
        pause = min(1.5 * pause, longest, seconds / BEATS_PER_LEASE)


def _latest(folder: Path) -> int:
    """The number of the latest grant; 0 where there was none."""
    return max((int(path.stem) for path in folder.glob("*.lease")), default=0)


def _grant(folder: Path, number: int, seconds: float) -> Lease | None:
    """Take the number if nobody else has, and forget old grants.

    The grant before stays: a listing of the folder made while one name goes and the next comes may show neither.
    """
    token = secrets.token_hex(4)
    holder = {**this_process(), "since": time.strftime("%Y-%m-%d %H:%M:%S"), "seconds": seconds}
    record = _state("0") + seal(holder)
    try:
        handle = os.open(folder / f"{number}.lease", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return None
    try:
        # A holder killed before this is known to nobody, and waited for as one that lives elsewhere.
        os.pwrite(handle, record, 0)
    except OSError:
        (folder / f"{number}.lease").unlink(missing_ok=True)
        os.close(handle)
        raise
    for old in folder.glob("*.lease"):
        if int(old.stem) < number - 1:
            old.unlink(missing_ok=True)
    if _latest(folder) != number:
        # Numbers far behind are free again; whoever asks for one worked from an old listing.
        (folder / f"{number}.lease").unlink(missing_ok=True)
        os.close(handle)
        return None
    return Lease(folder, number, token, handle, seconds)


def _state(word: str) -> bytes:
    """The first line of a grant's file, always as long: a beat, or that the lease was given back."""
    beat = word.rjust(_BEAT_BYTES).encode()
    return b"%s %s\n" % (beat, digest_bytes(beat).encode())


_STATE_BYTES = len(_state("0"))


def _read(folder: Path, number: int) -> bytes | None:
    """What the file of a grant says now; None where a later grant has removed it since."""
    try:
        return (folder / f"{number}.lease").read_bytes()
    except FileNotFoundError:
        return None


def _is_free(record: bytes) -> bool:
    """Whether the holder gave the lease back, or is known to be dead because it lived on this very machine."""
    return record.startswith(_state(_RELEASED)) or is_known_dead(_holder(record))


def is_known_dead(holder: dict[str, Any]) -> bool:
    """Whether a holder, as `this_process` tells of one, lived on this very machine and no longer does."""
    return _is_of_this_machine(holder) and _started(holder["pid"]) != holder["started"]


def is_known_alive(holder: dict[str, Any]) -> bool:
    """Whether a holder lives on this very machine."""
    return _is_of_this_machine(holder) and _started(holder["pid"]) == holder["started"]


def is_of_an_earlier_boot(holder: dict[str, Any]) -> bool:
    """Whether a holder lived on a machine of this one's name that was started anew since.

    Two machines may have one name, so that no lease passes on for this.
    """
    here = this_process()
    boots = [one.get("boot", "").partition(" ")[0] for one in (holder, here)]
    return holder.get("host") == here["host"] and all(boots) and boots[0] != boots[1]


def _is_of_this_machine(holder: dict[str, Any]) -> bool:
    here = this_process()
    return all(holder.get(key) == here[key] for key in ("host", "boot"))


def _holder(record: bytes) -> dict[str, Any]:
    """The holder as its file names it; empty where the file is damaged, and before it has written itself down."""
    return {} if not record or problem_of(record) else json.loads(unseal(record[_STATE_BYTES:]))


def problem_of(record: bytes) -> str | None:
    """Why the bytes of a grant's file are not what was written; None where they are, and before a word was written."""
    if not record:
        return None
    beat = record[:_BEAT_BYTES].decode(errors="replace").strip()
    if not record.startswith(_state(beat)) or not (beat == _RELEASED or (beat.isascii() and beat.isdigit())):
        return "its beat is not what was written"
    try:
        unseal(record[_STATE_BYTES:])
    except BrokenSeal as broken:
        return f"its holder is not what was written: {broken}"
    return None


def _words(record: bytes) -> str:
    holder = _holder(record)
    if not holder:
        return "another process that has just begun, or whose lease is damaged"
    return f"process {holder['pid']} on {holder['host']} since {holder['since']}"


def this_process() -> dict[str, Any]:
    """This process, so that others can tell whether it still lives: its number, its start, its machine's boot."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return {
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "host": platform.node(),
        "boot": f"{boot.read_text().strip()} {os.readlink('/proc/self/ns/pid')}" if boot.exists() else "",
    }


def _started(pid: int) -> str | None:
    """When a process of this machine started, so that a later one with its number is told apart; None if it is gone."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None
    # The name of the program, in parentheses, may itself hold blanks and parentheses.
    state, *fields = status.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]
