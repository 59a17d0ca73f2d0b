"""Runs of the road within a larger undertaking: many of one recipe under other settings, perhaps several at once."""

import json
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from flows.pretrain import TASKS
from flows.recipe import Recipe
from flows.record import ONLOOKER
from flows.road import walk
from flows.start_run import start_run
from tasks.artifact import BUILT, Artifact
from tasks.build import Watcher

_ALONE = threading.Lock()


class Stopped(KeyboardInterrupt):
    """Another thread asked this run to stop; it leaves a checkpoint."""


class TrialWatcher(Watcher):
    """Hears one run of many: tells what is built, under the run's name, and can be asked to stop it."""

    def __init__(self, name: str, onlooker: Watcher, stop: threading.Event) -> None:
        self._name = name
        self._onlooker = onlooker
        self._stop = stop

    def progress(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Raises Stopped, in the thread of the run, once it was asked to stop."""
        if self._stop.is_set():
            raise Stopped
        self._onlooker.progress(f"{self._name} {stage}", done, total, unit)

    def finished(self, stage: str, artifact: Artifact, seconds: float) -> None:
        if artifact.outcome == BUILT:
            self._onlooker.finished(f"{self._name} {stage}", artifact, seconds)


def run_road(recipe: Recipe, root: Path, run_id: str, watcher: Watcher, *, until: str | None = None) -> dict[str, Any]:
    """Walk the road, or as far as the stage `until`, in the Prefect run that this is called in; returns the run's
    record, whose `state` says whether it came to its end or paused. Raises what its stages raise.

    Of runs in one process only trainings go on side by side: each other stage takes all cores by itself, and PyTorch's
    number of threads, which decides bits, is a setting of the whole process.
    """
    token = ONLOOKER.set(watcher)
    try:
        run = start_run(recipe, root, run_id=run_id, until=until)
    finally:
        ONLOOKER.reset(token)

    def step(stage: str, *inputs: Any) -> Artifact:
        with nullcontext() if stage == "train" else _ALONE:
            return run.step(TASKS[stage], *inputs)

    with run:
        walk(recipe, step)
    return run.record.data


def built_stages(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Stages that a run built and did not find standing; a training that paused was under way."""
    return tuple(entry["stage"] for entry in record["stages"] if entry["outcome"] in (BUILT, "paused"))


def as_setting(key: str, value: Any) -> str:
    """`key=value`, as `--set` takes it."""
    return f"{key}={json.dumps(value)}"
