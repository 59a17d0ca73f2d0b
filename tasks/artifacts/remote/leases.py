"""Who builds an identity now, told in the store, so that two machines do not do the same work twice.

As with the lease of one machine (`tasks/artifacts/lease.py`), each grant has a number, and its object is created only
if absent, so that of two that want a number one gets it; the holder puts a beat into it now and then, and others take
over once it was given back, its holder is known dead, or the beat stood still for the whole of `seconds` on their own
clock. No clock is ever compared with another's.

A lease saves work and never carries correctness: two builders at once end with one artifact, since the manifest is
created only if absent.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from model.errors import BessemerError
from tasks.artifacts.lease import is_ever_alive, is_known_alive, is_known_dead, no_word, this_process
from tasks.artifacts.remote.object_store import ObjectStore

log = logging.getLogger(__name__)

LEASES = "leases"

BEATS_PER_LEASE = 6

POLL_SECONDS = (0.2, 2.0)
"""Pauses between two looks at another's lease: the first, from which they grow by half, and the longest."""


class StoreLease:
    """A lease in a store that is held; made by `store_lease`."""

    def __init__(self, store: ObjectStore, identity: str, number: int, told: dict[str, Any], seconds: float) -> None:
        self._store, self._identity, self._number, self._told = store, identity, number, told
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, args=(seconds / BEATS_PER_LEASE,), daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Give the lease back. A store that fails now leaves others to wait until the lease has passed."""
        self._done.set()
        self._thread.join()
        self._write({**self._told, "released": True})

    def _renew(self, pause: float) -> None:
        while not self._done.wait(pause):
            self._told["beat"] += 1
            self._write(self._told)

    def _write(self, told: dict[str, Any]) -> None:
        try:
            self._store.write(_key(self._identity, self._number), told)
        except BessemerError as error:
            log.warning("the lease of %s could not be renewed: %s", self._identity, error)


@contextmanager
def store_lease(
    store: ObjectStore,
    identity: str,
    on_wait: Callable[[str], None],
    seconds: float,
    on_alive: Callable[[str], None] = no_word,
) -> Iterator[StoreLease]:
    """Hold the lease of an identity; `on_wait` and `on_alive` are called as by `build_lease`."""
    lease = _acquire(store, identity, on_wait, seconds, on_alive)
    try:
        yield lease
    finally:
        lease.release()


def held_identities(store: ObjectStore) -> list[str]:
    """Identities that somebody may be building: leases neither given back nor of a process known dead."""
    latest: dict[str, int] = {}
    for key in store.under(LEASES):
        _, identity, name = key.split("/")
        latest[identity] = max(latest.get(identity, 0), int(name.partition(".")[0]))
    return [identity for identity, number in latest.items() if not _is_free(_read(store, identity, number))]


def is_alive_in_store(store: ObjectStore, identity: str, seconds: float) -> bool:
    """Whether the holder of an identity's lease shows itself within `seconds`; a silent one's is given back for it."""
    return is_ever_alive(lambda on_alive: store_lease(store, identity, no_word, seconds, on_alive))


def _acquire(
    store: ObjectStore,
    identity: str,
    on_wait: Callable[[str], None],
    seconds: float,
    on_alive: Callable[[str], None],
) -> StoreLease:
    seen, since, told, lives = None, time.monotonic(), False, False
    pause, longest = POLL_SECONDS
    while True:
        numbers = _numbers(store, identity)
        number = max(numbers, default=0)
        record = _read(store, identity, number) if number else None
        renewed = False
        if (number, record) != seen:
            renewed = seen is not None
            seen, since = (number, record), time.monotonic()
        if _is_free(record) or time.monotonic() - since > seconds:
            mine = {
                "holder": {**this_process(), "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())},
                "token": secrets.token_hex(8),
                "beat": 0,
                "released": False,
            }
            if store.create(_key(identity, number + 1), mine):
                store.delete(_key(identity, old) for old in numbers if old < number)
                return StoreLease(store, identity, number + 1, mine, seconds)
            continue
        holder = record["holder"] if record else {}
        words = f"process {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}"
        if not told:
            on_wait(words)
            told = True
        if not lives and (renewed or is_known_alive(holder)):
            on_alive(words)
            lives = True
        time.sleep(pause)
        pause = min(1.5 * pause, longest, max(seconds / BEATS_PER_LEASE, POLL_SECONDS[0]))


def _numbers(store: ObjectStore, identity: str) -> list[int]:
    return [int(key.rpartition("/")[2].partition(".")[0]) for key in store.under(f"{LEASES}/{identity}")]


def _read(store: ObjectStore, identity: str, number: int) -> dict[str, Any] | None:
    try:
        return store.read(_key(identity, number))
    except FileNotFoundError:
        return None


def _is_free(record: dict[str, Any] | None) -> bool:
    return record is None or record["released"] or is_known_dead(record["holder"])


def _key(identity: str, number: int) -> str:
    return f"{LEASES}/{identity}/{number:06d}.json"
