"""Says what each stage of a recipe would do, again and again in one process: `forecast.py RECIPE ROOT`.

Each line of stdin is a request {"recipe"?: path, "root"?: path, "settings"?: [KEY=VALUE], "stages"?: [STAGE]}. Each
line of stdout answers {stage: {"key", "outcome", "causes"}}, or {stage: {"error"}} where a stage would refuse its
input. The real builds are asked, in a dry run. Every stage gets the artifacts that are in the root as its inputs,
whatever those before it say.
"""

import json
import sys
from pathlib import Path
from typing import Any

from flows.recipe.load import load_recipe
from flows.recipe.stages import STAGES
from flows.runs.pipeline import BUILDERS, run_stages
from model.environment import filter_environment
from model.errors import BessemerError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, WouldBuild
from tasks.artifacts.identity import differences


def forecast(recipe_path: Path, root: Path, settings: list[str], stages: list[str]) -> dict[str, Any]:
    """What these stages would do with this recipe."""
    context = RunContext(root, run_id="", dry=True)
    answers: dict[str, Any] = {}

    def step(stage: str, *inputs: Any) -> Artifact:
        (existing,) = (root / "artifacts" / stage).iterdir()
        if stage not in stages:
            return Artifact.open(existing)
        try:
            artifact = BUILDERS[stage](context, *inputs)
            answers[stage] = {"key": artifact.identity, "outcome": artifact.outcome, "causes": []}
        except WouldBuild as would:
            causes = list(differences(would.miss.nearest_parts or {}, would.identity.parts()))
            if causes[:1] != [would.miss.cause]:
                raise AssertionError(f"the cause named is not the first difference: {would.miss.cause}") from would
            answers[stage] = {"key": would.identity.key, "outcome": "build", "causes": causes}
        except BessemerError as error:
            answers[stage] = {"error": f"{type(error).__name__}: {error}"}
        return Artifact.open(existing)

    run_stages(load_recipe(recipe_path, root, settings), step)
    return answers


if __name__ == "__main__":
    filter_environment()  # as the command line does
    for line in sys.stdin:
        request = json.loads(line)
        recipe, root = Path(request.get("recipe", sys.argv[1])), Path(request.get("root", sys.argv[2]))
        answers = forecast(recipe, root, request.get("settings", []), request.get("stages") or list(STAGES))
        print(json.dumps(answers), flush=True)
