"""A published artifact on disk: its manifest, its files where they are in a store alone, and whether all are whole."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from model.errors import InputError, IntegrityError
from model.reading import digest_file
from tasks.digests import combined_digest
from tasks.schema import FORMAT, OLDEST
from tasks.store.attached import root_of, store_of
from tasks.store.published import fetch_files, fetch_manifest
from tasks.workspace import FileRecord

MANIFEST = "manifest.json"


def read_manifest(path: Path) -> tuple[Path, dict[str, Any]]:
    """The manifest of the artifact at `path`, from the store that the root stands before where it is not here, and the
    folder that it describes: a copy in this format where the artifact is of another.

    Raises InputError where the folder is gone or of another format, IntegrityError where its manifest is damaged.
    """
    store = None if path.exists() else store_of(root_of(path))
    if not path.exists() and not (store and fetch_manifest(root_of(path), store, path.parent.name, path.name)):
        raise InputError(
            f"{path} no longer stands: somebody removed it. Run the recipe again, and it is rebuilt; artifacts made"
            f" from it are reused if it comes out the same."
        )
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        if manifest["format"] != FORMAT:
            return read_manifest(_successor(path, manifest))
        for part in ("stage", "identity", "content"):
            manifest[part]
        return path, manifest
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise IntegrityError(
            f"{path} is not a finished artifact: its {MANIFEST} is missing or unreadable ({error})."
            f" Put it out of the way with `bessemer verify --set-aside`, and run again."
        ) from error


def fetch(artifact: Path, records: Sequence[FileRecord]) -> None:
    """Bring files that are not here yet from the store that the root stands before, if it stands before one.

    Raises IntegrityError where the store has other bytes than the manifest says, or none.
    """
    missing = [record for record in records if not (artifact / record.name).exists()]
    store = store_of(root_of(artifact)) if missing else None
    if store is not None:
        fetch_files(root_of(artifact), store, artifact, [asdict(record) for record in missing])


def checked(artifact: Path, record: FileRecord) -> Path:
    """The path of a file, after its bytes were hashed and agree with the manifest (once per process)."""
    fetch(artifact, [record])
    _check(artifact / record.name, record.digest, artifact)
    return artifact / record.name


def is_whole(artifact: Path, record: FileRecord) -> bool:
    """Whether a file's bytes agree with the manifest."""
    try:
        fetch(artifact, [record])
    except IntegrityError:
        return False
    path = artifact / record.name
    return path.exists() and digest_file(path) == record.digest


def content_digest(records: Sequence[FileRecord]) -> str:
    """BLAKE3 over sorted names and digests of the deterministic files."""
    return combined_digest((record.name, record.digest) for record in records if record.deterministic)


def upgraded_file(path: Path) -> Path:
    """The file that leads from an artifact of an earlier format to its copy in this one, where there is one."""
    return root_of(path) / "aliases" / "upgraded" / path.parent.name / f"{path.name}.json"


def is_set_aside(path: Path) -> bool:
    """Whether the folder holds an artifact that no run may use: it contradicts another, or its bytes are damaged."""
    return ".conflict-" in path.name or ".damaged-" in path.name


def _successor(path: Path, manifest: Mapping[str, Any]) -> Path:
    """The copy in this format of an artifact of another."""
    file = upgraded_file(path)
    if file.exists():
        return path.with_name(json.loads(file.read_text())["identity"])
    raise of_another_format(path, manifest)


def of_another_format(path: Path, manifest: Mapping[str, Any]) -> InputError:
    """The error that an artifact of another format is: which version made it, and what to do."""
    found, commit = manifest["format"], (manifest.get("git") or {}).get("commit")
    if found > FORMAT:
        cure = "A later version made it: use that one, or another --root."
    elif found < OLDEST:
        cure = (
            f"Nothing leads from format {found} to this one. Give this version a root of its own with --root, where it"
            f" builds anew, or use the version that made this one."
        )
    else:
        cure = "Run `bessemer upgrade`: it makes a copy in this format, and changes nothing that stands."
    made_by = f"commit {commit[:12]}" if commit else "an installed version"
    told = f"{path} is an artifact of format {found}, made by {made_by}, and this version of Bessemer reads format"
    return InputError(f"{told} {FORMAT}. {cure}")


@functools.cache
def _check(path: Path, digest: str, artifact: Path) -> None:
    found = digest_file(path) if path.exists() else "no file"
    if found != digest:
        raise IntegrityError(
            f"{path.name} of {artifact} should have the digest {digest} and has {found}: the disk or somebody changed"
            f" it after it was published. Nothing was computed from it. Put it out of the way with `bessemer verify"
            f" --set-aside`, and run again."
        )
