"""One stretch of a trial: its run of the road, to a rung or to the end, and what came of it."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import task
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from flows.recipe import Recipe
from flows.record import PAUSED
from flows.search.book import State as TrialState
from flows.search.book import Stop
from flows.search.came import Came, came_to_nothing
from flows.search.config import ObjectiveConfig
from flows.trial_runs import built_stages, run_road
from model.errors import BessemerError, Infra, InputError
from tasks.artifact import Artifact
from tasks.build import Watcher


@dataclass(frozen=True)
class Stretch:
    """What a trial is to do."""

    number: int
    rung: int
    recipe: Recipe
    run_id: str
    objective: ObjectiveConfig


STATES: dict[TrialState, str] = {
    "paused": "COMPLETED",
    "complete": "COMPLETED",
    "diverged": "FAILED",
    "failed": "FAILED",
}
"""Prefect's types of them."""


@task(name="trial", task_run_name="trial {number}, rung {rung}", persist_result=False)
def train_trial(number: int, rung: int, stretch: Stretch, root: Path, watcher: Watcher) -> State:
    """Train a trial to a rung, or to its end."""
    del number, rung  # They name the task run.
    came = go_stretch(stretch, root, watcher)
    get_run_logger().info("trial %d: %s, %s", came.number, came.state, came.told)
    return State(type=STATES[came.state], name=came.state.capitalize(), message=came.told, data=came)  # pyright: ignore[reportArgumentType]


def go_stretch(stretch: Stretch, root: Path, watcher: Watcher) -> Came:
    """Raises Infra where the machine failed: the trial is not to blame, and goes on when the search does."""
    began = time.monotonic()
    try:
        record = run_road(stretch.recipe, root, stretch.run_id, watcher)
    except Infra:
        raise
    except BessemerError as error:
        return came_to_nothing(stretch.number, stretch.rung, error, time.monotonic() - began)
    seconds, built = time.monotonic() - began, built_stages(record)
    if record["state"] == PAUSED:
        pause = next(entry for entry in record["stages"] if entry["outcome"] == PAUSED)
        stop = Stop(stretch.rung, pause["step"], pause["steps"], pause["loss"], seconds, built)
        return Came(stretch.number, "paused", stop)
    steps = _artifact(record, "train").report.facts["training"]["steps"]
    value, stderr = objective_value(_artifact(record, "evaluate"), stretch.objective)
    return Came(stretch.number, "complete", Stop(stretch.rung, steps, steps, None, seconds, built), value, stderr)


def _artifact(record: dict[str, Any], stage: str) -> Artifact:
    return Artifact.open(Path(next(entry["path"] for entry in record["stages"] if entry["stage"] == stage)))


def objective_value(scores: Artifact, objective: ObjectiveConfig) -> tuple[float, float | None]:
    """The objective's value and standard error; InputError where the evaluation has no such figure."""
    rows = scores.table("scores").to_pylist()
    for row in rows:
        of_item = row["task"].startswith("heldout/") or (row["shots"], row["subset"]) == (
            objective.shots,
            objective.subset,
        )
        if (row["task"], row["metric"]) == (objective.task, objective.metric) and of_item and row["value"] is not None:
            return row["value"], row["stderr"]
    known = sorted({f"{row['metric']} of {row['task']}" for row in rows if row["value"] is not None})
    raise InputError(
        f"search.objective asks for {objective.told} ({objective.shots} shots, {objective.subset} items), and the"
        f" evaluation gives {', '.join(known) or 'nothing'}. Choose one of these in [search.objective]"
    )
