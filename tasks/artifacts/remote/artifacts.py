"""Artifacts in a store: files first, each under its digest, then the manifest, which is created only if absent."""

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from model.errors import IntegrityError
from tasks.artifacts.manifest import Manifest, write_manifest
from tasks.artifacts.remote.attach import temporary_folder
from tasks.artifacts.remote.object_store import ObjectStore
from tasks.artifacts.workspace import FileRecord

MANIFESTS, PARTS = "manifests", "parts"

_PLAIN = re.compile(r"\.?[A-Za-z0-9_][A-Za-z0-9._-]*")


def check_names(where: str, *names: str) -> None:
    """Raise IntegrityError if a name read from a store leads out of the folder that it names."""
    for name in names:
        if not _PLAIN.fullmatch(name):
            raise IntegrityError(
                f"{where} names {name!r}, and names in a store are plain, without folders. Somebody else wrote it, and"
                f" nothing was read from it. Delete it and run again."
            )


def manifest_key(stage: str, identity: str) -> str:
    """Return the key of an artifact's manifest."""
    return f"{MANIFESTS}/{stage}/{identity}.json"


def parts_prefix(stage: str, identity: str) -> str:
    """Return the prefix of the keys of an artifact's files."""
    return f"{PARTS}/{stage}/{identity}"


def part_key(stage: str, identity: str, digest: str) -> str:
    """Return the key of a file of an artifact."""
    return f"{parts_prefix(stage, identity)}/{digest}"


def stored_manifest(store: ObjectStore, stage: str, identity: str) -> Manifest | None:
    """Return the stored manifest of an identity; None if there is none."""
    return store.find(manifest_key(stage, identity))


def put_parts(
    store: ObjectStore, stage: str, identity: str, files: Mapping[str, tuple[Path, int]], *, replace: bool = False
) -> None:
    """Upload files, given as digest -> (path, size in bytes), that the store does not have; all of them with
    `replace`, since damaged bytes may have the right size."""
    stored = {} if replace else store.list_objects(parts_prefix(stage, identity))

    def put(digest: str, path: Path) -> Callable[[], None]:
        return lambda: store.put_file(part_key(stage, identity, digest), path, digest)

    missing = [
        put(digest, path)
        for digest, (path, size) in sorted(files.items())
        if (found := stored.get(part_key(stage, identity, digest))) is None or found.bytes != size
    ]
    store.run_all(missing)


def put_artifact(
    store: ObjectStore, manifest: Manifest, file_of: Callable[[str], Path], *, replace: bool = False
) -> Manifest:
    """Publish an artifact in the store and return its stored manifest, which is another builder's if that one was
    first.

    `file_of` returns the path of a file; `replace` overwrites a damaged artifact.
    """
    stage, identity = manifest["stage"], manifest["identity"]
    if not replace and (existing := stored_manifest(store, stage, identity)) is not None:
        return existing
    files = {file["digest"]: (file_of(file["name"]), file["bytes"]) for file in manifest["files"]}
    put_parts(store, stage, identity, files, replace=replace)
    if replace:
        store.write(manifest_key(stage, identity), manifest)
        return manifest
    if store.create(manifest_key(stage, identity), manifest):
        return manifest
    return store.read(manifest_key(stage, identity))


def fetch_manifest(root: Path, store: ObjectStore, stage: str, identity: str) -> bool:
    """Create a stub under the root for an artifact that the store has; return whether it has it.

    Its files are fetched when they are read.
    """
    manifest = stored_manifest(store, stage, identity)
    if manifest is None:
        return False
    if (manifest["stage"], manifest["identity"]) != (stage, identity):
        raise IntegrityError(
            f"{store.address}/{manifest_key(stage, identity)} holds the manifest of {manifest['stage']}/"
            f"{manifest['identity']}: somebody moved it. Delete it and run again."
        )
    create_stub(root, manifest)
    return True


def create_stub(root: Path, manifest: Manifest) -> None:
    """Create the folder of an artifact with its manifest and nothing else, by one rename, if it does not exist."""
    check_names("a manifest", manifest["stage"], manifest["identity"], *(file["name"] for file in manifest["files"]))
    target = root / "artifacts" / manifest["stage"] / manifest["identity"]
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = temporary_folder(root) / f"stub-{manifest['identity']}-{secrets.token_hex(8)}"
    write_manifest(staging, manifest)
    try:
        os.rename(staging, target)
    except OSError:
        if not target.exists():
            raise
        shutil.rmtree(staging)


def fetch_files(root: Path, store: ObjectStore, artifact: Path, files: Iterable[FileRecord]) -> None:
    """Fetch files of an artifact into its folder under the root.

    Raises IntegrityError if the store has other bytes, or none.
    """
    stage, identity = artifact.parent.name, artifact.name
    via = temporary_folder(root)

    def request(file: FileRecord) -> Callable[[], None]:
        def fetch() -> None:
            key = part_key(stage, identity, file.digest)
            try:
                store.fetch(key, artifact / file.name, file.bytes, file.digest, via)
            except FileNotFoundError as error:
                raise IntegrityError(
                    f"{store.address}/{key} is missing, and the manifest of {stage}/{identity} lists it as"
                    f" {file.name}: somebody deleted it. `bessemer store verify --set-aside --root {store.address}`"
                    f" sets the artifact aside, and the next run builds it again."
                ) from error

        return fetch

    store.run_all([request(file) for file in files])


def withdraw(store: ObjectStore, stage: str, identity: str) -> None:
    """Delete an artifact from the store: its manifest first, so that no manifest exists without its files."""
    store.delete([manifest_key(stage, identity)])
    store.delete(store.list_objects(parts_prefix(stage, identity)))
