"""Unfinished builds of other versions: the same inputs and settings, under another code or other libraries."""

import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.durable import replace_durably
from model.errors import IntegrityError
from model.sealed import read_sealed, seal
from tasks.identity import Identity
from tasks.lease import is_alive

log = logging.getLogger(__name__)

IDENTITY = "identity.json"
"""In the folder of an unfinished build: the whole text of its identity."""
VERSIONED = ("code", "libs")
OLDEST_TOKEN = "000000"
"""Sorts before that of every holder of a lease."""


@dataclass(frozen=True)
class OtherVersion:
    """What another version left of a build."""

    folder: Path
    changed: Mapping[str, tuple[Any, Any]]
    """By `code.MODULE:NAME` or `libs.NAME`, what it was then and is now; None where there was or is none."""


def tell_identity(folder: Path, identity: Identity) -> Path:
    """Write the whole identity of what is built in a folder; returns its file."""
    replace_durably(folder / IDENTITY, seal(identity.parts(), sort_keys=True, indent=None))
    return folder / IDENTITY


def other_version(root: Path, identity: Identity) -> OtherVersion | None:
    """The build that was worked at last of those that differ from `identity` in code and libraries alone, and that
    nobody is at."""
    parts, found = identity.parts(), []
    for text in (root / "work").glob(f"*/{IDENTITY}"):
        try:
            theirs = read_sealed(text, "Remove it: what the build has finished is kept.")
        except IntegrityError as error:
            log.warning("%s", error)
            continue
        key = text.parent.name.partition(".")[0]
        alike = all(theirs.get(part) == parts[part] for part in parts if part not in VERSIONED)
        if alike and key != identity.key and not is_alive(root / "locks" / key):
            found.append((text.stat().st_mtime_ns, text.parent, theirs))
    if not found:
        return None
    _, folder, theirs = max(found, key=lambda one: one[:2])
    return OtherVersion(folder, dict(_changed(theirs, parts)))


def _changed(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    pairs = {
        "code": (theirs["code"]["definitions"], mine["code"]["definitions"]),
        "libs": (theirs["libs"], mine["libs"]),
    }
    if theirs["code"]["digest"] == mine["code"]["digest"]:
        del pairs["code"]
    for part, (then, now) in pairs.items():
        for name in sorted({*then, *now}):
            if then.get(name) != now.get(name):
                yield f"{part}.{name}", (then.get(name), now.get(name))


def adopt(root: Path, other: OtherVersion, identity: Identity) -> Path:
    """Make what another version left the unfinished build of `identity`; the folder where it stands now."""
    folder = root / "work" / f"{identity.key}.{OLDEST_TOKEN}-{uuid.uuid4().hex[:8]}"
    os.rename(other.folder, folder)
    return folder
