"""What stands for one stage of a recipe, asked of the builds themselves."""

import contextlib
from pathlib import Path
from typing import Any

from flows.recipe.schema import Recipe
from flows.runs.pipeline import BUILDERS, run_stages
from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, WouldBuild


class _Reached(Exception):
    """The walk has come to the stage in question."""


def existing_artifact(recipe: Recipe, root: Path, stage: str, asked: str, cure: str) -> Artifact | WouldBuild:
    """What stands for a stage of the recipe, or why nothing does.

    Raises InputError where a stage before it does not stand: `asked` and `cure` are what was asked for and what to do.
    """
    context = RunContext(root, run_id="", dry=True)
    found: list[Artifact | WouldBuild] = []

    def step(name: str, *inputs: Any) -> Artifact:
        try:
            artifact = BUILDERS[name](context, *inputs)
        except WouldBuild as would:
            if name != stage:
                raise InputError(
                    f"{asked}: `{name}`, which comes before it, would be built first ({would.miss.cause}). {cure}"
                ) from would
            found.append(would)
            raise _Reached from would
        if name == stage:
            found.append(artifact)
            raise _Reached
        return artifact

    with contextlib.suppress(_Reached):
        run_stages(recipe, step)
    return found[0]
