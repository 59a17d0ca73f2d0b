"""Ordinary runs of a recipe under other settings, one task run for each (change, seed)."""

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from prefect import task
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from flows.ablate.measuring import Measured, measured
from flows.interrupts import raise_if_interrupted
from flows.recipe import Recipe
from flows.record import ONLOOKER, new_run_id
from flows.trial_runs import TrialWatcher, run_road
from model.durable import write_atomically
from model.errors import BessemerError, Infra
from tasks.build import Watcher
from tasks.outcome import one_line

RUNS = "runs.json"


def run_all(
    recipes: Mapping[tuple[str, int], Recipe], root: Path, folder: Path, take: Callable[[str, int, Measured], None]
) -> None:
    """Run each recipe in turn, and give `take` what was measured.

    Ids of runs are kept in `folder`, so that a later call goes on under them. Raises what ends all: Infra, interrupts.
    """
    known = folder / RUNS
    run_ids: dict[str, str] = json.loads(known.read_text()) if known.is_file() else {}
    onlooker, stop = ONLOOKER.get(), threading.Event()
    for (change, seed), recipe in recipes.items():
        raise_if_interrupted()
        name = f"{change} {seed}"
        run_id = run_ids.setdefault(name, new_run_id())
        write_atomically(known, json.dumps(run_ids, indent=1).encode())
        state = run_change(change, seed, recipe, root, run_id, TrialWatcher(name, onlooker, stop))
        came = state.result(raise_on_failure=False) if isinstance(state, State) else state
        if not isinstance(came, Measured):
            raise came
        onlooker.note(name, came.cause or ", ".join(came.built) or "all reused")
        take(change, seed, came)


@task(name="change", task_run_name="{change}, seed {seed}", persist_result=False)
def run_change(change: str, seed: int, recipe: Recipe, root: Path, run_id: str, watcher: Watcher) -> State:
    """One change under one seed. Infra is raised; of other errors the table has the cause."""
    try:
        came = measured(run_road(recipe, root, run_id, watcher))
    except Infra:
        raise
    except BessemerError as error:
        cause = f"{type(error).__name__}: {one_line(error)}"
        came = Measured(run_id=run_id, cause=cause)
        get_run_logger().warning("%s, seed %d: %s", change, seed, cause)
        return State(type="FAILED", name=type(error).__name__, message=one_line(error), data=came)  # pyright: ignore[reportArgumentType]
    built = ", ".join(came.built) or "nothing"
    return State(type="COMPLETED", name="Measured", message=f"{built} built", data=came)  # pyright: ignore[reportArgumentType]
