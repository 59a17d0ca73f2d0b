"""Why no artifact stands under an identity: the difference from the one of its stage that is most alike."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.errors import IntegrityError
from tasks.artifacts.manifest import MANIFEST, read_manifest
from tasks.artifacts.published import is_set_aside, of_another_format, upgraded_file
from tasks.identity import Identity, count_differences, first_difference
from tasks.schema import FORMAT

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
