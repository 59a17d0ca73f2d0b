"""Many runs of one recipe with other settings: run them, one task run each, and read the metrics of each run.

Every run is an ordinary run of the pipeline, so that stages which a change does not affect are reused. Searches,
mixtures, ablations and scaling studies are built on this module. Ablations compare a change with the base seed by seed,
which removes what a seed alone changes from the difference, and over the items of a benchmark one by one.
"""

import re
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import tomlkit
from prefect import task
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from tomlkit.container import OutOfOrderTableProxy

from flows.experiments.studies import LOSS, SPEED, RunResult, Variant
from flows.metrics.formatting import format_shots
from flows.metrics.heldout import held_out
from flows.metrics.run_metrics import score_rows
from flows.metrics.stage_lines import open_artifacts
from flows.models.load import find_model
from flows.planning.preconditions import start_run
from flows.recipe.load import apply_setting, fit_micro_batch
from flows.recipe.schema import Recipe
from flows.runs.context import CURRENT_LISTENER, heard_by
from flows.runs.guards import raise_if_interrupted
from flows.runs.pipeline import run_stages
from flows.runs.record import RunData, new_run_id
from model.checkpoint.metrics import RECENT_SHARE, final_rows
from model.checksummed_json import read_sealed, write_sealed
from model.errors import BessemerError, Infra
from tasks.artifacts.artifact import BUILT, Artifact
from tasks.artifacts.build import ProgressListener
from tasks.artifacts.results import TrainResult
from tasks.artifacts.tables.rows import HELDOUT_ALL, ItemScoreRow, rows_of
from tasks.execution.outcome import one_line
from tasks.prefect_tasks import TASKS

_DATA_STAGES = threading.Lock()


class Stopped(KeyboardInterrupt):
    """Raised in a run that another thread asked to stop; it leaves a checkpoint."""


