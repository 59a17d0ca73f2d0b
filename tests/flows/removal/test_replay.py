"""The plan of a removal: from which step training goes on, in how many steps, over how many tokens."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import torch

import model.train.trainer
import tasks.train.run
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.removal.affected import KEEPING, Request, find_leaving, recipe_without
from flows.removal.replay import carried_out, plan_replay
from flows.runs.pipeline import BUILDERS, run_stages
from model.checkpoint.checkpoint import checkpoint_steps
from model.checkpoint.run_folder import CHECKPOINTS
from model.config.train import TrainerRun, read_run
from model.engines import make_engine
from model.guard.decisions import read_decisions
from model.train.trainer import train
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tests.model.forked_trainers import stages_fork_trainers

SETTINGS = (
    "budget_tokens=8K",
    "train.threads=1",
    "chunk.packing=stable",
    "train.lasting_checkpoints=4",
    "train.validation_steps=0",
)
GUARD = tuple(f"train.guard.{one}" for one in ("healthy_steps=2", "margin_steps=2", "most_skipped=0.9"))


@pytest.fixture(scope="module")
def trained(foundry: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Artifact], Recipe]:
    """A root, the artifacts of a run in it, and the recipe without the document that it read last."""
    root = tmp_path_factory.mktemp("root")
    recipe = load_recipe(foundry / "foundry.toml", root, (*SETTINGS, *GUARD))
    with stages_fork_trainers():
        before = built(recipe, root)
    return root, before, without_the_last(recipe, root, before)


def test_a_replay_reads_what_its_plan_says(trained: tuple[Path, dict[str, Artifact], Recipe]) -> None:
    root, before, without = trained
    with stages_fork_trainers():
        after = built(without, root, before["train"].path)
    plan = plan_replay(before, after["chunk"], without.train)
    tokens, steps = (after["train"].table(name) for name in ("metrics", "steps"))
    read = tokens.filter(pc.less(tokens.column("step"), plan.step)).column("tokens").to_pylist()
    assert plan.step == max(event["step"] for event in events(after) if event["kind"] in ("start", "resume"))
    assert plan.steps == steps.num_rows
    assert plan.tokens_in_all == tokens.column("tokens").to_pylist()[-1]
    assert plan.tokens == plan.tokens_in_all - max([0, *read])
    assert carried_out(plan, after["train"]) == plan
    assert plan.obstacle == ""


def test_a_training_that_would_be_that_of_before_needs_no_step(
    trained: tuple[Path, dict[str, Artifact], Recipe],
) -> None:
    """As where cleaning had dropped the documents: the sequences are the same without them."""
    _, before, without = trained
    plan = plan_replay(before, before["chunk"], without.train)
    assert plan.step == plan.steps > 0
    assert (plan.tokens, plan.positions, plan.first_position, plan.seconds, plan.obstacle) == (0, 0, None, 0.0, "")
    assert carried_out(plan, before["train"]) == plan


def test_a_replay_in_which_the_guard_rolls_back_begins_anew_and_is_certified_so(
    trained: tuple[Path, dict[str, Artifact], Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, before, without = trained
    for stage in ("sample", "clean", "dedup", "decontaminate", "vocab", "chunk"):
        shutil.copytree(root / "artifacts" / stage, tmp_path / "artifacts" / stage)
    trainings: list[Path] = []

    def in_this_process(arguments: list[str], **_: object) -> None:
        trainings.append(Path(arguments[2]))
        train(read_run(trainings[-1]))

    def fails(run: TrainerRun, network: Any, ranks: Any) -> Any:
        """An engine whose gradient is no number from step 13 on, in the first attempt of every training."""
        engine: Any = make_engine(run, network, ranks)
        if read_decisions(run.out):
            return engine
        real, step = engine.begin, itertools.count(max(checkpoint_steps(run.out / CHECKPOINTS), default=0))

        def begin(*words: Any) -> None:
            value = torch.nan if next(step) >= 13 else 1.0
            hook = network.embedding.weight.register_hook(lambda gradient: gradient * value)
            real(*words)
            hook.remove()

        engine.begin = begin
        return engine

    monkeypatch.setattr(tasks.train.run, "run_trainer", in_this_process)
    monkeypatch.setattr(model.train.trainer, "make_engine", fails)
    after = built(without, tmp_path, before["train"].path)
    plan = plan_replay(before, after["chunk"], without.train)
    assert plan.step > 0
    assert len(trainings) == 2
    assert events(after)[0]["kind"] == "start"
    assert [event["step"] for event in events(after) if event["attempt"] == 0 and event["kind"] == "resume"] == []
    assert carried_out(plan, after["train"]) == replace(plan, step=0, tokens=plan.tokens_in_all)

    next_plan = plan_replay({**before, "train": after["train"]}, after["chunk"], without.train)
    assert (next_plan.step, next_plan.positions) == (0, plan.positions)
    assert "the guard rolled the training of before back" in next_plan.obstacle

    scratch = tmp_path / "scratch"
    assert built(without, scratch)["train"].content == after["train"].content


def without_the_last(recipe: Recipe, root: Path, before: dict[str, Artifact]) -> Recipe:
    """The recipe without the document that is read last; what is kept is named by its folder, since there is no record
    of a run."""
    spans = {row["row"]: row["doc_id"].hex() for row in before["chunk"].table("spans").to_pylist()}
    rows = before["chunk"].table("order").column("row").to_pylist()
    request = Request((next(spans[row] for row in reversed(rows) if row in spans),))
    found = recipe_without(recipe, "run", before, find_leaving(root, "run", before, recipe, request), request)
    changes = {stage: {"keep": str(before[stage].path)} for stage in KEEPING}
    changes["decontaminate"]["keep_heldout"] = changes["decontaminate"]["keep"]
    return found.model_copy(
        update={stage: getattr(found, stage).model_copy(update=values) for stage, values in changes.items()}
    )


def built(recipe: Recipe, root: Path, replay_of: Path | None = None) -> dict[str, Artifact]:
    context = RunContext(root, "run", replay_of=replay_of)
    return run_stages(recipe, lambda stage, *inputs: BUILDERS[stage](context, *inputs), "train")


def events(artifacts: dict[str, Artifact]) -> list[dict[str, Any]]:
    return artifacts["train"].table("events").to_pylist()
