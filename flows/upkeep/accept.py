"""Accept an existing artifact for a new identity: a manual approval, kept as an alias, that a change does not matter.

By default only edits of code and versions of libraries can be accepted; another setting or input is another result
unless the user says otherwise (`--whatever-changed`).
"""

from collections.abc import Iterator
from pathlib import Path

from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES
from flows.runs.existing_artifacts import existing_artifact
from flows.runs.record import this_user
from model.errors import GuardError, InputError, RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import WouldBuild
from tasks.artifacts.identity import OF_CODE, differences
from tasks.artifacts.remote.attach import store_of
from tasks.artifacts.remote.metadata import put_file
from tasks.artifacts.reuse import Alias, alias_path, now, write_alias

ALL = "all"

HINT = "Accept or run that one first."

ACCEPTABLE = (OF_CODE, "libs.")
"""Prefixes of differences that may leave the result unchanged."""


def propose_aliases(recipe: Recipe, root: Path, stage: str, because: str) -> Iterator[Alias]:
    """Yield the alias that would use the nearest artifact of `stage` for its current identity; write nothing.

    `all` proposes one stage after the other, given the aliases accepted for those before it, and skips stages that
    exist already. Raises RecipeError for an unknown stage, InputError where the stage exists already, where one before
    it would be built, or where there is no artifact to accept.
    """
    if stage not in (*STAGES, ALL):
        raise RecipeError(f"accept {stage}: there is no such stage; the pipeline is {' -> '.join(STAGES)}, or `{ALL}`")
    found = 0
    for name in STAGES if stage == ALL else (stage,):
        would = existing_artifact(recipe, root, name, f"accept {name}", HINT)
        if isinstance(would, WouldBuild):
            found += 1
            yield _proposal(would, name, because)
    if not found:
        raise InputError(f"accept {stage}: its artifact exists for this recipe already; there is nothing to accept")


def _proposal(would: WouldBuild, stage: str, because: str) -> Alias:
    if would.miss.nearest is None or would.miss.nearest_parts is None:
        raise InputError(f"accept {stage}: {would.miss.cause}; there is nothing to accept. Run the recipe.")
    nearest = Artifact.open(would.miss.nearest)
    changes = tuple(differences(would.miss.nearest_parts, would.identity.parts()))
    return Alias(stage, would.identity.key, nearest.identity, nearest.content, changes, this_user(), now(), because)


def accept(root: Path, alias: Alias, *, whatever_changed: bool = False) -> Path:
    """Write the alias and return its file; GuardError where settings or inputs differ, unless `whatever_changed`."""
    deciding = [line for line in alias.differences if not line.startswith(ACCEPTABLE)]
    if deciding and not whatever_changed:
        raise GuardError(
            f"accept {alias.stage}: {deciding[0]}. Another setting or input is another result. If you know that it is"
            f" not, say so with --whatever-changed; else run the recipe."
        )
    path = write_alias(root, alias)
    _put(root, path)
    return path


def undo_accept(recipe: Recipe, root: Path, stage: str) -> Path:
    """Remove the alias that `stage` of this recipe uses, and return its file; InputError where there is none."""
    found = existing_artifact(recipe, root, stage, f"accept {stage}", HINT)
    if isinstance(found, WouldBuild) or found.accepted_for is None:
        raise InputError(f"accept {stage} --undo: this recipe uses no accepted artifact; nothing was undone")
    path = alias_path(root, stage, found.accepted_for)
    path.unlink()
    _put(root, path)
    return path


def _put(root: Path, alias: Path) -> None:
    store = store_of(root)
    if store is not None:
        put_file(root, store, alias)
