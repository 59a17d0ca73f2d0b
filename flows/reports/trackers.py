"""Export a run's training metrics to TensorBoard, and to Weights & Biases without its network.

Metrics and events are read from the run's artifacts after training, so any old run can be exported, any number of
times. Weights & Biases runs are written to a folder in offline mode; `wandb sync` uploads them.
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from flows.metrics.run_metrics import score_rows
from model.checkpoint.metrics import final_rows, final_steps
from model.errors import InputError, RecipeError
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.tables.rows import EventRow, rows_of

METRICS_NAMES = {
    "loss": "train/loss",
    "lr": "train/learning_rate",
    "grad_norm": "train/gradient_norm",
    "max_norm": "train/gradient_norm_limit",
    "tokens": "train/tokens",
    "masked_loss": "train/masked_loss",
    "masked_accuracy": "train/masked_accuracy",
    "next_loss": "train/sentence_pair_loss",
    "next_accuracy": "train/sentence_pair_accuracy",
}

PERF_NAMES = {
    "tokens_s": "speed/tokens_per_second",
    "mfu": "speed/model_flops_utilisation",
    "rss": "speed/resident_bytes",
}

VALIDATION_NAMES = ("bits_per_byte", "nats_per_token")

PROJECT = "bessemer"


@dataclass
class Training:
    """The metrics and events of a training."""

    values: dict[int, dict[str, float]]
    """Step -> metric -> value."""
    times: dict[int, float]
    """Step -> when it ended, in seconds since 1970."""
    events: list[EventRow]
    """In their order; `time` is in seconds since 1970."""

    def rows(self) -> Iterator[tuple[int, float, dict[str, float]]]:
        """Yield (step, time, values by metric) in order; a step without a time takes that of the step before."""
        time = min(self.times.values(), default=0.0)
        for step in sorted(self.values):
            time = self.times.get(step, time)
            yield step, time, self.values[step]


def read_training(artifacts: Mapping[str, Artifact]) -> Training:
    """Return the metrics and events of a run's training; scores of its evaluation are put at the last step.

    Steps that the guard rolled back are left out, because they are not in the weights. Raises InputError for a run
    without a trained model.
    """
    if "train" not in artifacts:
        raise InputError("this run has no trained model, or its model was deleted: there are no metrics to export")
    train = artifacts["train"]
    steps = train.table("steps")
    values: dict[int, dict[str, float]] = defaultdict(dict)
    metrics = final_rows(train.table("metrics"), steps)
    _add(values, metrics, METRICS_NAMES)
    _add_activation_maxima(values, metrics, train)
    times: dict[int, float] = {}
    if train.rows("perf"):
        perf = final_rows(train.table("perf"), steps)
        _add(values, perf, PERF_NAMES)
        started = manifest_of(train)["timings"]["started"]
        ends = itertools.accumulate(perf.column("wall_s").to_pylist(), initial=started)
        times = dict(zip(perf.column("step").to_pylist(), itertools.islice(ends, 1, None), strict=True))
    if train.rows("validation"):
        _add_validation(values, train.table("validation"), steps)
    if "evaluate" in artifacts and values:
        values[max(values)] |= _scores(artifacts["evaluate"])
    events = rows_of(train.table("events").sort_by("seq"), EventRow) if train.rows("events") else []
    return Training(dict(values), times, events)


def _add(values: dict[int, dict[str, float]], table: pa.Table, names: Mapping[str, str]) -> None:
    for row in table.select(["step", *names]).to_pylist():
        values[row["step"]] |= {name: row[column] for column, name in names.items() if row[column] is not None}


def _add_activation_maxima(values: dict[int, dict[str, float]], metrics: pa.Table, train: Artifact) -> None:
    """Add the largest absolute value of each segment of the network that model.json names."""
    names = json.loads(train.file("model.json").read_text()).get("activation_ranges") or []
    for row in metrics.select(["step", "largest_activations"]).to_pylist():
        read = zip(names, row["largest_activations"], strict=False)  # The column is empty where they were not recorded.
        values[row["step"]] |= {f"activations/{name.replace(' ', '_')}": value for name, value in read}


def _add_validation(values: dict[int, dict[str, float]], table: pa.Table, steps: pa.Table) -> None:
    """Add validation metrics by source; for a step computed more than once, those of the attempt in the weights."""
    kept = set(zip(*(final_steps(steps).column(name).to_pylist() for name in ("step", "attempt")), strict=True))
    for row in table.to_pylist():
        if (row["step"], row["attempt"]) in kept:
            named = {f"heldout/{row['source']}/{name}": row[name] for name in VALIDATION_NAMES}
            values[row["step"]] |= {name: value for name, value in named.items() if value is not None}


def _scores(evaluate: Artifact) -> dict[str, float]:
    return {
        f"scores/{row['task']}/{row['metric']}/{row['shots']}_shots/{row['subset']}": row["value"]
        for row in score_rows(evaluate)
        if row["value"] is not None
    }


def write_tensorboard(training: Training, folder: Path) -> Path:
    """Write an event file into `folder`, which must be new or empty, and return the folder.

    Raises InputError where the folder is not empty, because TensorBoard would merge both runs.
    """
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise RecipeError(
            "--tensorboard needs the package `tensorboard`: pip install 'bessemer[tensorboard]'"
        ) from error
    check_empty(folder)
    with SummaryWriter(str(folder)) as writer:
        for step, time, numbers in training.rows():
            for name, value in numbers.items():
                writer.add_scalar(name, value, step, walltime=time)
        for event in training.events:
            kind = event["kind"]
            writer.add_text(f"events/{kind}", f"{kind} {event['detail']}", event["step"], walltime=event["time"])
    return folder


def check_empty(folder: Path) -> None:
    """Raise InputError where the folder exists and is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty; remove it to export again, or name another folder")


def write_wandb(training: Training, folder: Path, *, run_id: str, name: str, config: dict[str, Any]) -> Path:
    """Write an offline run into `folder`, which must be new or empty, and return the path that `wandb sync` takes.

    `config` is the recipe of the run. Nothing about this machine is recorded: no environment, no repository address,
    no code, no console output.
    """
    try:
        import wandb
    except ImportError as error:
        raise RecipeError("--wandb needs the package `wandb`: pip install 'bessemer[wandb]'") from error
    check_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(
        mode="offline",
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )
    run = wandb.init(project=PROJECT, id=run_id, name=name, dir=str(folder), config=config, settings=settings)
    with run:
        for step, time, numbers in training.rows():
            run.log({**numbers, "time": time}, step=step)
        if training.events:
            columns: list[Any] = ["step", "time", "kind", "detail"]
            rows: list[Any] = [[event[column] for column in columns] for event in training.events]
            run.log({"events": wandb.Table(columns=columns, data=rows)})
    wandb.teardown()  # The library writes from another process; the run is complete on disk once that ended.
    (written,) = (folder / "wandb").glob("offline-run-*")
    return written
