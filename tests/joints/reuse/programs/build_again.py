"""Builds stages as `bessemer` does, in a process that leaves out of its environment what does not pass:
`build_again.py RECIPE ROOT [STAGE ...]`, the stages that are forced. Train is the last but evaluate, if it is named.

Prints one JSON line a stage: {"stage", "identity", "content", "outcome", "arithmetic"}; outcome is `other bytes` where
a forced build differs from what exists. With BESSEMER_MACHINE nothing is left out, since all processes are then given
something as they start, which makes this another machine (test_environments.py).
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from model.environment import filter_environment

if "BESSEMER_MACHINE" not in os.environ:
    filter_environment()

from flows.recipe.load import load_recipe
from flows.runs.pipeline import (
    BUILDERS,  # what is imported reads variables
    run_stages,
)
from model.errors import IntegrityError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext


def main(recipe: Path, root: Path, forced: frozenset[str]) -> None:
    """Run the pipeline."""
    context = RunContext(root, run_id="20250101T000000Z-abcdef", forced=forced)

    def step(stage: str, *inputs: Any) -> Any:
        if stage == "evaluate" and forced and stage not in forced:
            return None
        found: dict[str, Any] = {"stage": stage}
        try:
            artifact: Artifact = BUILDERS[stage](context, *inputs)
            found |= {"outcome": artifact.outcome}
        except IntegrityError:
            # The one that exists, from which the next stage goes on.
            existing = [path for path in (root / "artifacts" / stage).iterdir() if "conflict" not in path.name]
            artifact = Artifact.open(max(existing, key=lambda path: path.stat().st_mtime))
            found |= {"outcome": "other bytes"}
        libs = artifact.manifest["identity_parts"]["libs"]
        found |= {"identity": artifact.identity, "content": artifact.content}
        print(json.dumps({**found, "arithmetic": libs.get("instruction-set")}), flush=True)
        return artifact

    run_stages(load_recipe(recipe, root), step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), frozenset(sys.argv[3:]))
