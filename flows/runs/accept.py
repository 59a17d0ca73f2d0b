"""Accepting what stands: a person's word that a change cannot change the result, kept as an alias.

Only edits of code and versions of libraries can be accepted by default; another setting or another input is another
result, and to call it the same takes a word of its own.
"""

import getpass
import platform
from collections.abc import Iterator
from pathlib import Path

from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES
from flows.runs.existing_artifacts import existing_artifact
from model.errors import GuardError, InputError, RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import WouldBuild
from tasks.artifacts.identity import OF_CODE, differences
from tasks.artifacts.remote.attach import store_of
from tasks.artifacts.remote.metadata import put_alias
from tasks.artifacts.reuse import Alias, alias_path, now, write_alias

ALL = "all"

CURE = "Accept or run that one first."

HARMLESS_AT_BEST = (OF_CODE, "libs.")
"""Beginnings of differences that may leave the result as it is."""


def propose_aliases(recipe: Recipe, root: Path, stage: str, because: str) -> Iterator[Alias]:
    """The alias that would let the nearest artifact of `stage` stand for its current identity; writes nothing.

    `all` proposes for one stage after the other, each on the word given for those before it, and passes over those
    that stand. Raises RecipeError for no such stage, InputError where the stage stands already, where one before it
    would be built, or where nothing stands that could be accepted.
    """
    if stage not in (*STAGES, ALL):
        raise RecipeError(f"accept {stage}: there is no such stage; the road is {' -> '.join(STAGES)}, or `{ALL}`")
    found = 0
    for name in STAGES if stage == ALL else (stage,):
        would = existing_artifact(recipe, root, name, f"accept {name}", CURE)
        if isinstance(would, WouldBuild):
            found += 1
            yield _proposal(would, name, because)
    if not found:
        raise InputError(f"accept {stage}: it stands for this recipe already; there is nothing to accept")


def _proposal(would: WouldBuild, stage: str, because: str) -> Alias:
    if would.miss.nearest is None or would.miss.nearest_parts is None:
        raise InputError(f"accept {stage}: {would.miss.cause}; there is nothing to accept. Run the recipe.")
    nearest = Artifact.open(would.miss.nearest)
    told = tuple(differences(would.miss.nearest_parts, would.identity.parts()))
    who = f"{getpass.getuser()}@{platform.node()}"
    return Alias(stage, would.identity.key, nearest.identity, nearest.content, told, who, now(), because)


def accept(root: Path, alias: Alias, *, whatever_changed: bool = False) -> Path:
    """Write the alias; GuardError where settings or inputs differ, unless `whatever_changed`."""
    deciding = [line for line in alias.differences if not line.startswith(HARMLESS_AT_BEST)]
    if deciding and not whatever_changed:
        raise GuardError(
            f"accept {alias.stage}: {deciding[0]}. Another setting or input is another result. If you know that it is"
            f" not, say so with --whatever-changed; else run the recipe."
        )
    path = write_alias(root, alias)
    _put(root, path)
    return path


def undo_accept(recipe: Recipe, root: Path, stage: str) -> Path:
    """Remove the alias by which `stage` stands for this recipe; InputError where there is none."""
    found = existing_artifact(recipe, root, stage, f"accept {stage}", CURE)
    if isinstance(found, WouldBuild) or found.accepted_for is None:
        raise InputError(f"accept {stage} --undo: no accepted artifact stands for this recipe; nothing was taken back")
    path = alias_path(root, stage, found.accepted_for)
    path.unlink()
    _put(root, path)
    return path


def _put(root: Path, alias: Path) -> None:
    store = store_of(root)
    if store is not None:
        put_alias(root, store, alias)
