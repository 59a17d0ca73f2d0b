"""Ordinary runs of a recipe under other settings, one task run for each (change, seed)."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prefect import task
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from flows.ablate.measuring import Measured, measured
from flows.interrupts import raise_if_interrupted
from flows.recipe import Recipe
from flows.record import ONLOOKER, new_run_id
from flows.trained import find_model
from flows.trial_runs import TrialWatcher, run_road
from model.errors import BessemerError, Infra
from model.sealed import read_sealed, write_sealed
from tasks.build import Watcher
from tasks.outcome import one_line

RUNS = "runs.json"
RUNS_LOST = "Remove it: runs begin under new ids, and what they built is reused."


@dataclass(frozen=True)
class Setup:
    """What is run for one (change, seed)."""

    recipe: Recipe
    go_on: Callable[[Path], Recipe] | None = None
    """Given the folder of the model that came of it: the second run, which is what is measured."""


def run_all(
    setups: Mapping[tuple[str, int], Setup], root: Path, folder: Path, take: Callable[[str, int, Measured], None]
) -> None:
    """Run each setup in turn, and give `take` what was measured.

    Ids of runs are kept in `folder`, so that a later call goes on under them. Raises what ends all: Infra, interrupts.
    """
    known = folder / RUNS
    run_ids: dict[str, str] = read_sealed(known, RUNS_LOST) if known.is_file() else {}
    onlooker, stop = ONLOOKER.get(), threading.Event()
    for (change, seed), setup in setups.items():
        raise_if_interrupted()
        name = f"{change} {seed}"
        ids = [run_ids.setdefault(one, new_run_id()) for one in (name, *([f"{name}, then"] if setup.go_on else []))]
        write_sealed(known, run_ids)
        state = run_change(change, seed, setup, root, ids, TrialWatcher(name, onlooker, stop))
        came = state.result(raise_on_failure=False) if isinstance(state, State) else state
        if not isinstance(came, Measured):
            raise came
        onlooker.note(name, came.cause or ", ".join(came.built) or "all reused")
        take(change, seed, came)


@task(name="change", task_run_name="{change}, seed {seed}", persist_result=False)
def run_change(change: str, seed: int, setup: Setup, root: Path, run_ids: list[str], watcher: Watcher) -> State:
    """One change under one seed. Infra is raised; of other errors the table has the cause."""
    run_id = run_ids[0]
    try:
        last = None if setup.go_on is None else "train"
        came = measured(run_road(setup.recipe, root, run_id, watcher, until=last))
        if setup.go_on is not None:
            run_id = run_ids[1]
            second = setup.go_on(find_model(root, came.run_id)[0].path)
            came = came.followed_by(measured(run_road(second, root, run_id, watcher)))
    except Infra:
        raise
    except BessemerError as error:
        cause = f"{type(error).__name__}: {one_line(error)}"
        came = Measured(run_id=run_id, cause=cause)
        get_run_logger().warning("%s, seed %d: %s", change, seed, cause)
        return State(type="FAILED", name=type(error).__name__, message=one_line(error), data=came)  # pyright: ignore[reportArgumentType]
    built = ", ".join(came.built) or "nothing"
    return State(type="COMPLETED", name="Measured", message=f"{built} built", data=came)  # pyright: ignore[reportArgumentType]
