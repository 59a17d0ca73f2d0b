"""Runs of the road within a larger undertaking: many of one recipe under other settings, perhaps several at once.

Ordinary runs of a recipe under other settings, one task run for each (change, seed).

What is measured of each run: loss, held-out figures, benchmarks, speed, size.

Ablation: what each of a list of changes to a recipe does, one at a time, over several seeds.

Every (change, seed) is an ordinary run of the road, so that stages which a change does not touch are reused. A change
is laid beside the base seed by seed, which takes what both owe to a lucky start out of the difference, and over the
items of a benchmark one by one. `components` takes heads and layers from a trained network instead.
"""

import json
import re
import statistics
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prefect import task
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from flows.metrics.formatting import format_shots
from flows.metrics.heldout import HeldOut, held_out
from flows.metrics.run_metrics import open_artifacts
from flows.models.load import find_model
from flows.planning.start_run import start_run
from flows.recipe.schema import Recipe
from flows.runs.guards import raise_if_interrupted
from flows.runs.pipeline import run_stages
from flows.runs.record import CURRENT_LISTENER, new_run_id
from model.checkpoint.metrics import RECENT_SHARE, kept_rows
from model.checksummed_json import read_sealed, write_sealed
from model.errors import BessemerError, Infra
from tasks.artifacts.artifact import BUILT, Artifact
from tasks.artifacts.build import Watcher
from tasks.execution.outcome import one_line
from tasks.prefect_tasks import TASKS

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


def run_pipeline(
    recipe: Recipe, root: Path, run_id: str, watcher: Watcher, *, until: str | None = None
) -> dict[str, Any]:
    """Walk the road, or as far as the stage `until`, in the Prefect run that this is called in; returns the run's
    record, whose `state` says whether it came to its end or paused. Raises what its stages raise.

    Of runs in one process only trainings go on side by side: each other stage takes all cores by itself, and PyTorch's
    number of threads, which decides bits, is a setting of the whole process.
    """
    token = CURRENT_LISTENER.set(watcher)
    try:
        run = start_run(recipe, root, run_id=run_id, until=until)
    finally:
        CURRENT_LISTENER.reset(token)

    def step(stage: str, *inputs: Any) -> Artifact:
        with nullcontext() if stage == "train" else _ALONE:
            return run.step(TASKS[stage], *inputs)

    with run:
        run_stages(recipe, step)
    return run.record.data


