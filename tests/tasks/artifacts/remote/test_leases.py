"""Who holds a lease in a store, and how it is known that a holder lives."""

import time
from typing import Any

import pytest

from tasks.artifacts.lease import ignore, this_process
from tasks.artifacts.remote.leases import held_identities, is_alive_in_store, store_lease
from tasks.artifacts.remote.object_store import ObjectStore

IDENTITY = "ab" * 16


def written(store: ObjectStore, **changes: Any) -> None:
    """A lease as another process of this machine would have left it, but for `changes`."""
    holder = {**this_process(), "since": "then", **changes}
    record = {"holder": holder, "token": "000007-x", "beat": 3, "released": False}
    assert store.create(f"leases/{IDENTITY}/000007.json", record)


@pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"boot": "an earlier start"}])
def test_a_holder_that_went_down_with_its_machine_holds_until_its_silence_decides(
    store: ObjectStore, change: dict[str, object]
) -> None:
    written(store, pid=2**22 + 1, **change)
    assert held_identities(store) == [IDENTITY]
    assert not is_alive_in_store(store, IDENTITY, 0.5)
    assert held_identities(store) == []


def test_who_would_not_wait_hears_at_once_of_a_holder_that_lives(store: ObjectStore) -> None:
    def on_alive(words: str) -> None:
        raise LookupError(words)

    with store_lease(store, IDENTITY, ignore, 60.0):
        began = time.monotonic()
        with pytest.raises(LookupError, match="process "), store_lease(store, IDENTITY, ignore, 60.0, on_alive):
            pass
        assert is_alive_in_store(store, IDENTITY, 60.0)
        assert time.monotonic() - began < 5.0
