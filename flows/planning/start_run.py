"""Start a run: check its preconditions, then create its record and folder.

Separate from `flows.planning.preconditions`, which the command line uses before it imports Prefect.
"""

from pathlib import Path

from flows.planning.preconditions import CHECKED, check_prerequisites
from flows.recipe.schema import Recipe
from flows.recipe.stages import select_stages
from flows.runs.run import Run


def start_run(
    recipe: Recipe,
    root: Path,
    *,
    from_stage: str | None = None,
    until: str | None = None,
    only: str | None = None,
    force: bool = False,
    run_id: str | None = None,
) -> Run:
    """Return a run of the selected stages, after `check_prerequisites` passed, here or before the flow began."""
    if CHECKED.get() != recipe:
        check_prerequisites(recipe, select_stages(from_stage, until, only), root, force=force)
    return Run(recipe, root, from_stage=from_stage, until=until, only=only, force=force, run_id=run_id)
