"""Build a recipe up to train in an empty root, with kept aggregates from a folder, and print the digests of the result.

python from_scratch.py RECIPE.json KEPT ROOT
"""

import json
import sys
from pathlib import Path

from flows.recipe.schema import Recipe
from flows.runs.pipeline import BUILDERS, run_stages
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext

KEEPING = ("sample", "clean", "decontaminate", "vocab", "chunk")


def build(recipe: Recipe, root: Path) -> Artifact:
    context = RunContext(root, "scratch")
    return run_stages(recipe, lambda stage, *inputs: BUILDERS[stage](context, *inputs), "train")["train"]


if __name__ == "__main__":
    values = json.loads(Path(sys.argv[1]).read_text())
    values.pop("digest", None)
    kept = Path(sys.argv[2])
    for stage in KEEPING:
        if values[stage]["keep"] is not None:
            values[stage]["keep"] = str(kept / stage)
    if values["decontaminate"]["keep_heldout"] is not None:
        values["decontaminate"]["keep_heldout"] = str(kept / "decontaminate")
    trained = build(Recipe.model_validate(values), Path(sys.argv[3]))
    print(json.dumps({record.name: record.digest for record in trained.records}))
