"""Plan from which step training is repeated: the last checkpoint before the first row that is another one.

A run by the recipe without the documents differs from one in an empty root in one point only: it continues a checkpoint
of the run before, where the rows read up to there are equal (`model/train/replay.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flows.recipe.schema import Recipe
from flows.runs.pipeline import BUILDERS, run_stages
from flows.runs.record import new_run_id
from model.checkpoint.run_folder import PREFIX
from model.data.dataset import SequenceReader
from model.objectives import make_objective
from model.objectives.base import Objective
from model.optim.schedules import TrainingSchedule
from model.train.replay import BATCH_POSITIONS, differing_positions, reads_tokens_alone
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.build import RunContext, WouldBuild
from tasks.artifacts.results import TrainResult
from tasks.artifacts.reuse import OF_A_SOURCE
from tasks.train.config import TrainStageConfig
from tasks.train.run import begins_anew, trainer_run


@dataclass(frozen=True)
class ReplayPlan:
    """From where training goes on, and how much it computes again."""

    step: int
    steps: int
    tokens: int
    """Tokens that are read again."""
    tokens_in_all: int
    positions: int
    """Positions of the order whose rows change."""
    first_position: int | None
    """The first of them; None where no row that training read changes."""
    seconds: float
    """Time of the repeated steps at the speed of the training before."""
    obstacle: str = ""
    """What keeps the rows before the first that changes from being skipped; empty where nothing does."""


def plan_replay(before: Mapping[str, Artifact], chunk: Artifact, config: TrainStageConfig) -> ReplayPlan:
    """Return from which step training by the settings `config` would go on with the sequences of `chunk`, by the rows
    of both orders, and how much of the new order it reads from there.

    The trainer compares again, and takes no checkpoint whose settings or libraries are others."""
    if _trained_alike(before, chunk, config):
        done = TrainResult.of(before["train"].report).training
        return ReplayPlan(done["steps"], done["steps"], 0, done["tokens"], 0, first_position=None, seconds=0.0)
    run = trainer_run(chunk, before["vocab"], config, Path())
    mine, theirs = (SequenceReader(of.files("sequences"), of.files("order")[0]) for of in (before["chunk"], chunk))
    schedule, objective = TrainingSchedule(run.train, theirs.positions, run.model.context), make_objective(run)
    step, changed = 0, np.arange(max(mine.positions, theirs.positions))
    obstacle = "the order has another length" if mine.positions != theirs.positions else ""
    if not obstacle:
        found = differing_positions(mine, theirs, by_number=not reads_tokens_alone(run))
        changed = np.concatenate([np.zeros(0, np.int64), *found])
        equal = int(changed[0]) if len(changed) else theirs.positions
        same_heldout = _validation_rows(before["chunk"]) == _validation_rows(chunk)
        lasting = _lasting_steps(before["train"])
        unseen = [kept for kept in lasting if schedule.positions(kept - 1)[1] <= equal]
        usable = unseen if same_heldout else [kept for kept in unseen if not _validated_by(before["train"], kept)]
        step = max(usable, default=0)
        if not lasting and _rolled_back(before["train"]):
            obstacle = "the guard rolled the training of before back, which then keeps no checkpoints to go on from"
        elif not lasting:
            obstacle = "the training of before kept no checkpoint to go on from, see train.lasting_checkpoints"
        elif len(usable) < len(unseen):
            obstacle = "held-out text changes, which the checkpoints after that had been measured by"
    begin = schedule.positions(step)[0]
    again = _text_tokens(objective, theirs, begin, theirs.positions)
    walls = before["train"].table("perf").column("wall_s").to_numpy()
    return ReplayPlan(
        step=step,
        steps=schedule.steps,
        tokens=again,
        tokens_in_all=again + _text_tokens(objective, theirs, 0, begin),
        positions=len(changed),
        first_position=int(changed[0]) if len(changed) else None,
        seconds=(schedule.steps - step) * (float(np.median(walls)) if len(walls) else 0.0),
        obstacle=obstacle,
    )


def carried_out(plan: ReplayPlan, trained: Artifact) -> ReplayPlan:
    """Return the plan of a training that has ended: all of it where it began anew."""
    anew = plan.tokens and begins_anew(TrainResult.of(trained.report).decisions or ())
    return replace(plan, step=0, tokens=plan.tokens_in_all) if anew else plan


def _trained_alike(before: Mapping[str, Artifact], chunk: Artifact, config: TrainStageConfig) -> bool:
    """Return whether training on `chunk` is that of before, so that its model is used again."""
    if chunk.content != before["chunk"].content:
        return False
    context = RunContext(before["train"].path.parents[2], run_id="", dry=True)
    try:
        trained = BUILDERS["train"](context, chunk, before["vocab"], config)
    except WouldBuild:
        return False
    return trained.content == before["train"].content


def _rolled_back(trained: Artifact) -> bool:
    return bool(trained.names("events")) and "rollback" in trained.table("events").column("kind").to_pylist()


def _lasting_steps(trained: Artifact) -> list[int]:
    """Return the steps before each checkpoint that stayed with a model, ascending."""
    names = (record.name.partition(".")[0] for record in trained.records)
    return sorted({int(name.removeprefix(PREFIX)) for name in names if name.startswith(PREFIX)})


def _text_tokens(objective: Objective, data: SequenceReader, begin: int, end: int) -> int:
    starts = range(begin, end, BATCH_POSITIONS)
    batches = (data.rows(start, min(start + BATCH_POSITIONS, end)) for start in starts)
    return sum(objective.text_tokens(data, rows) for rows in batches)


def _validation_rows(chunk: Artifact) -> list[str]:
    return [record.digest for record in chunk.records if record.table == "heldout_rows"]


def _validated_by(trained: Artifact, step: int) -> bool:
    rows = trained.table("validation").column("step").to_numpy() if trained.names("validation") else np.zeros(0)
    return bool(len(rows)) and int(rows.min()) < step


def build_data(recipe: Recipe, root: Path) -> dict[str, Artifact]:
    """Build the stages of a recipe up to chunk, and return their artifacts."""
    context = RunContext(root, run_id=new_run_id())
    return run_stages(recipe, lambda stage, *inputs: BUILDERS[stage](context, *inputs), until="chunk")


def changed_sources(before: Artifact, after: Artifact) -> list[str]:
    """Return the sources of which two artifacts of sample read other files, or other content of them."""
    read = [_digests_of_sources(of) for of in (before, after)]
    return sorted(name for name in read[0].keys() & read[1].keys() if read[0][name] != read[1][name])


def _digests_of_sources(sample: Artifact) -> dict[str, str]:
    parents = manifest_of(sample)["identity_parts"]["parents"]
    return {name.removeprefix(OF_A_SOURCE): one for name, one in parents.items() if name.startswith(OF_A_SOURCE)}