class TrialWatcher(ProgressListener):
    """Listener to one run of many: reports progress and builds under the run's name, and can stop the run."""

    def __init__(self, name: str, listener: ProgressListener, stop: threading.Event) -> None:
        self._name = name
        self._listener = listener
        self._stop = stop

    def progress(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Report progress, or raise Stopped in the thread of the run once `stop` is set."""
        if self._stop.is_set():
            raise Stopped
        self._listener.progress(f"{self._name} {stage}", done, total, unit)

    def finished(self, stage: str, artifact: Artifact, seconds: float) -> None:
        if artifact.outcome == BUILT:
            self._listener.finished(f"{self._name} {stage}", artifact, seconds)


def run_pipeline(
    recipe: Recipe, root: Path, run_id: str, watcher: ProgressListener, *, until: str | None = None
) -> RunData:
    """Run the pipeline, or its stages up to `until`, within the current Prefect run, and return the run's record.

    Its `state` says whether the run completed or paused. Raises what its stages raise. In one process only trainings
    run in parallel: every other stage uses all cores, and PyTorch's number of threads, which decides bits, is a setting
    of the whole process.
    """
    with heard_by(watcher):
        run = start_run(recipe, root, run_id=run_id, until=until)

    def run_stage(stage: str, *inputs: Any) -> Artifact:
        with nullcontext() if stage == "train" else _DATA_STAGES:
            return run.step(TASKS[stage], *inputs)

    with run:
        run_stages(recipe, run_stage)
    return run.record.data


def built_stages(record: RunData) -> tuple[str, ...]:
    """Return the stages that a run built, a paused training included."""
    return tuple(entry["stage"] for entry in record["stages"] if entry["outcome"] in (BUILT, "paused"))


def parse_editable(text: str) -> tomlkit.TOMLDocument:
    """Return a recipe's text as a document that keeps its comments and to which settings can be added."""
    document = tomlkit.parse(text)
    for name, table in list(document.items()):
        if isinstance(table, OutOfOrderTableProxy):
            # `[train.model]` before `[train]`: the library loses what is added to such a table, so it is written anew.
            values = table.unwrap()
            document.remove(name)
            document.add(name, tomlkit.item(values))
    return document


def edited_recipe(path: Path, settings: Sequence[str], *without: str) -> tomlkit.TOMLDocument:
    """Return the text of a recipe with settings and without some of its keys, to be written into another folder:
    `{recipe}` in paths is replaced by its own."""
    document = parse_editable(path.read_text(encoding="utf-8"))
    for setting in settings:
        apply_setting(document, setting)
    fit_micro_batch(document, settings)
    for key in without:  # Settings may have written them too.
        document.pop(key, None)
    _fill_folder(document, str(path.resolve().parent))
    return document


def _fill_folder(values: Any, folder: str) -> None:
    for key, value in list(values.items() if isinstance(values, dict) else enumerate(values)):
        if isinstance(value, dict | list):
            _fill_folder(value, folder)
        elif isinstance(value, str) and "{recipe}" in value:
            values[key] = value.replace("{recipe}", folder)


RUNS = "runs.json"

RUNS_LOST = "Remove it: runs start with new ids, and existing artifacts are reused."


def run_variants(
    variants: Mapping[tuple[str, int], Variant],
    root: Path,
    folder: Path,
    on_result: Callable[[str, int, RunResult], None],
) -> None:
    """Run each variant in turn, and call `on_result` with its metrics.

    `folder` keeps the ids of runs, so that a later call continues them. Raises what ends all: Infra, interrupts.
    """
    known = folder / RUNS
    run_ids: dict[str, str] = read_sealed(known, RUNS_LOST) if known.is_file() else {}
    listener, stop = CURRENT_LISTENER.get(), threading.Event()
    for (change, seed), variant in variants.items():
        raise_if_interrupted()
        name = f"{change} {seed}"
        names = (name, f"{name}, then") if variant.second_recipe else (name,)
        ids = [run_ids.setdefault(one, new_run_id()) for one in names]
        write_sealed(known, run_ids)
        state = run_variant(change, seed, variant, root, ids, TrialWatcher(name, listener, stop))
        result = state.result(raise_on_failure=False) if isinstance(state, State) else state
        if not isinstance(result, RunResult):
            raise result
        listener.note(name, result.cause or ", ".join(result.built) or "all reused")
        on_result(change, seed, result)


@task(name="change", task_run_name="{change}, seed {seed}", persist_result=False)
def run_variant(
    change: str, seed: int, variant: Variant, root: Path, run_ids: list[str], watcher: ProgressListener
) -> State:
    """Run one change with one seed. Raises Infra; the cause of other errors goes into the table."""
    run_id = run_ids[0]
    try:
        last = None if variant.second_recipe is None else "train"
        result = read_result(run_pipeline(variant.recipe, root, run_id, watcher, until=last))
        if variant.second_recipe is not None:
            run_id = run_ids[1]
            second = variant.second_recipe(find_model(root, result.run_id)[0].path)
            result = result.followed_by(read_result(run_pipeline(second, root, run_id, watcher)))
    except Infra:
        raise
    except BessemerError as error:
        cause = f"{type(error).__name__}: {one_line(error)}"
        result = RunResult(run_id=run_id, cause=cause)
        get_run_logger().warning("%s, seed %d: %s", change, seed, cause)
        return State(type="FAILED", name=type(error).__name__, message=one_line(error), data=result)  # pyright: ignore[reportArgumentType]
    built = ", ".join(result.built) or "nothing"
    return State(type="COMPLETED", name="RunResult", message=f"{built} built", data=result)  # pyright: ignore[reportArgumentType]


BASELINES = ("5gram_", "unigram_", "xz_", "frequent_", "majority_")
"""Prefixes of held-out metrics that are a baseline's."""

PER_TOKEN = re.compile("perplexity|accuracy|per_token")
"""Held-out metrics that are per token of a vocabulary, and not per byte."""


def read_result(record: RunData) -> RunResult:
    """Return the metrics of a completed run."""
    artifacts = open_artifacts(record)
    found = RunResult(run_id=record["run_id"], built=built_stages(record))
    if "train" in artifacts:
        _add_training(artifacts["train"], found)
    if "chunk" in artifacts and LOSS in found.values:
        found.of_tokens[LOSS] = artifacts["chunk"].identity
    if "evaluate" in artifacts:
        _add_scores(artifacts["evaluate"], found)
        found.heldout = held_out(artifacts)
        for name, metric in found.of_heldout.items():
            if PER_TOKEN.search(metric) and "vocab" in artifacts:
                found.of_tokens[name] = artifacts["vocab"].content
    return found


def _add_training(model: Artifact, found: RunResult) -> None:
    losses = final_rows(model.table("metrics"), model.table("steps")).column("loss").to_pylist()
    if losses:
        found.values[LOSS] = statistics.fmean(losses[-max(1, round(RECENT_SHARE * len(losses))) :])
    speed = TrainResult.of(model.report).training["tokens_s"]
    if speed is not None:
        found.values[SPEED] = speed
        found.higher.add(SPEED)


def _add_scores(scores: Artifact, found: RunResult) -> None:
    for row in score_rows(scores):
        if row["value"] is None:
            continue
        if row["task"] == HELDOUT_ALL and not row["metric"].startswith(BASELINES):
            name = row["metric"].replace("_", " ")
            found.values[name] = row["value"]
            found.of_heldout[name] = row["metric"]
            if row["metric"].endswith("accuracy"):
                found.higher.add(name)
    for row in rows_of(scores.table("item_scores"), ItemScoreRow):
        name = f"{row['task']} {row['metric']}, {format_shots(row['shots'])}"
        found.items.setdefault(name, {})[row["item_id"]] = row["value"]
    for name, items in found.items.items():
        found.values[name] = sum(items.values()) / len(items)
        found.higher.add(name)
