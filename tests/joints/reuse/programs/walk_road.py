"""Builds the stages of a recipe in order, without Prefect: `walk_road.py RECIPE ROOT LAST_STAGE [KEY=VALUE ...]`.

Prints one JSON line a stage: {"stage", "outcome", "content", "path"}. With the tracer in place (`sitecustomize.py`),
what runs within a stage's `run(workspace)` is recorded under the stage's name.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from flows.recipe.load import load_recipe
from flows.recipe.stages import STAGES
from flows.runs.pipeline import BUILDERS, run_stages
from model.environment import filter_environment
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext


def record_stages(tracer: Any) -> None:
    """Have the tracer listen exactly while a stage's `run(workspace)` runs."""
    for name in STAGES:
        module = importlib.import_module(f"tasks.{name}.stage")

        def build(context: Any, stage: Any, config: Any, parents: Any, run: Any, *rest: Any, _build: Any, **more: Any):
            def traced(workspace: Any) -> Any:
                with tracer.recording(stage.name):
                    return run(workspace)

            return _build(context, stage, config, parents, traced, *rest, **more)

        existing = module.build_artifact
        module.build_artifact = lambda *a, _build=existing, _traced=build, **k: _traced(*a, _build=_build, **k)


def main(recipe_path: Path, root: Path, last: str, settings: list[str]) -> None:
    """Run the pipeline."""
    recipe = load_recipe(recipe_path, root, settings)
    context = RunContext(root, run_id="20250101T000000Z-abcdef")
    if (tracer := sys.modules.get("sitecustomize")) is not None and hasattr(tracer, "recording"):
        record_stages(tracer)

    def step(stage: str, *inputs: Any) -> Artifact:
        artifact = BUILDERS[stage](context, *inputs)
        reported = {
            "stage": stage,
            "outcome": artifact.outcome,
            "content": artifact.content,
            "path": str(artifact.path),
        }
        print(json.dumps(reported), flush=True)
        return artifact

    run_stages(recipe, step, until=last)


if __name__ == "__main__":
    filter_environment()  # as the command line does
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
