"""Accepted artifacts: `aliases/STAGE/IDENTITY.json` says that an artifact of another identity may stand for this one.

Written by `bessemer store accept` when a person judges that what changed cannot change the result. Manifests are never
touched: the alias names who accepted what, when and why, and removing its file takes the word back.

Why no artifact stands under an identity: the difference from the one of its stage that is most alike.

Unfinished builds of other versions: the same inputs and settings, under another code or other libraries.
"""

import logging
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model.checksummed_json import read_sealed, seal, write_sealed
from model.errors import IntegrityError
from model.files import replace_durably
from tasks.artifacts.identity import Identity, count_differences, first_difference
from tasks.artifacts.lease import is_alive
from tasks.artifacts.manifest import MANIFEST, read_manifest
from tasks.artifacts.published import is_set_aside, of_another_format, upgraded_file
from tasks.artifacts.schema import FORMAT

CURE = "Remove the file: the stage is built then, or accepted again."


@dataclass(frozen=True)
class Alias:
    """`identity` is answered by the artifact `accepted`, whose content was `content` at the time."""

    stage: str
    identity: str
    accepted: str
    content: str
    differences: tuple[str, ...]
    who: str
    when: str
    because: str

    def words(self) -> str:
        """Who accepted it when and why, and the first thing that differs."""
        return f"accepted by {self.who} on {self.when}: {self.because} ({self.differences[0]})"


def alias_path(root: Path, stage: str, identity: str) -> Path:
    """Where the alias of an identity stands, if there is one."""
    return root / "aliases" / stage / f"{identity}.json"


def write_alias(root: Path, alias: Alias) -> Path:
    """Write an alias; returns its file."""
    path = alias_path(root, alias.stage, alias.identity)
    write_sealed(path, asdict(alias))
    return path


def read_alias(root: Path, stage: str, identity: str) -> Alias | None:
    """The alias of an identity, None where nobody accepted one; IntegrityError where its file is damaged."""
    try:
        data = read_sealed(alias_path(root, stage, identity), CURE)
    except FileNotFoundError:
        return None
    return Alias(**{**data, "differences": tuple(data["differences"])})


def now() -> str:
    """The time as aliases write it: UTC to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())


COMPARED_ARTIFACTS = 20
"""Latest artifacts of a stage among which the one most alike is looked for."""

OF_A_SOURCE = "source/"
"""How the names of inputs begin that are files of a recipe's sources."""

NONE_YET = "no artifact of this stage exists yet"

NONE_OF_THESE_SOURCES = "no artifact of these sources exists yet"


@dataclass(frozen=True)
class Miss:
    """No artifact under an identity: the first cause in words, and the standing artifact that is most alike."""

    cause: str
    nearest: Path | None = None
    nearest_parts: dict[str, Any] | None = None


def explain_miss(root: Path, identity: Identity) -> Miss:
    """The cause of a miss, told from the nearest of the latest artifacts of the stage (the newest of equally near).

    Raises InputError where an artifact of another format stands in the root.
    """
    folder = root / "artifacts" / identity.stage
    candidates = [path for path in folder.glob(f"*/{MANIFEST}") if not is_set_aside(path.parent)]
    latest = sorted(candidates, key=lambda path: path.stat().st_mtime_ns, reverse=True)[:COMPARED_ARTIFACTS]
    others = [(path.parent, parts) for path in latest if (parts := _readable_parts(path)) is not None]
    if not others:
        return Miss(NONE_YET)
    related = [(path, parts) for path, parts in others if not _of_other_sources(parts, identity)]
    if not related:
        return Miss(NONE_OF_THESE_SOURCES)
    nearest, parts = min(related, key=lambda other: count_differences(other[1], identity.parts()))
    return Miss(first_difference(parts, identity.parts()) or "its folder was removed", nearest, parts)


def _of_other_sources(parts: dict[str, Any], identity: Identity) -> bool:
    """Whether an artifact was made from sources of another recipe, so that a list of what differs would say nothing.

    Sources of the same names are the same recipe's, however much their files changed.
    """
    theirs, mine = parts["parents"], identity.parents
    if not mine or not all(name.startswith(OF_A_SOURCE) for name in mine) or theirs.keys() == mine.keys():
        return False
    return not {*theirs.values()} & {*mine.values()}


def _readable_parts(manifest: Path) -> dict[str, Any] | None:
    """The identity in a manifest; None for a damaged one, of which `verify` tells, and for one that was upgraded.

    Raises InputError for one of another format.
    """
    try:
        data = read_manifest(manifest.parent)
    except IntegrityError:
        return None
    if data["format"] == FORMAT:
        return data["identity_parts"]
    if upgraded_file(manifest.parent).exists():
        return None
    raise of_another_format(manifest.parent, data)


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
