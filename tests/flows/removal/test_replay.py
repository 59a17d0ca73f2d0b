"""The plan of a removal: from which step training goes on, in how many steps, over how many tokens."""

from pathlib import Path

import pyarrow.compute as pc
import pytest

from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.removal.affected import KEEPING, Request, find_leaving, recipe_without
from flows.removal.replay import plan_replay
from flows.runs.pipeline import BUILDERS, run_stages
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext

SETTINGS = {"gpt": ("chunk.packing=stable",), "bert": ("train.model.architecture=bert",)}


def built(recipe: Recipe, root: Path, replay_of: Path | None = None) -> dict[str, Artifact]:
    context = RunContext(root, "run", replay_of=replay_of)
    return run_stages(recipe, lambda stage, *inputs: BUILDERS[stage](context, *inputs), "train")


def keeping(recipe: Recipe, before: dict[str, Artifact]) -> Recipe:
    """Name what is kept by its folder, since there is no record of a run."""
    changes = {stage: {"keep": str(before[stage].path)} for stage in KEEPING}
    changes["decontaminate"]["keep_heldout"] = changes["decontaminate"]["keep"]
    return recipe.model_copy(
        update={stage: getattr(recipe, stage).model_copy(update=values) for stage, values in changes.items()}
    )


@pytest.mark.parametrize("architecture", ["gpt", pytest.param("bert", marks=pytest.mark.prove)])
def test_a_replay_reads_what_its_plan_says(foundry: Path, tmp_path: Path, architecture: str) -> None:
    settings = ("budget_tokens=8K", "train.lasting_checkpoints=4", "train.validation_steps=0", *SETTINGS[architecture])
    recipe = load_recipe(foundry / "foundry.toml", tmp_path, settings)
    before = built(recipe, tmp_path)
    request = Request(("note-0",))
    leaving = find_leaving(tmp_path, "run", before, recipe, request)
    without = keeping(recipe_without(recipe, "run", before, leaving, request), before)
    after = built(without, tmp_path, before["train"].path)
    plan = plan_replay(before, after["chunk"], without.train)
    tokens, steps = (after["train"].table(name) for name in ("metrics", "steps"))
    events = after["train"].table("events").to_pylist()
    read = tokens.filter(pc.less(tokens.column("step"), plan.step)).column("tokens").to_pylist()
    assert plan.step == max(event["step"] for event in events if event["kind"] in ("start", "resume"))
    assert plan.steps == steps.num_rows
    assert plan.tokens_in_all == tokens.column("tokens").to_pylist()[-1]
    assert plan.tokens == plan.tokens_in_all - max([0, *read])
