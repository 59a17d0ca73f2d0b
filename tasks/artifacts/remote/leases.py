"""Leases in an object store, so that two machines do not build the same artifact.

As with the lease of one machine (`tasks/artifacts/lease.py`), each grant has a number, and its object is created only
if absent, so that of two processes that want a number one gets it. The holder increments a heartbeat counter in it, and
others take over when it was released, its holder is known to be dead, or the counter did not change for `seconds` on
their own clock. Clocks of two machines are never compared.

A lease saves work and is not needed for correctness: two simultaneous builders end with one artifact, since the
manifest is created only if absent."""

import logging
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypedDict

from model.errors import BessemerError
from tasks.artifacts.lease import Grant, Holder, Lease, ignore, responds, this_process
from tasks.artifacts.remote.object_store import ObjectStore

log = logging.getLogger(__name__)

LEASES = "leases"


class StoredGrant(TypedDict):
    """A grant of a lease, as its object holds it."""

    holder: Holder
    token: str
    beat: int
    released: bool


class StoreLease(Lease):
    """A lease whose grants are objects in a store."""

    beats, pauses = 6, (0.2, 2.0)

    def __init__(self, store: ObjectStore, identity: str) -> None:
        self._store, self._identity = store, identity

    def latest(self) -> Grant:
        """Return the latest grant."""
        keys = self._store.list_objects(f"{LEASES}/{self._identity}")
        self._numbers = [int(key.rpartition("/")[2].partition(".")[0]) for key in keys]
        number = max(self._numbers, default=0)
        return _grant(number, self._store.find(_key(self._identity, number)) if number else None)

    def _take(self, number: int) -> bool:
        self._key = _key(self._identity, number)
        self._grant: StoredGrant = {
            "holder": {**this_process(), "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())},
            "token": secrets.token_hex(8),
            "beat": 0,
            "released": False,
        }
        if not self._store.create(self._key, self._grant):
            return False
        self._store.delete(_key(self._identity, old) for old in self._numbers if old < number - 1)
        return True

    def _renew(self, beat: int) -> None:
        self._grant["beat"] = beat
        self._write()

    def _release(self) -> None:
        # If the store fails now, others wait until the lease expires.
        self._grant["released"] = True
        self._write()

    def _write(self) -> None:
        try:
            self._store.write(self._key, self._grant)
        except BessemerError as error:
            log.warning("the lease of %s could not be renewed: %s", self._identity, error)


def store_lease(
    store: ObjectStore,
    identity: str,
    on_wait: Callable[[str], None],
    seconds: float,
    on_alive: Callable[[str], None] = ignore,
) -> AbstractContextManager[StoreLease]:
    """Hold the lease of an identity; `on_wait` and `on_alive` are called as by `build_lease`."""
    return StoreLease(store, identity).hold(on_wait, seconds, on_alive)


def held_identities(store: ObjectStore) -> list[str]:
    """Return the identities that may be in work: their leases are neither released nor held by a dead process."""
    latest: dict[str, int] = {}
    for key in store.list_objects(LEASES):
        _, identity, name = key.split("/")
        latest[identity] = max(latest.get(identity, 0), int(name.partition(".")[0]))
    return [
        identity
        for identity, number in latest.items()
        if not _grant(number, store.find(_key(identity, number))).is_free
    ]


def is_alive_in_store(store: ObjectStore, identity: str, seconds: float) -> bool:
    """Return whether the holder of an identity's lease renews it within `seconds`; releases that of a silent one."""
    return responds(lambda on_alive: store_lease(store, identity, ignore, seconds, on_alive))


def _grant(number: int, stored: StoredGrant | None) -> Grant:
    return Grant(number, None) if stored is None else Grant(number, stored, stored["holder"], stored["released"])


def _key(identity: str, number: int) -> str:
    return f"{LEASES}/{identity}/{number:06d}.json"
