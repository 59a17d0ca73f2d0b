"""What can be reused in place of an artifact that does not exist, and why it does not exist.

- Aliases: `aliases/STAGE/IDENTITY.json` says that an artifact of another identity replaces this one. `bessemer store
  accept` writes it when somebody judges that a change cannot affect the result. Manifests are not changed: the alias
  records who accepted what, when and why, and removing its file revokes it.
- Cache misses: the difference from the most similar artifact of the stage.
- Unfinished builds by other versions: equal inputs and settings, under other code or other libraries.
"""

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model.checksummed_json import find_sealed, read_sealed, seal, write_sealed
from model.errors import IntegrityError
from model.files import replace_durably
from tasks.artifacts.identity import FORMAT, Identity, IdentityParts, differences, first_difference
from tasks.artifacts.lease import is_alive
from tasks.artifacts.manifest import MANIFEST, read_manifest
from tasks.artifacts.published import is_set_aside, of_another_format

HINT = "Remove the file: then the stage is built, or can be accepted again."

COMPARED_ARTIFACTS = 20
"""Latest artifacts of a stage among which the most similar one is searched."""

OF_A_SOURCE = "source/"
"""Prefix of the names of inputs that are files of a recipe's sources."""

NONE_YET = "no artifact of this stage exists yet"

NONE_OF_THESE_SOURCES = "no artifact of these sources exists yet"

IDENTITY = "identity.json"
"""File in the folder of an unfinished build: the parts of its identity."""

VERSIONED = ("code", "libs")

OLDEST_TOKEN = "000000"
"""Sorts before the token of every holder of a lease."""


@dataclass(frozen=True)
class Alias:
    """The artifact `accepted`, whose content was `content` at the time, replaces `identity`."""

    stage: str
    identity: str
    accepted: str
    content: str
    differences: tuple[str, ...]
    who: str
    when: str
    because: str

    def describe(self) -> str:
        """Return who accepted it, when and why, and the first difference."""
        return f"accepted by {self.who} on {self.when}: {self.because} ({self.differences[0]})"


def alias_path(root: Path, stage: str, identity: str) -> Path:
    """Return the path of the alias of an identity."""
    return root / "aliases" / stage / f"{identity}.json"


def write_alias(root: Path, alias: Alias) -> Path:
    """Write an alias and return its file."""
    path = alias_path(root, alias.stage, alias.identity)
    write_sealed(path, asdict(alias))
    return path


def read_alias(root: Path, stage: str, identity: str) -> Alias | None:
    """Return the alias of an identity; None if there is none. Raises IntegrityError if its file is damaged."""
    try:
        data = read_sealed(alias_path(root, stage, identity), HINT)
    except FileNotFoundError:
        return None
    return Alias(**{**data, "differences": tuple(data["differences"])})


def now() -> str:
    """Return the time as aliases record it: UTC to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())


@dataclass(frozen=True)
class CacheMiss:
    """No artifact exists under an identity: the first cause, and the most similar existing artifact."""

    cause: str
    nearest: Path | None = None
    nearest_parts: IdentityParts | None = None


def explain_miss(root: Path, identity: Identity) -> CacheMiss:
    """Return why an artifact is missing, by its difference from the nearest of the stage's latest artifacts: the one
    with the fewest other inputs, then with the fewest differences, then the newest.

    Raises InputError if the root holds an artifact of another format.
    """
    folder = root / "artifacts" / identity.stage
    candidates = [path for path in folder.glob(f"*/{MANIFEST}") if not is_set_aside(path.parent)]
    latest = sorted(candidates, key=_written, reverse=True)[:COMPARED_ARTIFACTS]
    others = [(path.parent, parts) for path in latest if (parts := _readable_parts(path)) is not None]
    if not others:
        return CacheMiss(NONE_YET)
    related = [(path, parts) for path, parts in others if not _of_other_sources(parts, identity)]
    if not related:
        return CacheMiss(NONE_OF_THESE_SOURCES)
    nearest, parts = min(related, key=lambda other: _distance(other[1], identity))
    return CacheMiss(first_difference(parts, identity.parts()) or "its folder was removed", nearest, parts)


def _written(file: Path) -> int:
    """Return when a file was written, in ns; 0 if another process removed it after it was listed."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _distance(parts: IdentityParts, identity: Identity) -> tuple[int, int]:
    # What was made from the same inputs belongs to the same recipe, however many definitions of the code were edited
    # since; what differs in an input alone may belong to another one.
    found = differences({"parents": parts["parents"]}, {"parents": identity.parents})
    return len(list(found)), len(list(differences(parts, identity.parts())))


def _of_other_sources(parts: IdentityParts, identity: Identity) -> bool:
    """Return whether an artifact was made from sources of another recipe, so that listing the differences is useless.

    Sources of equal names belong to the same recipe, however much their files changed.
    """
    theirs, mine = parts["parents"], identity.parents
    if not mine or not all(name.startswith(OF_A_SOURCE) for name in mine) or theirs.keys() == mine.keys():
        return False
    return not {*theirs.values()} & {*mine.values()}


def _readable_parts(manifest: Path) -> IdentityParts | None:
    """Return the identity parts in a manifest; None if it is damaged (`store verify` reports it).

    Raises InputError if it has another format.
    """
    try:
        data = read_manifest(manifest.parent)
    except IntegrityError:
        return None
    if data["format"] == FORMAT:
        return data["identity_parts"]
    raise of_another_format(manifest.parent, data)


@dataclass(frozen=True)
class OtherVersion:
    """An unfinished build by another version."""

    folder: Path
    changed: Mapping[str, tuple[Any, Any]]
    """`code.MODULE:NAME` or `libs.NAME` -> its value then and now; None where it does not exist."""


def write_identity(folder: Path, identity: Identity) -> Path:
    """Write the identity of the build into its folder and return the file."""
    replace_durably(folder / IDENTITY, seal(identity.parts(), sort_keys=True, indent=None))
    return folder / IDENTITY


def other_version(root: Path, identity: Identity) -> OtherVersion | None:
    """Return the latest unfinished build that differs from `identity` only in code and libraries and that no live
    process holds; None if there is none."""
    parts, found = identity.parts(), []
    for text in (root / "work").glob(f"*/{IDENTITY}"):
        theirs = find_sealed(text, "Remove it: the finished parts of the build are kept.")
        if theirs is None:  # Its build may have ended since it was listed.
            continue
        key = text.parent.name.partition(".")[0]
        alike = all(theirs.get(part) == parts[part] for part in parts if part not in VERSIONED)
        if alike and key != identity.key and not is_alive(root / "locks" / key):
            found.append((_written(text), text.parent, theirs))
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
    """Turn another version's unfinished build into that of `identity`; return its folder."""
    folder = root / "work" / f"{identity.key}.{OLDEST_TOKEN}-{uuid.uuid4().hex[:8]}"
    os.rename(other.folder, folder)
    return folder
