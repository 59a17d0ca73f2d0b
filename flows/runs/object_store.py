"""Artifacts in an object store: verified against their manifests, repaired, and removed."""

import os
import time
import uuid
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from model.digests import digest_file
from model.errors import IntegrityError
from model.files import sync_directory
from tasks.artifacts.lease import LEASE_SECONDS
from tasks.artifacts.manifest import read_manifest
from tasks.artifacts.remote.artifacts import PARTS, manifest_key, part_key, parts_prefix, stored_manifest, withdraw
from tasks.artifacts.remote.attach import root_of, store_of
from tasks.artifacts.remote.erasure import erase
from tasks.artifacts.remote.leases import store_lease
from tasks.artifacts.remote.object_store import FETCHES, ObjectStore
from tasks.artifacts.remote.partial_builds import CHECKPOINTS, UNFINISHED, checkpoints_prefix, forget, unfinished_key
from tasks.artifacts.workspace import FileRecord

ASIDE = "aside"

Place = tuple[str, str]
"""Stage and identity."""


def manifest_problem(folder: Path) -> str | None:
    """Return what is wrong with the manifest that the store has of an artifact.

    Returns None also where it has none: the next run that needs the artifact uploads it.
    """
    store = store_of(root_of(folder))
    if store is None:
        return None
    try:
        there = stored_manifest(store, folder.parent.name, folder.name)
    except IntegrityError as error:
        return str(error)
    here = read_manifest(folder)
    if there is not None and there["content"] != here["content"]:
        return f"has the content {here['content']}, and in {store.address} it has {there['content']}"
    return None


def file_problem(folder: Path, record: FileRecord) -> str | None:
    """Return what is wrong with the store's copy of a file, read whole; None where it has no such artifact."""
    store = store_of(root_of(folder))
    if store is None:
        return None
    stage, identity = folder.parent.name, folder.name
    key = part_key(stage, identity, record.digest)
    found = ""
    try:
        for _ in range(FETCHES):
            found = store.digest(key, record.bytes)
            if found == record.digest:
                return None
    except FileNotFoundError:
        return f"is missing in {store.address}" if store.exists(manifest_key(stage, identity)) else None
    return f"has the digest {found} in {store.address}, and its manifest says {record.digest}"


def is_stored(folder: Path, record: FileRecord) -> bool:
    """Return whether the store behind a root has a file of an artifact, or should have it by its manifest there."""
    store = store_of(root_of(folder))
    stage, identity = folder.parent.name, folder.name
    keys = (part_key(stage, identity, record.digest), manifest_key(stage, identity))
    return store is not None and any(map(store.exists, keys))


def repair_artifact(folder: Path, names: Iterable[str]) -> str:
    """Upload files again of which the store has wrong bytes, or take the artifact out of use where one is missing or
    damaged here too: in the store, which keeps its manifest under `aside/`, and here. Return what was done, as a
    sentence."""
    store = store_of(root_of(folder))
    assert store is not None, "only artifacts of a store are damaged there"
    stage, identity = folder.parent.name, folder.name
    records = {record["name"]: record for record in read_manifest(folder)["files"]}
    damaged = [records[name] for name in names if name in records]
    keys = [part_key(stage, identity, record["digest"]) for record in damaged]
    if damaged and all(_is_whole(folder / record["name"], record["digest"]) for record in damaged):
        for key, record in zip(keys, damaged, strict=True):
            store.put_file(key, folder / record["name"], record["digest"])
        return f"{len(damaged)} files of {stage}/{identity} uploaded to {store.address} again from {folder}"
    aside = f"{ASIDE}/{stage}/{identity}-{uuid.uuid4().hex[:8]}.json"
    store.write(aside, read_manifest(folder))
    store.delete([manifest_key(stage, identity), *keys])
    if damaged:
        set_folder_aside(folder)
    return f"{stage}/{identity} taken out of use in {store.address}; its manifest is {aside}"


def set_folder_aside(folder: Path) -> Path:
    """Rename the folder of a damaged artifact, so that no run uses it; return the new one."""
    aside = folder.with_name(f"{folder.name}.damaged-{uuid.uuid4().hex[:8]}")
    os.rename(folder, aside)
    sync_directory(folder.parent)
    return aside


def remove_stored(store: ObjectStore, places: Collection[Place]) -> None:
    """Remove artifacts from a store, each under its lease, so that no process publishes it meanwhile."""
    for stage, identity in places:
        with store_lease(store, identity, lambda _: None, LEASE_SECONDS):
            withdraw(store, stage, identity)
            forget(store, stage, identity)


def erase_stored(store: ObjectStore, stage: str, identity: str) -> list[str]:
    """Delete all that a store has of an artifact, for good, under its lease; return what stays, as sentences."""
    with store_lease(store, identity, lambda _: None, LEASE_SECONDS):
        return erase(store, keys_of(stage, identity))


def keys_of(stage: str, identity: str) -> list[str]:
    """Return the beginnings of the keys of an artifact, the manifest first."""
    return [
        manifest_key(stage, identity),
        unfinished_key(stage, identity),
        f"{parts_prefix(stage, identity)}/",
        f"{checkpoints_prefix(stage, identity)}/",
        f"{ASIDE}/{stage}/{identity}-",
    ]


def list_leftovers(store: ObjectStore, known: Collection[Place], unfinished_since: float) -> list[Place]:
    """Return stage and identity of what builds left in a store and did not continue since `unfinished_since` (seconds
    since 1970): parts of artifacts other than the `known`, published ones, and files kept by unfinished builds."""
    newest: dict[Place, float] = {}
    for prefix in (PARTS, CHECKPOINTS, UNFINISHED):
        for key, entry in store.list_objects(prefix).items():
            _, stage, name = key.split("/", 2)
            place = (stage, name.partition("/")[0].removesuffix(".json"))
            if prefix != PARTS or place not in known:
                newest[place] = max(newest.get(place, 0.0), entry.written or time.time())
    return sorted(place for place, when in newest.items() if when < unfinished_since)


def remove_leftovers(store: ObjectStore, places: Collection[Place]) -> None:
    """Remove what builds left, each under its lease; an artifact published meanwhile keeps its parts."""
    for stage, identity in places:
        with store_lease(store, identity, lambda _: None, LEASE_SECONDS):
            forget(store, stage, identity)
            if not store.exists(manifest_key(stage, identity)):
                withdraw(store, stage, identity)


def _is_whole(path: Path, digest: Any) -> bool:
    return path.exists() and digest_file(path) == digest
