"""An address of one's own on the S3 server, and roots of several machines before it."""

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.artifacts.remote import attach as attached
from tasks.artifacts.remote.object_store import ObjectStore


@pytest.fixture
def address(object_store, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix that nothing is under."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://bessemer/{secrets.token_hex(6)}"


@pytest.fixture
def store(address: str) -> ObjectStore:
    return ObjectStore(address)


@pytest.fixture
def machine(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """The root at the address as a machine of a name has it: each has a cache of its own."""

    def root_of(name: str) -> Path:
        monkeypatch.setenv(attached.CACHE, str(tmp_path / name))
        return attached.attached_root(address)

    return root_of
