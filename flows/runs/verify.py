"""Hashing a root again: every file of an artifact against its manifest, every record against the digest it holds."""

import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.runs.object_store import file_problem, manifest_problem, repair_artifact
from flows.runs.root_records import record_problem, set_aside_record
from model.digests import digest_file
from model.errors import BessemerError
from model.files import sync_directory
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.manifest import MANIFEST, parent_problem
from tasks.artifacts.published import is_set_aside
from tasks.artifacts.remote.attach import root_of, store_of
from tasks.artifacts.workspace import FileRecord


@dataclass(frozen=True)
class Damage:
    """One thing that is not what was written."""

    place: Path
    """The folder of an artifact, or a record."""
    file: str
    """The file of the artifact; empty for a record."""
    problem: str
    stored: bool = False
    """Whether it is wrong in the object store that the root stands before, and not in the folder here."""

    def to_json(self) -> dict[str, Any]:
        """The damage as plain values."""
        return {**asdict(self), "place": str(self.place)}


@dataclass(frozen=True)
class Verification:
    """What `verify` did: artifacts, files and bytes that were hashed, and the damage it found."""

    artifacts: int
    files: int
    bytes: int
    damages: tuple[Damage, ...]
    trusted: int = 0
    """Files that were not hashed, as they have the size that was published and were not written to since."""
    records: int = 0
    """Records of runs, builds and leases, accepted artifacts, `inputs.json`: all that holds a digest of itself."""


def artifacts_under(root: Path, stage: str | None = None) -> list[Path]:
    """The folders of all artifacts that a run could use, or of one stage's, in order."""
    folders = sorted(root.glob(f"artifacts/{stage or '*'}/*"))
    return [folder for folder in folders if folder.is_dir() and not is_set_aside(folder)]


def artifacts_of(record: dict[str, Any], stage: str | None = None) -> list[Path]:
    """The folders of the artifacts that a run ended with, or of one stage's."""
    return [Path(entry["path"]) for entry in record["stages"] if "path" in entry and stage in (None, entry["stage"])]


def verify(
    folders: Iterable[Path],
    progress: Callable[[int, int], None] = lambda done, total: None,
    workers: int = 2,
    *,
    quick: bool = False,
    records: Sequence[Path] = (),
) -> Verification:
    """Hash every file of the artifacts in `folders`, and every one of the `records`; `progress(done, total)` counts
    bytes of artifacts.

    `quick`: only files that are missing, of another size, or younger than their manifest, which was written last.
    What a disk lost without a word stays unseen.
    """
    damages = [Damage(path, "", problem) for path in records if (problem := record_problem(path))]
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
        if told := manifest_problem(folder):
            damages.append(Damage(folder, MANIFEST, told, stored=True))
        suspects = _touched(folder, listed) if quick else listed
        trusted += len(listed) - len(suspects)
        files += [(folder, record) for record in suspects]
    total, done = sum(record.bytes for _, record in files), 0
    progress(0, total)
    # BLAKE3 hashes without the GIL, so that threads share the work.
    with ThreadPoolExecutor(workers) as pool:
        for (_, record), found in zip(files, pool.map(_damages, files), strict=True):
            damages += found
            done += record.bytes
            progress(done, total)
    return Verification(len(folders), len(files), total, tuple(damages), trusted, len(records))


def set_aside(damages: Iterable[Damage]) -> list[str]:
    """Rename damaged artifacts and records, so that no run uses them and the next one builds them again; nothing is
    deleted. What became of each, in words; of what is damaged in a store, tell `repair_stored`.
    """
    moved: list[str] = []
    for place, is_record in sorted({(damage.place, not damage.file) for damage in damages if not damage.stored}):
        if is_record:
            moved.append(set_aside_record(place))
            continue
        aside = place.with_name(f"{place.name}.damaged-{uuid.uuid4().hex[:8]}")
        os.rename(place, aside)
        sync_directory(place.parent)
        moved.append(str(aside))
    return moved


def repair_stored(damages: Iterable[Damage]) -> list[str]:
    """Put right what is damaged in a store, from here or by taking it out of use; a sentence for each artifact."""
    by_folder: dict[Path, list[str]] = {}
    for damage in damages:
        if damage.stored:
            by_folder.setdefault(damage.place, []).append(damage.file)
    return [repair_artifact(folder, names) for folder, names in sorted(by_folder.items())]


def _contradictions(artifact: Artifact, folder: Path, others: Mapping[Path, Artifact]) -> list[Damage]:
    """Where a manifest does not agree with its folder, with the names of its files, or with what was made from it."""
    found = []
    if (artifact.identity, artifact.stage) != (artifact.path.name, artifact.path.parent.name):
        found.append(f"it says {artifact.stage}/{artifact.identity}")
    strangers = {path.name for path in folder.iterdir()} - {record.name for record in artifact.records} - {MANIFEST}
    found += [f"the file {name} is not listed in it" for name in sorted(strangers)]
    damages = [Damage(folder, MANIFEST, problem) for problem in found]
    for told in artifact.manifest["parents"].values():
        place = folder.parent.parent / told["stage"] / told["identity"]
        parent = others.get(place)
        if parent is not None and (problem := parent_problem(artifact.manifest, told, parent.manifest)):
            # Nobody can tell which of the two was changed.
            damages += [Damage(one, MANIFEST, problem) for one in (place, folder)]
    return damages


def _touched(folder: Path, records: list[FileRecord]) -> list[FileRecord]:
    """Files that are not as the commit left them, by their sizes and times."""
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
        # Before a store a file comes when it is read.
        return None if store_of(root_of(folder)) is not None else "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if digest != record.digest:
        return f"has the digest {digest}, and its manifest says {record.digest}"
    return None
