"""Find the existing artifact of one stage of a recipe, by a dry run of the builds themselves."""

import contextlib
from pathlib import Path
from typing import Any

from flows.recipe.schema import Recipe
from flows.runs.pipeline import BUILDERS, run_stages
from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, WouldBuild


class _StageReached(Exception):
    """Raised after the requested stage, to end the dry run."""


def existing_artifact(recipe: Recipe, root: Path, stage: str, request: str, hint: str) -> Artifact | WouldBuild:
    """Return the artifact that exists for a stage of the recipe, or why it would be built.

    Raises InputError where a stage before it would be built; `request` and `hint` begin and end the message.
    """
    context = RunContext(root, run_id="", dry=True)
    found: list[Artifact | WouldBuild] = []

    def step(name: str, *inputs: Any) -> Artifact:
        try:
            artifact = BUILDERS[name](context, *inputs)
        except WouldBuild as would:
            if name != stage:
                raise InputError(
                    f"{request}: `{name}`, which comes before it, would be built first ({would.miss.cause}). {hint}"
                ) from would
            found.append(would)
            raise _StageReached from would
        if name == stage:
            found.append(artifact)
            raise _StageReached
        return artifact

    with contextlib.suppress(_StageReached):
        run_stages(recipe, step)
    return found[0]
