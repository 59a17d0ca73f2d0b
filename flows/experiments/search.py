"""Hyperparameter search as a Prefect flow: many trainings of one recipe with other settings, to find better ones.

A trial is an ordinary run of the pipeline with settings of its own, so that all data are reused by identity. It is
trained in segments, one task run each, up to a rung or to its end, several trials at once if configured. Settings are
suggested by the tree-structured Parzen estimator (Bergstra et al. 2011, by Optuna) or at random (Bergstra and Bengio
2012). Asynchronous successive halving (Li et al. 2020, ASHA) lets only the better third of trials continue at each
rung; the others stay paused at a checkpoint.
"""

import concurrent.futures
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from prefect import flow, tags, task
from prefect.client.schemas.objects import State
from prefect.futures import PrefectConcurrentFuture
from prefect.logging import get_run_logger
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from flows.experiments.samplers import format_settings
from flows.experiments.search_config import ObjectiveConfig
from flows.experiments.search_report import SearchFound, write_results
from flows.experiments.study import Study, read_study
from flows.experiments.trial_log import Stop, Trial, TrialResult, failed_result
from flows.experiments.trials import TrialWatcher, built_stages, run_pipeline
from flows.metrics.run_metrics import score_rows
from flows.recipe.schema import Recipe
from flows.runs.context import CURRENT_LISTENER
from flows.runs.lifecycle import FlowEnd, end_of_flow
from flows.runs.lineage import run_artifacts
from flows.runs.record import PAUSED
from model.errors import BessemerError, GuardError, Infra, InputError, RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import ProgressListener
from tasks.artifacts.results import TrainResult
from tasks.artifacts.tables.rows import HELDOUT

MAX_INITIAL_FAILURES = 3
"""The search stops where its first trials, this many or more, all failed."""


@flow(name="search", persist_result=False, validate_parameters=True)
def search(
    recipe: str,
    root: Path = Path("bessemer-data"),
    search_file: Path | None = None,
    trials: Annotated[int, Field(ge=1)] | None = None,
    parallel: Annotated[int, Field(ge=1)] | None = None,
    limit: Annotated[float, Field(gt=0, le=1)] = 1.0,
    settings: tuple[str, ...] = (),
) -> SearchFound:
    """Find better settings of a recipe by training it with many. An interrupted search continues.

    Returns the best trial's number, settings and value, and the paths of page and recipe.

    Args:
        recipe: A recipe file with a table [search], or the name of a recipe that ships.
        root: Folder of all artifacts, runs and searches.
        search_file: File that holds the table [search] instead.
        trials: Trials in all; the table's number by default.
        parallel: Trials that train at once; the table's number by default.
        limit: Share of every source to keep (0 to 1).
        settings: KEY=VALUE that override the recipe's for all trials.
    """

    def work() -> FlowEnd[SearchFound]:
        study = read_study(recipe, root, search_file, trials, parallel, limit, settings)
        # Results are written after an error or interrupt too; the log holds all of them at any time.
        with study.held(get_run_logger().info), tags(f"search:{study.name}"):
            try:
                TrialScheduler(study).run()
            finally:
                found = write_results(study)
        return FlowEnd(found, found["outcome"])

    return end_of_flow(work)


