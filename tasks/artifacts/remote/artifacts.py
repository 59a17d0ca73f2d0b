"""Artifacts in a store: parts first, each under its digest, then the manifest, which is created only if none stands."""

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from model.errors import IntegrityError
from tasks.artifacts.manifest import write_manifest
from tasks.artifacts.remote.attach import temporary_folder
from tasks.artifacts.remote.object_store import ObjectStore

MANIFESTS, PARTS = "manifests", "parts"

Manifest = dict[str, Any]

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def check_names(where: str, *names: str) -> None:
    """Raise IntegrityError where a name that came from a store would lead out of the folder that is named by it."""
    for name in names:
        if not _PLAIN.fullmatch(name):
            raise IntegrityError(
                f"{where} names {name!r}, and names in a store are plain, without folders. Somebody else wrote it, and"
                f" nothing was taken from it. Delete it and run again."
            )


def manifest_key(stage: str, identity: str) -> str:
    """The key of an artifact's manifest."""
    return f"{MANIFESTS}/{stage}/{identity}.json"


def parts_prefix(stage: str, identity: str) -> str:
    """What the keys of an artifact's files begin with."""
    return f"{PARTS}/{stage}/{identity}"


def part_key(stage: str, identity: str, digest: str) -> str:
    """The key of a file of an artifact."""
    return f"{parts_prefix(stage, identity)}/{digest}"


def stored_manifest(store: ObjectStore, stage: str, identity: str) -> Manifest | None:
    """The manifest that stands under an identity, None where none does."""
    try:
        return store.read(manifest_key(stage, identity))
    except FileNotFoundError:
        return None


def put_parts(store: ObjectStore, stage: str, identity: str, files: Mapping[str, tuple[Path, int]]) -> None:
    """Put files, given by digest with their sizes in bytes, that do not stand there yet."""
    there = store.under(parts_prefix(stage, identity))

    def put(digest: str, path: Path) -> Callable[[], None]:
        return lambda: store.put_file(part_key(stage, identity, digest), path, digest)

    missing = [
        put(digest, path)
        for digest, (path, size) in sorted(files.items())
        if (found := there.get(part_key(stage, identity, digest))) is None or found.bytes != size
    ]
    store.many(missing)


def put_artifact(
    store: ObjectStore, manifest: Manifest, file_of: Callable[[str], Path], *, replace: bool = False
) -> Manifest:
    """Make an artifact stand in the store; returns the manifest that stands, which is another builder's if that one
    was first. `file_of` gives the path of a file; `replace` puts the manifest over a damaged artifact's."""
    stage, identity = manifest["stage"], manifest["identity"]
    if not replace and (standing := stored_manifest(store, stage, identity)) is not None:
        return standing
    files = {file["digest"]: (file_of(file["name"]), file["bytes"]) for file in manifest["files"]}
    put_parts(store, stage, identity, files)
    if replace:
        store.write(manifest_key(stage, identity), manifest)
        return manifest
    if store.create(manifest_key(stage, identity), manifest):
        return manifest
    return store.read(manifest_key(stage, identity))


def fetch_manifest(root: Path, store: ObjectStore, stage: str, identity: str) -> bool:
    """Let the artifact of an identity stand under the root by its manifest alone, if the store has it; its files come
    when they are asked for."""
    manifest = stored_manifest(store, stage, identity)
    if manifest is None:
        return False
    if (manifest["stage"], manifest["identity"]) != (stage, identity):
        raise IntegrityError(
            f"{store.address}/{manifest_key(stage, identity)} holds the manifest of {manifest['stage']}/"
            f"{manifest['identity']}: somebody moved it. Delete it and run again."
        )
    stand(root, manifest)
    return True


def stand(root: Path, manifest: Manifest) -> None:
    """Make the folder of an artifact that holds its manifest and nothing else, if none stands; one rename."""
    check_names("a manifest", manifest["stage"], manifest["identity"], *(file["name"] for file in manifest["files"]))
    target = root / "artifacts" / manifest["stage"] / manifest["identity"]
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = temporary_folder(root) / f"stand-{secrets.token_hex(8)}"
    write_manifest(staging, manifest)
    try:
        os.rename(staging, target)
    except OSError:
        if not target.exists():
            raise
        shutil.rmtree(staging)


def fetch_files(root: Path, store: ObjectStore, artifact: Path, files: Iterable[Mapping[str, Any]]) -> None:
    """Bring files of an artifact under the root to its folder, given as its manifest lists them.

    Raises IntegrityError where the store has other bytes, or none.
    """
    stage, identity = artifact.parent.name, artifact.name
    via = temporary_folder(root)

    def bring(file: Mapping[str, Any]) -> Callable[[], None]:
        def fetch() -> None:
            key = part_key(stage, identity, file["digest"])
            try:
                store.fetch(key, artifact / file["name"], file["bytes"], file["digest"], via)
            except FileNotFoundError as error:
                raise IntegrityError(
                    f"{store.address}/{key} is gone, and the manifest of {stage}/{identity} lists it as {file['name']}:"
                    f" somebody deleted it. `bessemer store verify --set-aside --root {store.address}` takes the"
                    " artifact out"
                    f" of use, and the next run builds it again."
                ) from error

        return fetch

    store.many([bring(file) for file in files])


def withdraw(store: ObjectStore, stage: str, identity: str) -> None:
    """Take an artifact out of the store: its manifest first, so that none ever stands without its parts."""
    store.delete([manifest_key(stage, identity)])
    store.delete(store.under(parts_prefix(stage, identity)))
