"""Builds one stage that runs the kernels of a package, and counts how many of them numba compiled or loaded.

`count_compilations.py RECIPE ROOT STAGE PACKAGE [one-folder]` builds the stage from those before it, which are in the
root, and prints {"content", "compiled", "loaded"}; the last two map a kernel's name to its number of signatures. With
`one-folder` compiled code is kept as numba keeps it by itself: by the file that holds a function, whatever else it
reaches.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from numba.core.dispatcher import Dispatcher

import model.kernel_cache
from flows.recipe.load import load_recipe
from flows.recipe.stages import STAGES
from flows.runs.pipeline import BUILDERS, run_stages
from model.errors import BessemerError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext


def main(recipe_path: Path, root: Path, wanted: str, package: str, one_folder: bool) -> None:
    """Build one stage from the artifacts of those before it."""
    if one_folder:
        model.kernel_cache.cached = _cached_by_numba
    recipe = load_recipe(recipe_path, root)
    context = RunContext(root, run_id="20250101T000000Z-abcdef")
    found: dict[str, Any] = {}

    def step(stage: str, *inputs: Any) -> Artifact:
        if STAGES.index(stage) < STAGES.index(wanted):
            (path,) = (root / "artifacts" / stage).iterdir()
            return Artifact.open(path)
        try:
            found["content"] = BUILDERS[stage](context, *inputs).content
        except BessemerError as error:
            found["content"] = f"{type(error).__name__}: {error}"  # Stale kernels may be that wrong.
        raise StopIteration

    try:
        run_stages(recipe, step)
    except StopIteration:
        kernels = {
            id(value): value
            for name, module in list(sys.modules.items())
            if name.startswith(f"tasks.{package}.")
            for value in vars(module).values()
            if isinstance(value, Dispatcher)
        }
        found["compiled"] = _signatures(kernels.values(), "cache_misses")
        found["loaded"] = _signatures(kernels.values(), "cache_hits")
        print(json.dumps(found))


def _signatures(kernels: Iterable[Dispatcher], counter: str) -> dict[str, int]:
    """Return name -> number of signatures that were compiled (`cache_misses`) or loaded (`cache_hits`)."""
    counted = {kernel.__name__: sum(getattr(kernel.stats, counter).values()) for kernel in kernels}
    return {name: number for name, number in counted.items() if number}


def _cached_by_numba(dispatcher: Any) -> Any:
    dispatcher.enable_caching()
    return dispatcher


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], "one-folder" in sys.argv[5:])
