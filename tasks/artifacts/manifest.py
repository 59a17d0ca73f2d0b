"""The manifest of an artifact: written as self-checksummed JSON, and used only if it does not contradict itself.

A manifest lists every file with table, rows, size and digest, and the parents of the artifact. It also records the
`listing` digest of each parent, which is equal again if the parent is rebuilt: when both manifests are read, they are
compared.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from model.checksummed_json import KEY, BrokenSeal, unseal, write_sealed
from model.digests import digest_bytes, read_bytes
from model.errors import IntegrityError
from tasks.artifacts.identity import FORMAT, GitState, IdentityParts, canonical_json, identity_key
from tasks.artifacts.workspace import FileEntry, FileRecord
from tasks.common.digests import combined_digest

MANIFEST = "manifest.json"
HINT = "Set it aside with `bessemer store verify --set-aside`, and run again."


class ParentEntry(TypedDict):
    """A parent, as it was when the artifact was made from it."""

    stage: str
    identity: str
    content: str
    listing: str


class Timings(TypedDict):
    """When a build started, as Unix time, whether it went on with an unfinished one, and what both took; the time of a
    build that was killed is not known."""

    started: float
    seconds: float
    resumed: bool


class Manifest(TypedDict):
    """The content of a manifest."""

    format: int
    stage: str
    identity: str
    identity_parts: IdentityParts
    """What the identity is the digest of."""
    content: str
    files: list[FileEntry]
    rows: dict[str, int]
    """By table."""
    bytes: int
    report: dict[str, Any]
    """`report.StageReport.to_json`."""
    parents: dict[str, ParentEntry]
    exact: bool
    timings: Timings
    run: str
    host: str
    git: GitState


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a manifest into the folder of its artifact, durably."""
    write_sealed(folder / MANIFEST, manifest, sort_keys=True)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest in the folder of an artifact; of one of another format only the checksum is checked.

    Raises IntegrityError if it is missing, damaged, or contradicts itself.
    """
    path = folder / MANIFEST
    try:
        manifest = _unsealed(read_bytes(path))
        problems = contradictions(manifest) if manifest["format"] == FORMAT else []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = "it is missing" if isinstance(error, FileNotFoundError) else f"{type(error).__name__}: {error}"
        raise IntegrityError(
            f"{folder} is not a finished artifact: its {MANIFEST} is damaged ({reason}). {HINT}"
        ) from error
    if problems:
        raise IntegrityError(f"{path} contradicts itself: {'; '.join(problems)}. It was not used. {HINT}")
    return manifest


def _unsealed(data: bytes) -> Manifest:
    try:
        return json.loads(unseal(data))
    except BrokenSeal:
        # Formats before the second had no checksum. A file with one keeps its key, whichever other byte changed.
        earlier = json.loads(data)
        if KEY in earlier or not earlier["format"] < FORMAT:
            raise
        return earlier


def contradictions(manifest: Manifest) -> list[str]:
    """Return the contradictions between fields of a manifest; reads nothing else."""
    records = file_records(manifest)
    listed = rows_by_table(records)
    found: list[str] = []
    if manifest["content"] != content_digest(records):
        found.append("its content digest is not that of the files it lists")
    if manifest["identity"] != identity_key(manifest["identity_parts"]):
        found.append("its identity is not the digest of the parts it states")
    if manifest["rows"] != listed:
        found.append(f"it states the rows {manifest['rows']}, and the files it lists have {listed}")
    if manifest["bytes"] != (size := sum(record.bytes for record in records)):
        found.append(f"it states {manifest['bytes']} bytes, and the files it lists have {size}")
    return found


def file_records(manifest: Manifest) -> list[FileRecord]:
    """Return the files that a manifest lists. Raises IntegrityError for a name that leads out of its folder."""
    return [FileRecord(**record) for record in manifest["files"]]


def rows_by_table(records: Iterable[FileRecord]) -> dict[str, int]:
    """Return the number of rows of each table, by name."""
    rows: dict[str, int] = {}
    for record in records:
        if record.table:
            rows[record.table] = rows.get(record.table, 0) + record.rows
    return dict(sorted(rows.items()))


def content_digest(records: Iterable[FileRecord]) -> str:
    """Return BLAKE3 over sorted names and digests of the deterministic files."""
    return combined_digest((record.name, record.digest) for record in records if record.deterministic)


def listing_digest(manifest: Manifest) -> str:
    """Return BLAKE3 over the fields of a manifest that an equal build repeats: the deterministic files with tables and
    rows, and the counts by source; not clocks and machines."""
    files = [file for file in manifest["files"] if file["deterministic"]]
    return digest_bytes(canonical_json({"files": files, "sources": manifest["report"]["sources"]}).encode())


def parent_entries(parents: Mapping[str, Manifest]) -> dict[str, ParentEntry]:
    """Return the entries of a child's manifest for its parents, given their manifests by name."""
    return {
        name: {
            "stage": parent["stage"],
            "identity": parent["identity"],
            "content": parent["content"],
            "listing": listing_digest(parent),
        }
        for name, parent in sorted(parents.items())
    }


def parent_problem(child: Manifest, recorded: ParentEntry, parent: Manifest) -> str | None:
    """Return how a parent's manifest differs from the entry `recorded` when the child was made from it; None if it
    does not."""
    for key, then, now in (
        ("content", recorded["content"], parent["content"]),
        ("listing", recorded["listing"], listing_digest(parent)),
    ):
        if then != now:
            return (
                f"{child['stage']}/{child['identity']} was made when the manifest of {parent['stage']}/"
                f"{parent['identity']} had the {key} {then}, and now it has {now}"
            )
    return None
