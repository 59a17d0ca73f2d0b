"""Hashing artifacts again: every file against its manifest, every manifest against itself."""

import json
import os
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model.durable import digest_bytes, digest_file, sync_directory
from model.errors import BessemerError
from tasks.artifact import MANIFEST, Artifact, content_digest, is_set_aside
from tasks.identity import canonical_json
from tasks.workspace import FileRecord


@dataclass(frozen=True)
class Damage:
    """One thing about an artifact that is not what its manifest says."""

    artifact: Path
    file: str
    problem: str

    def to_json(self) -> dict[str, Any]:
        """The damage as plain values."""
        return {**asdict(self), "artifact": str(self.artifact)}


@dataclass(frozen=True)
class Verification:
    """What `verify` did: artifacts, files and bytes that were hashed, and the damage it found."""

    artifacts: int
    files: int
    bytes: int
    damages: tuple[Damage, ...]


def artifacts_under(root: Path, stage: str | None = None) -> list[Path]:
    """The folders of all artifacts that a run could use, or of one stage's, in order."""
    folders = sorted(root.glob(f"artifacts/{stage or '*'}/*"))
    return [folder for folder in folders if folder.is_dir() and not is_set_aside(folder)]


def artifacts_of(record: dict[str, Any], stage: str | None = None) -> list[Path]:
    """The folders of the artifacts that a run ended with, or of one stage's."""
    return [Path(entry["path"]) for entry in record["stages"] if "path" in entry and stage in (None, entry["stage"])]


def verify(
    folders: Iterable[Path], progress: Callable[[int, int], None] = lambda done, total: None, workers: int = 2
) -> Verification:
    """Hash every file of the artifacts in `folders`; `progress(done, total)` counts bytes."""
    damages: list[Damage] = []
    files: list[tuple[Path, FileRecord]] = []
    folders = list(folders)
    for folder in folders:
        try:
            records = Artifact.open(folder).records
        except BessemerError as error:
            damages.append(Damage(folder, MANIFEST, str(error)))
            continue
        damages += _contradictions(folder, records)
        files += [(folder, record) for record in records]
    total, done = sum(record.bytes for _, record in files), 0
    progress(0, total)
    # BLAKE3 hashes without the GIL, so that threads share the work.
    with ThreadPoolExecutor(workers) as pool:
        for (folder, record), problem in zip(files, pool.map(_problem, files), strict=True):
            if problem is not None:
                damages.append(Damage(folder, record.name, problem))
            done += record.bytes
            progress(done, total)
    return Verification(len(folders), len(files), total, tuple(damages))


def set_aside(damages: Iterable[Damage]) -> list[Path]:
    """Rename damaged artifacts, so that no run uses them and the next one builds them again; nothing is deleted."""
    moved: list[Path] = []
    for folder in sorted({damage.artifact for damage in damages}):
        aside = folder.with_name(f"{folder.name}.damaged-{uuid.uuid4().hex[:8]}")
        os.rename(folder, aside)
        sync_directory(folder.parent)
        moved.append(aside)
    return moved


def _contradictions(folder: Path, records: list[FileRecord]) -> list[Damage]:
    """Where a manifest does not agree with itself, with its folder's name, or with the names of its files."""
    manifest = json.loads((folder / MANIFEST).read_text())
    found: list[str] = []
    if manifest["content"] != content_digest(records):
        found.append("its content digest is not that of the files it lists")
    if manifest["identity"] != digest_bytes(canonical_json(manifest["identity_parts"]).encode()):
        found.append("its identity is not the digest of the parts it states")
    if manifest["identity"] != folder.name or manifest["stage"] != folder.parent.name:
        found.append(f"it says {manifest['stage']}/{manifest['identity']}")
    strangers = {path.name for path in folder.iterdir()} - {record.name for record in records} - {MANIFEST}
    found += [f"the file {name} is not listed in it" for name in sorted(strangers)]
    return [Damage(folder, MANIFEST, problem) for problem in found]


def _problem(entry: tuple[Path, FileRecord]) -> str | None:
    folder, record = entry
    path = folder / record.name
    try:
        digest = digest_file(path)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if digest == record.digest else f"has the digest {digest}, and its manifest says {record.digest}"
