"""Upgrade artifacts of earlier formats to this one, as copies with manifests of their own.

A step converts an artifact from one format to the next; STEPS has one for each earlier format. Existing artifacts are
not changed: the copy has an identity and a content of its own, and `aliases/upgraded/STAGE/IDENTITY.json` maps the old
identity to it, so that runs which name the old one find the new.
"""

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model.checksummed_json import read_sealed, write_sealed
from model.digests import digest_file
from model.errors import InputError, IntegrityError
from model.files import link_or_copy, sync_directory
from tasks.artifacts.identity import identity_key
from tasks.artifacts.manifest import (
    MANIFEST,
    content_digest,
    file_records,
    listing_digest,
    read_manifest,
    write_manifest,
)
from tasks.artifacts.published import is_set_aside, of_another_format, upgraded_file
from tasks.artifacts.schema import FORMAT
from tasks.artifacts.workspace import FileRecord

Step = Callable[[Path, dict[str, Any]], None]
"""Changes the files of a copy, in its folder, and its manifest. A changed file must be replaced (`os.replace`), since
the copy's files are hard links to those of the original. Digests, sizes, content and identity are computed
afterwards."""

STEPS: dict[int, Step] = {}
"""Format -> the step to the next one, from OLDEST on."""


@dataclass(frozen=True)
class Upgraded:
    """An artifact and the identity of its copy in this format."""

    stage: str
    identity: str
    format: int
    successor: str


def outdated(root: Path, to: int = FORMAT) -> list[dict[str, Any]]:
    """Return the manifests of artifacts of earlier formats without a copy in this one, parents before children.

    Raises InputError for one of a later format.
    """
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(root.glob(f"artifacts/*/*/{MANIFEST}")):
        if is_set_aside(file.parent) or upgraded_file(file.parent).exists():
            continue
        manifest = read_manifest(file.parent)
        if manifest["format"] > to:
            raise InputError(
                f"{file.parent} is an artifact of format {manifest['format']}, and this version reads up to {to}:"
                f" a later version made it. Use that version for this root."
            )
        if manifest["format"] < to:
            found[manifest["identity"]] = manifest
    return list(_parents_first(found))


def upgrade(root: Path, steps: Mapping[int, Step] = STEPS, to: int = FORMAT) -> Iterator[Upgraded]:
    """Make copies of all outdated artifacts under a root, and yield each when it is published.

    A stopped upgrade continues with what is left. Raises InputError if a step is missing, IntegrityError if an artifact
    is damaged: the damage would get a new digest and pass as intact."""
    contents, identities = _known(root)
    for manifest in outdated(root, to):
        place = root / "artifacts" / manifest["stage"] / manifest["identity"]
        made = _upgraded(root, place, manifest, steps, to, contents, identities)
        contents[manifest["content"]] = made["content"]
        identities[manifest["identity"]] = made["identity"]
        yield Upgraded(manifest["stage"], manifest["identity"], manifest["format"], made["identity"])


def _parents_first(manifests: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    waiting = dict(manifests)
    while waiting:
        ready = [
            identity
            for identity, manifest in waiting.items()
            if not any(parent["identity"] in waiting for parent in manifest["parents"].values())
        ]
        assert ready, "artifacts are each other's parents"
        for identity in ready:
            yield waiting.pop(identity)


def _known(root: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return (content -> content of the copy, identity -> identity of the copy) of earlier upgrades."""
    contents, identities = {}, {}
    for file in root.glob("aliases/upgraded/*/*.json"):
        entry = read_sealed(file, "Remove it, and run `bessemer upgrade`.")
        identities[file.stem] = entry["identity"]
        contents[entry["content_before"]] = entry["content"]
    return contents, identities


def _upgraded(
    root: Path,
    place: Path,
    manifest: dict[str, Any],
    steps: Mapping[int, Step],
    to: int,
    contents: Mapping[str, str],
    identities: Mapping[str, str],
) -> dict[str, Any]:
    missing = [number for number in range(manifest["format"], to) if number not in steps]
    if missing:
        raise of_another_format(place, manifest)
    records = file_records(manifest)
    damaged = [record.name for record in records if digest_file(place / record.name) != record.digest]
    if damaged:
        raise IntegrityError(f"{place}: {', '.join(damaged)} is damaged and not upgraded; run `bessemer store verify`")
    staging = (
        root / "work" / f"upgrade-{uuid.uuid4().hex[:8]}.staging"
    )  # `bessemer store gc` removes that of a killed upgrade.
    staging.mkdir(parents=True)
    try:
        for record in records:
            link_or_copy(place / record.name, staging / record.name)
        copy = json.loads(json.dumps(manifest))
        for number in range(manifest["format"], to):
            steps[number](staging, copy)
        _complete(root, copy, staging, to, contents, identities)
        copy["upgraded_from"] = {"identity": manifest["identity"], "format": manifest["format"]}
        write_manifest(staging, copy)
        target = place.with_name(copy["identity"])
        if not target.exists():
            os.rename(staging, target)
            sync_directory(target.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    entry = {"identity": copy["identity"], "content": copy["content"], "content_before": manifest["content"]}
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    write_sealed(upgraded_file(place), {**entry, "format": to, "when": when})
    return copy


def _complete(
    root: Path, copy: dict[str, Any], folder: Path, to: int, contents: Mapping[str, str], identities: Mapping[str, str]
) -> None:
    """Fill in the fields that follow from a copy's files and from the copies of its parents."""
    records = [
        FileRecord(**{**record, "digest": digest_file(path), "bytes": path.stat().st_size})
        for record in copy["files"]
        for path in [folder / record["name"]]
    ]
    copy["files"] = [asdict(record) for record in records]
    copy["bytes"] = sum(record.bytes for record in records)
    copy["content"] = content_digest(records)
    for parent in copy["parents"].values():
        if parent["identity"] in identities:
            made = read_manifest(root / "artifacts" / parent["stage"] / identities[parent["identity"]])
            parent["listing"] = listing_digest(made)
        parent["content"] = contents.get(parent["content"], parent["content"])
        parent["identity"] = identities.get(parent["identity"], parent["identity"])
    parts = copy["identity_parts"]
    parts["parents"] = {name: contents.get(digest, digest) for name, digest in parts["parents"].items()}
    parts["format"] = copy["format"] = to
    copy["identity"] = identity_key(parts)
