"""The road as a Prefect flow.

`flows.road.walk` is the road itself: each stage is one retryable Prefect task that leaves an Arrow artifact. Reuse
lives in the artifact's identity, so rerunning is the same flow with `from_stage`, `only` or `force`.
"""

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.logging import get_run_logger

from flows.recipe import Recipe, find_recipe, load_recipe
from flows.road import walk
from flows.run import Run
from tasks.chunk.task import chunk
from tasks.clean.task import clean
from tasks.decontaminate.task import decontaminate
from tasks.dedup.task import dedup
from tasks.evaluate.task import evaluate
from tasks.sample.task import sample
from tasks.train.task import train
from tasks.vocab.task import vocab

TASKS = {task.name: task for task in (sample, clean, dedup, decontaminate, vocab, chunk, train, evaluate)}


@flow(name="pretrain", persist_result=False, validate_parameters=True)
def pretrain(
    recipe: Recipe | str,
    root: Path = Path("bessemer-data"),
    from_stage: str | None = None,
    only: str | None = None,
    force: bool = False,
    run_id: str | None = None,
) -> dict[str, Any]:
    """Raw text in, a trained and evaluated language model out, with the record of every document.

    `recipe` is a recipe, its file, or the name of one that ships. `root` holds all artifacts. `from_stage` builds from
    a stage on and expects those before it to exist, `only` builds one stage, `force` rebuilds what is selected and
    compares. Returns the run's record.
    """
    root = root.resolve()
    if isinstance(recipe, str):
        recipe = load_recipe(find_recipe(recipe), root)
    run = Run(recipe, root, from_stage=from_stage, only=only, force=force, run_id=run_id)
    get_run_logger().info("run %s of recipe %s under %s", run.run_id, recipe.name, root)
    try:
        with run:
            walk(recipe, lambda stage, *inputs: run.step(TASKS[stage], *inputs))
    finally:
        get_run_logger().info("run page: %s", run.write_page())
    return run.record.data
