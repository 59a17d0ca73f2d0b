"""Leases in an object store, so that two machines do not build the same artifact.

As with the lease of one machine (`tasks/artifacts/lease.py`), each grant has a number, and its object is created only
if absent, so that of two processes that want a number one gets it. The holder increments a heartbeat counter in it, and
others take over when it was released, its holder is known to be dead, or the counter did not change for `seconds` on
their own clock. Clocks of two machines are never compared.

A lease saves work and is not needed for correctness: two simultaneous builders end with one artifact, since the
manifest is created only if absent."""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypedDict

from model.errors import BessemerError
from tasks.artifacts.lease import Holder, ignore, is_known_alive, is_known_dead, responds, this_process
from tasks.artifacts.remote.object_store import ObjectStore

log = logging.getLogger(__name__)

LEASES = "leases"

BEATS_PER_LEASE = 6

POLL_SECONDS = (0.2, 2.0)
"""Pauses between two polls of another holder's lease: the first, from which they grow by half, and the longest."""


class Grant(TypedDict):
    """A grant of a lease, as its object holds it."""

    holder: Holder
    token: str
    beat: int
    released: bool


class StoreLease:
    """A held lease in a store; made by `store_lease`."""

    def __init__(self, store: ObjectStore, identity: str, number: int, grant: Grant, seconds: float) -> None:
        self._store, self._identity, self._number, self._grant = store, identity, number, grant
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, args=(seconds / BEATS_PER_LEASE,), daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Release the lease. If the store fails now, others wait until the lease expires."""
        self._done.set()
        self._thread.join()
        self._write({**self._grant, "released": True})

    def _renew(self, pause: float) -> None:
        while not self._done.wait(pause):
            self._grant["beat"] += 1
            self._write(self._grant)

    def _write(self, grant: Grant) -> None:
        try:
            self._store.write(_key(self._identity, self._number), grant)
        except BessemerError as error:
            log.warning("the lease of %s could not be renewed: %s", self._identity, error)


@contextmanager
def store_lease(
    store: ObjectStore,
    identity: str,
    on_wait: Callable[[str], None],
    seconds: float,
    on_alive: Callable[[str], None] = ignore,
) -> Iterator[StoreLease]:
    """Hold the lease of an identity; `on_wait` and `on_alive` are called as by `build_lease`."""
    lease = _acquire(store, identity, on_wait, seconds, on_alive)
    try:
        yield lease
    finally:
        lease.release()


def held_identities(store: ObjectStore) -> list[str]:
    """Return the identities that may be in work: their leases are neither released nor held by a dead process."""
    latest: dict[str, int] = {}
    for key in store.list_objects(LEASES):
        _, identity, name = key.split("/")
        latest[identity] = max(latest.get(identity, 0), int(name.partition(".")[0]))
    grants: dict[str, Grant | None] = {
        identity: store.find(_key(identity, number)) for identity, number in latest.items()
    }
    return [identity for identity, grant in grants.items() if grant is not None and not _is_free(grant)]


def is_alive_in_store(store: ObjectStore, identity: str, seconds: float) -> bool:
    """Return whether the holder of an identity's lease renews it within `seconds`; releases that of a silent one."""
    return responds(lambda on_alive: store_lease(store, identity, ignore, seconds, on_alive))


def _acquire(
    store: ObjectStore, identity: str, on_wait: Callable[[str], None], seconds: float, on_alive: Callable[[str], None]
) -> StoreLease:
    seen, since, reported, alive = None, time.monotonic(), False, False
    pause, longest = POLL_SECONDS
    while True:
        numbers = _numbers(store, identity)
        number = max(numbers, default=0)
        record: Grant | None = store.find(_key(identity, number)) if number else None
        renewed = False
        if (number, record) != seen:
            renewed = seen is not None
            seen, since = (number, record), time.monotonic()
        if record is None or _is_free(record) or time.monotonic() - since > seconds:
            grant: Grant = {
                "holder": {**this_process(), "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())},
                "token": secrets.token_hex(8),
                "beat": 0,
                "released": False,
            }
            if store.create(_key(identity, number + 1), grant):
                store.delete(_key(identity, old) for old in numbers if old < number)
                return StoreLease(store, identity, number + 1, grant, seconds)
            continue
        holder = record["holder"]
        description = f"process {holder['pid']} on {holder['host']} since {holder['since']}"
        if not reported:
            on_wait(description)
            reported = True
        if not alive and (renewed or is_known_alive(holder)):
            on_alive(description)
            alive = True
        time.sleep(pause)
        pause = min(1.5 * pause, longest, max(seconds / BEATS_PER_LEASE, POLL_SECONDS[0]))


def _numbers(store: ObjectStore, identity: str) -> list[int]:
    return [int(key.rpartition("/")[2].partition(".")[0]) for key in store.list_objects(f"{LEASES}/{identity}")]


def _is_free(grant: Grant) -> bool:
    return grant["released"] or is_known_dead(grant["holder"])


def _key(identity: str, number: int) -> str:
    return f"{LEASES}/{identity}/{number:06d}.json"