class TrialScheduler:
    """Submits segments of trials to threads, and records their results."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._log = get_run_logger()
        self._listener = CURRENT_LISTENER.get()
        self._stop = threading.Event()
        self._done: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._busy: dict[int, PrefectConcurrentFuture[State]] = {}

    def run(self) -> None:
        with ThreadPoolTaskRunner(max_workers=self._study.config.parallel) as runner:
            try:
                while self._start(runner) or self._busy:
                    if self._busy:
                        self._take(self._done.get())
            except BaseException:
                self._stop.set()
                concurrent.futures.wait([future.wrapped_future for future in self._busy.values()])
                raise

    def _start(self, runner: ThreadPoolTaskRunner[State]) -> bool:
        """Submit segments while threads are free; return whether there was one."""
        started = False
        while len(self._busy) < self._study.config.parallel:
            segment = self._study.next_segment(self._busy)
            if segment is None:
                break
            self._submit(runner, *segment)
            started = True
        return started

    def _submit(self, runner: ThreadPoolTaskRunner[State], trial: Trial, rung: int) -> None:
        study = self._study
        name = f"trial {trial.number}"
        self._log_trial(trial, f"to {study.shares[rung]:.0%} of its training: {format_settings(trial.settings)}")
        try:
            recipe = study.recipe_with(trial.settings, study.shares[rung], f"{study.base.name}, {name}"[:80])
        except RecipeError as error:
            # Each value is valid by itself, or the search would not have started; these do not fit together.
            self._record(trial, failed_result(trial.number, rung, error))
            return
        segment = TrialSegment(trial.number, rung, recipe, trial.run_id, study.config.objective)
        watcher = TrialWatcher(name, self._listener, self._stop)
        future = runner.submit(train_trial, {"segment": segment, "root": study.root, "watcher": watcher})
        self._busy[trial.number] = future
        future.add_done_callback(lambda done: self._done.put(trial.number))

    def _take(self, number: int) -> None:
        future = self._busy.pop(number)
        result = future.result(raise_on_failure=False)
        if isinstance(result, BaseException):
            raise result
        assert isinstance(result, TrialResult)
        self._record(self._study.trials[number], result)

    def _record(self, trial: Trial, result: TrialResult) -> None:
        self._study.log.record(result)
        self._log_trial(trial, f"{result.state}, {result.summary}")
        ended = [trial for trial in self._study.trials if trial.state not in ("waiting", "running")]
        if len(ended) >= MAX_INITIAL_FAILURES and all(trial.state == "failed" for trial in ended):
            raise GuardError(
                f"search {self._study.name}: all of its first {len(ended)} trials failed, and it was stopped. The last:"
                f" {ended[-1].cause}"
            )

    def _log_trial(self, trial: Trial, sentence: str) -> None:
        self._listener.note(f"trial {trial.number}", sentence)
        self._log.info("trial %d %s", trial.number, sentence)


@dataclass(frozen=True)
class TrialSegment:
    """One segment of a trial: the recipe to train, and the rung to train to."""

    number: int
    rung: int
    recipe: Recipe
    run_id: str
    objective: ObjectiveConfig


@task(name="trial", task_run_name="trial {segment.number}, rung {segment.rung}", persist_result=False)
def train_trial(segment: TrialSegment, root: Path, watcher: ProgressListener) -> State:
    """Train a trial to a rung or to its end."""
    result = run_segment(segment, root, watcher)
    get_run_logger().info("trial %d: %s, %s", result.number, result.state, result.summary)
    kind = "COMPLETED" if result.state in ("paused", "complete") else "FAILED"
    return State(type=kind, name=result.state.capitalize(), message=result.summary, data=result)  # pyright: ignore[reportArgumentType]


def run_segment(segment: TrialSegment, root: Path, watcher: ProgressListener) -> TrialResult:
    """Run one segment of a trial and return its result.

    Raises Infra where the machine failed, which does not count against the trial: it continues with the search.
    """
    began = time.monotonic()
    try:
        record = run_pipeline(segment.recipe, root, segment.run_id, watcher)
    except Infra:
        raise
    except BessemerError as error:
        return failed_result(segment.number, segment.rung, error, time.monotonic() - began)
    seconds, built = time.monotonic() - began, built_stages(record)
    if record["state"] == PAUSED:
        step, steps, loss = next(
            (entry["step"], entry["steps"], entry["loss"])
            for entry in record["stages"]
            if "step" in entry and "steps" in entry and "loss" in entry
        )
        stop = Stop(segment.rung, step, steps, loss, seconds, built)
        return TrialResult(segment.number, "paused", stop)
    artifacts = run_artifacts(record)
    steps = TrainResult.of(artifacts["train"].report).training["steps"]
    value, stderr = objective_value(artifacts["evaluate"], segment.objective)
    stop = Stop(segment.rung, steps, steps, None, seconds, built)
    return TrialResult(segment.number, "complete", stop, value, stderr)


def objective_value(scores: Artifact, objective: ObjectiveConfig) -> tuple[float, float | None]:
    """Return the objective's value and standard error; InputError where the evaluation has no such figure."""
    rows, asked = score_rows(scores), (objective.shots, objective.subset)
    for row in rows:
        of_item = row["task"].startswith(HELDOUT) or (row["shots"], row["subset"]) == asked
        if (row["task"], row["metric"]) == (objective.task, objective.metric) and of_item and row["value"] is not None:
            return row["value"], row["stderr"]
    known = sorted({f"{row['metric']} of {row['task']}" for row in rows if row["value"] is not None})
    raise InputError(
        f"search.objective asks for {objective.label} ({objective.shots} shots, {objective.subset} items), and the"
        f" evaluation gives {', '.join(known) or 'nothing'}. Choose one of these in [search.objective]"
    )