def built_stages(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Stages that a run built and did not find standing; a training that paused was under way."""
    return tuple(entry["stage"] for entry in record["stages"] if entry["outcome"] in (BUILT, "paused"))


def as_setting(key: str, value: Any) -> str:
    """`key=value`, as `--set` takes it."""
    return f"{key}={json.dumps(value)}"


RUNS = "runs.json"

RUNS_LOST = "Remove it: runs begin under new ids, and what they built is reused."


@dataclass(frozen=True)
class Variant:
    """What is run for one (change, seed)."""

    recipe: Recipe
    go_on: Callable[[Path], Recipe] | None = None
    """Given the folder of the model that came of it: the second run, which is what is measured."""


@dataclass
class RunResult:
    """One run in numbers. Of `values`, those in `higher` are better the higher they are."""

    values: dict[str, float] = field(default_factory=dict)
    higher: set[str] = field(default_factory=set)
    items: dict[str, dict[str, float]] = field(default_factory=dict)
    """Benchmark (as `values` names it) -> item -> its primary score."""
    built: tuple[str, ...] = ()
    run_id: str = ""
    cause: str = ""
    """Why there are no numbers."""
    heldout: HeldOut = field(default_factory=HeldOut)
    of_heldout: dict[str, str] = field(default_factory=dict)
    """Figure of held-out text, as `values` names it -> its metric of SCORES."""
    of_tokens: dict[str, str] = field(default_factory=dict)
    """Figure that says something only of these tokens -> what they are: the identity of the rows, or the
    content of the vocabulary."""

    def followed_by(self, second: "RunResult") -> "RunResult":
        """The second run's numbers, but for the speed, which is this one's: second runs are alike."""
        speed = {SPEED: self.values[SPEED]} if SPEED in self.values else {}
        built = tuple(dict.fromkeys([*self.built, *second.built]))
        return replace(second, values=second.values | speed, built=built)


def run_variants(
    setups: Mapping[tuple[str, int], Variant], root: Path, folder: Path, take: Callable[[str, int, RunResult], None]
) -> None:
    """Run each setup in turn, and give `take` what was measured.

    Ids of runs are kept in `folder`, so that a later call goes on under them. Raises what ends all: Infra, interrupts.
    """
    known = folder / RUNS
    run_ids: dict[str, str] = read_sealed(known, RUNS_LOST) if known.is_file() else {}
    onlooker, stop = CURRENT_LISTENER.get(), threading.Event()
    for (change, seed), setup in setups.items():
        raise_if_interrupted()
        name = f"{change} {seed}"
        ids = [run_ids.setdefault(one, new_run_id()) for one in (name, *([f"{name}, then"] if setup.go_on else []))]
        write_sealed(known, run_ids)
        state = run_variant(change, seed, setup, root, ids, TrialWatcher(name, onlooker, stop))
        came = state.result(raise_on_failure=False) if isinstance(state, State) else state
        if not isinstance(came, RunResult):
            raise came
        onlooker.note(name, came.cause or ", ".join(came.built) or "all reused")
        take(change, seed, came)


@task(name="change", task_run_name="{change}, seed {seed}", persist_result=False)
def run_variant(change: str, seed: int, setup: Variant, root: Path, run_ids: list[str], watcher: Watcher) -> State:
    """One change under one seed. Infra is raised; of other errors the table has the cause."""
    run_id = run_ids[0]
    try:
        last = None if setup.go_on is None else "train"
        came = read_result(run_pipeline(setup.recipe, root, run_id, watcher, until=last))
        if setup.go_on is not None:
            run_id = run_ids[1]
            second = setup.go_on(find_model(root, came.run_id)[0].path)
            came = came.followed_by(read_result(run_pipeline(second, root, run_id, watcher)))
    except Infra:
        raise
    except BessemerError as error:
        cause = f"{type(error).__name__}: {one_line(error)}"
        came = RunResult(run_id=run_id, cause=cause)
        get_run_logger().warning("%s, seed %d: %s", change, seed, cause)
        return State(type="FAILED", name=type(error).__name__, message=one_line(error), data=came)  # pyright: ignore[reportArgumentType]
    built = ", ".join(came.built) or "nothing"
    return State(type="COMPLETED", name="RunResult", message=f"{built} built", data=came)  # pyright: ignore[reportArgumentType]


HELDOUT = "heldout/all"

BESIDE_MODEL = ("5gram_", "unigram_", "xz_", "frequent_", "majority_")
"""Beginnings of metrics of held-out text that are a baseline's."""

PER_TOKEN = re.compile("perplexity|accuracy|per_token")
"""Metrics of held-out text that count tokens of a vocabulary, and not bytes."""

LOSS, SPEED = "training loss", "tokens a second"

ITEM_SCORES = "item_scores"


def read_result(record: dict[str, Any]) -> RunResult:
    """The numbers of a run that came to its end."""
    artifacts = open_artifacts(record)
    found = RunResult(run_id=record["run_id"])
    found.built = tuple(entry["stage"] for entry in record["stages"] if entry["outcome"] == "built")
    if "train" in artifacts:
        _of_training(artifacts["train"], found)
    if "chunk" in artifacts and LOSS in found.values:
        found.of_tokens[LOSS] = artifacts["chunk"].identity
    if "evaluate" in artifacts:
        _of_scores(artifacts["evaluate"], found)
        found.heldout = held_out(artifacts)
        for name, metric in found.of_heldout.items():
            if PER_TOKEN.search(metric) and "vocab" in artifacts:
                found.of_tokens[name] = artifacts["vocab"].content
    return found


def _of_training(model: Artifact, found: RunResult) -> None:
    losses = kept_rows(model.table("metrics"), model.table("steps")).column("loss").to_pylist()
    if losses:
        found.values[LOSS] = statistics.fmean(losses[-max(1, round(RECENT_SHARE * len(losses))) :])
    speed = model.report.facts["training"]["tokens_s"]
    if speed is not None:
        found.values[SPEED] = speed
        found.higher.add(SPEED)


def _of_scores(scores: Artifact, found: RunResult) -> None:
    for row in scores.table("scores").to_pylist():
        if row["value"] is None:
            continue
        if row["task"] == HELDOUT and not row["metric"].startswith(BESIDE_MODEL):
            name = row["metric"].replace("_", " ")
            found.values[name] = row["value"]
            found.of_heldout[name] = row["metric"]
            if row["metric"].endswith("accuracy"):
                found.higher.add(name)
    for row in scores.table(ITEM_SCORES).to_pylist():
        name = f"{row['task']} {row['metric']}, {format_shots(row['shots'])}"
        found.items.setdefault(name, {})[row["item_id"]] = row["value"]
    for name, items in found.items.items():
        found.values[name] = sum(items.values()) / len(items)
        found.higher.add(name)
