"""A published artifact on disk: its manifest, its files where they are in a store alone, and whether all are whole."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from model.checksummed_json import read_sealed
from model.digests import digest_file
from model.errors import InputError, IntegrityError
from tasks.artifacts import manifest as manifests
from tasks.artifacts.manifest import CURE, MANIFEST
from tasks.artifacts.remote.artifacts import fetch_files, fetch_manifest
from tasks.artifacts.remote.attach import root_of, store_of
from tasks.artifacts.schema import FORMAT, OLDEST
from tasks.artifacts.workspace import FileRecord


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
    manifest = manifests.read_manifest(path)
    if manifest["format"] != FORMAT:
        return read_manifest(_successor(path, manifest))
    return path, manifest


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
    _check(artifact / record.name, record, artifact)
    return artifact / record.name


def is_whole(artifact: Path, record: FileRecord) -> bool:
    """Whether a file's bytes agree with the manifest."""
    try:
        fetch(artifact, [record])
    except IntegrityError:
        return False
    path = artifact / record.name
    return path.exists() and digest_file(path) == record.digest


def upgraded_file(path: Path) -> Path:
    """The file that leads from an artifact of an earlier format to its copy in this one, where there is one."""
    return root_of(path) / "aliases" / "upgraded" / path.parent.name / f"{path.name}.json"


def is_set_aside(path: Path) -> bool:
    """Whether the folder holds an artifact that no run may use: it contradicts another, or its bytes are damaged."""
    return ".conflict-" in path.name or ".damaged-" in path.name


def upgraded_identity(path: Path) -> str | None:
    """The identity of that copy; None where there is none."""
    file = upgraded_file(path)
    return read_sealed(file, "Remove it, and run `bessemer upgrade`.")["identity"] if file.exists() else None


def _successor(path: Path, manifest: Mapping[str, Any]) -> Path:
    """The copy in this format of an artifact of another."""
    if upgraded := upgraded_identity(path):
        return path.with_name(upgraded)
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
def _check(path: Path, record: FileRecord, artifact: Path) -> None:
    found = digest_file(path) if path.exists() else "no file"
    if found != record.digest:
        raise IntegrityError(
            f"{path.name} of {artifact} should have the digest {record.digest} and has {found}: the disk or somebody"
            f" changed it after it was published. Nothing was computed from it. {CURE}"
        )
    if record.table and (rows := count_rows(path)) != record.rows:
        raise IntegrityError(
            f"{path.name} of {artifact} has {rows} rows, and its {MANIFEST} says {record.rows}. Nothing was computed"
            f" from it. {CURE}"
        )


def count_rows(path: Path) -> int:
    """Rows of one Arrow IPC file; of its columns the first alone is read."""
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=[0]))
        return sum(reader.get_batch(number).num_rows for number in range(reader.num_record_batches))
