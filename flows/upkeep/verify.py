"""Verify a root: hash every file of an artifact against its manifest, and every record against its own digest."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from flows.runs.object_store import file_problem, is_stored, manifest_problem, repair_artifact, set_folder_aside
from flows.runs.shredding import certificate_problems, repair_certificate
from flows.upkeep.root_records import record_problem, set_aside_record
from model.digests import digest_file
from model.errors import BessemerError
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.manifest import MANIFEST, parent_problem
from tasks.artifacts.workspace import FileRecord


@dataclass(frozen=True)
class Damage:
    """A file or record that is not what was written."""

    place: Path
    """The folder of an artifact, or a record."""
    file: str
    """The file of the artifact; empty for a record."""
    problem: str
    stored: bool = False
    """Whether it is damaged in the object store behind the root, and not in the folder here."""


@dataclass(frozen=True)
class Verification:
    """Result of `verify`: artifacts, files and bytes that were hashed, and the damage found."""

    artifacts: int
    files: int
    bytes: int
    damages: tuple[Damage, ...]
    trusted: int
    """Files that were not hashed, since they have their published size and were not written to afterwards."""
    records: int
    """Records that hold a digest of themselves: of runs, builds, leases and accepted artifacts, and `inputs.json`."""


def verify(
    folders: Iterable[Path],
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    quick: bool = False,
    records: Sequence[Path] = (),
    root: Path | None = None,
) -> Verification:
    """Hash every file of the artifacts in `folders` and every one of the `records`, check the certificates in the
    object store behind a `root`, and return the damage found.

    `progress(done, total)` counts bytes of artifacts. `quick` hashes only files that are missing, of another size, or
    newer than their manifest, which was written last; it does not find bytes that a disk changed silently.
    """
    damages = [Damage(path, "", problem) for path in records if (problem := record_problem(path))]
    if root is not None:
        damages += [Damage(path, "", problem, stored=True) for path, problem in certificate_problems(root).items()]
    trusted = 0
    files: list[tuple[Path, FileRecord]] = []
    opened: dict[Path, Artifact] = {}
    folders = list(folders)
    for folder in folders:
        try:
            opened[folder] = Artifact.open(folder)
        except BessemerError as error:
            damages.append(Damage(folder, MANIFEST, str(error)))
    for folder, artifact in opened.items():
        listed = artifact.records
        damages += _contradictions(artifact, folder, opened)
        if problem := manifest_problem(folder):
            damages.append(Damage(folder, MANIFEST, problem, stored=True))
        suspects = _touched(folder, listed) if quick else listed
        trusted += len(listed) - len(suspects)
        files += [(folder, record) for record in suspects]
    total, done = sum(record.bytes for _, record in files), 0
    progress(0, total)
    # BLAKE3 hashes without the GIL, so that threads share the work.
    with ThreadPoolExecutor(2) as pool:
        for (_, record), found in zip(files, pool.map(_damages, files), strict=True):
            damages += found
            done += record.bytes
            progress(done, total)
    return Verification(len(folders), len(files), total, tuple(damages), trusted, len(records))


def set_aside(damages: Iterable[Damage]) -> list[str]:
    """Rename damaged artifacts and records, so that no run uses them and the next one builds them again.

    Deletes nothing. Returns the new path of each, or what was done; call `repair_stored` before.
    """
    moved: list[str] = []
    for place, is_record in sorted({(damage.place, not damage.file) for damage in damages if not damage.stored}):
        if is_record:
            moved.append(set_aside_record(place))
        elif place.exists():  # `repair_stored` may have taken it out of use.
            moved.append(str(set_folder_aside(place)))
    return moved


def repair_stored(damages: Iterable[Damage]) -> list[str]:
    """Repair what is damaged in a store, from here or by taking it out of use; return a sentence for each artifact."""
    by_folder: dict[Path, list[str]] = {}
    for damage in damages:
        if damage.stored:
            by_folder.setdefault(damage.place, []).append(damage.file)
    return [
        repair_artifact(place, names) if all(names) else repair_certificate(place.parents[1], place)
        for place, names in sorted(by_folder.items())
    ]


def _contradictions(artifact: Artifact, folder: Path, others: Mapping[Path, Artifact]) -> list[Damage]:
    """Return where a manifest disagrees with its folder, its files, or the artifacts made from it."""
    found = []
    if (artifact.identity, artifact.stage) != (artifact.path.name, artifact.path.parent.name):
        found.append(f"it says {artifact.stage}/{artifact.identity}")
    unlisted = {path.name for path in folder.iterdir()} - {record.name for record in artifact.records} - {MANIFEST}
    found += [f"the file {name} is not listed in it" for name in sorted(unlisted)]
    damages = [Damage(folder, MANIFEST, problem) for problem in found]
    for recorded in manifest_of(artifact)["parents"].values():
        place = folder.parent.parent / recorded["stage"] / recorded["identity"]
        parent = others.get(place)
        if parent is not None and (problem := parent_problem(manifest_of(artifact), recorded, manifest_of(parent))):
            # Either of the two may have been changed.
            damages += [Damage(one, MANIFEST, problem) for one in (place, folder)]
    return damages


def _touched(folder: Path, records: list[FileRecord]) -> list[FileRecord]:
    """Return the files that changed since the commit, by their sizes and times."""
    published = (folder / MANIFEST).stat().st_mtime_ns
    with os.scandir(folder) as entries:
        here = {entry.name: entry.stat() for entry in entries}
    return [
        record
        for record in records
        if (status := here.get(record.name)) is None or status.st_size != record.bytes or status.st_mtime_ns > published
    ]


def _damages(entry: tuple[Path, FileRecord]) -> list[Damage]:
    folder, record = entry
    here, there = _problem(folder, record), file_problem(folder, record)
    found = [Damage(folder, record.name, here)] if here is not None else []
    return [*found, Damage(folder, record.name, there, stored=True)] if there is not None else found


def _problem(folder: Path, record: FileRecord) -> str | None:
    path = folder / record.name
    try:
        digest = digest_file(path)
    except FileNotFoundError:
        # With a store, files are fetched when they are read.
        return None if is_stored(folder, record) else "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if digest != record.digest:
        return f"has the digest {digest}, and its manifest says {record.digest}"
    return None
