"""The beginning of a run, for the flows: what can be known before is checked, then the run has a name and a folder.

Apart from `flows.planning.preconditions`, which the command line asks before Prefect may be imported.
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
    """Return a run of the stages that were asked for, once `check_prerequisites` has nothing to refuse, here or before
    the flow began."""
    if CHECKED.get() != recipe:
        check_prerequisites(recipe, select_stages(from_stage, until, only), root, force=force)
    return Run(recipe, root, from_stage=from_stage, until=until, only=only, force=force, run_id=run_id)
