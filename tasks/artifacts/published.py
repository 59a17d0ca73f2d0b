"""Read a published artifact: its manifest, its files (from the store if they are only there), and their digests."""

import functools
import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from model.digests import digest_file
from model.errors import InputError, IntegrityError
from tasks.artifacts import manifest as manifests
from tasks.artifacts.identity import FORMAT
from tasks.artifacts.manifest import HINT, MANIFEST
from tasks.artifacts.remote.artifacts import fetch_files, fetch_manifest
from tasks.artifacts.remote.attach import root_of, store_of
from tasks.artifacts.workspace import FileRecord

REMOVED_PREFIX = ".removed-"
"""Beginning of the name of a folder that is being removed."""


def remove_folder(folder: Path) -> None:
    """Remove a folder, renamed first, so that a kill leaves no partial artifact; nothing where another process did."""
    doomed = folder.with_name(f"{REMOVED_PREFIX}{uuid.uuid4().hex[:8]}-{folder.name}")
    try:
        os.rename(folder, doomed)
    except FileNotFoundError:
        return
    shutil.rmtree(doomed)


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of the artifact at `path`, fetched from the root's store if it is only there.

    Raises InputError if the folder is missing or of another format, IntegrityError if its manifest is damaged.
    """
    if not path.exists():
        store = store_of(root_of(path))
        if store is None or not fetch_manifest(root_of(path), store, path.parent.name, path.name):
            raise InputError(
                f"{path} no longer exists: somebody removed it. Run the recipe again to rebuild it; artifacts made from"
                f" it are reused if its content is the same."
            )
    manifest = manifests.read_manifest(path)
    if manifest["format"] != FORMAT:
        raise of_another_format(path, manifest)
    # As `Artifact.manifest`, whose annotation counts in every identity, has it; `manifest_of` gives it its type.
    return cast(dict[str, Any], manifest)


def fetch(artifact: Path, records: Sequence[FileRecord]) -> None:
    """Fetch files that are missing here from the root's store, if it has one.

    Raises IntegrityError if the store has other bytes than the manifest says, or none.
    """
    missing = [record for record in records if not (artifact / record.name).exists()]
    store = store_of(root_of(artifact)) if missing else None
    if store is not None:
        fetch_files(root_of(artifact), store, artifact, missing)


def checked(artifact: Path, record: FileRecord) -> Path:
    """Return the path of a file once its bytes agree with the manifest; they are hashed once per process."""
    fetch(artifact, [record])
    _check(artifact / record.name, record, artifact)
    return artifact / record.name


def is_whole(artifact: Path, record: FileRecord) -> bool:
    """Return whether a file's bytes agree with the manifest."""
    try:
        fetch(artifact, [record])
    except IntegrityError:
        return False
    path = artifact / record.name
    return path.exists() and digest_file(path) == record.digest


def is_set_aside(path: Path) -> bool:
    """Return whether a folder holds an artifact that no run may use: it conflicts with another, is damaged, or is half
    removed."""
    return ".conflict-" in path.name or ".damaged-" in path.name or path.name.startswith(REMOVED_PREFIX)


def artifacts_under(root: Path, stage: str | None = None) -> list[Path]:
    """Return the folders of all artifacts that a run could use, or of one stage's, sorted."""
    folders = sorted(root.glob(f"artifacts/{stage or '*'}/*"))
    return [folder for folder in folders if folder.is_dir() and not is_set_aside(folder)]


def of_another_format(path: Path, manifest: manifests.Manifest) -> InputError:
    """Return the error for an artifact of another format: which version made it, and what to do."""
    found, commit = manifest["format"], (manifest.get("git") or {}).get("commit")
    if found > FORMAT:
        hint = "A later version made it: use that one, or another --root."
    else:
        hint = (
            f"Format {found} cannot be converted to this one. Give this version a root of its own with --root, or use"
            f" the version that made this one."
        )
    made_by = f"commit {commit[:12]}" if commit else "an installed version"
    return InputError(
        f"{path} is an artifact of format {found}, made by {made_by}, and this version of Bessemer reads format"
        f" {FORMAT}. {hint}"
    )


@functools.cache
def _check(path: Path, record: FileRecord, artifact: Path) -> None:
    found = digest_file(path) if path.exists() else "no file"
    if found != record.digest:
        raise IntegrityError(
            f"{path.name} of {artifact} should have the digest {record.digest} and has {found}: it was changed after"
            f" publication, by the disk or by somebody. Nothing was computed from it. {HINT}"
        )
    if record.table and (rows := count_rows(path)) != record.rows:
        raise IntegrityError(
            f"{path.name} of {artifact} has {rows} rows, and its {MANIFEST} says {record.rows}. Nothing was computed"
            f" from it. {HINT}"
        )


def count_rows(path: Path) -> int:
    """Return the number of rows of an Arrow IPC file; reads only its first column."""
    import pyarrow as pa
    import pyarrow.ipc

    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=[0]))
        return sum(reader.get_batch(number).num_rows for number in range(reader.num_record_batches))
