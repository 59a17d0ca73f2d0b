"""The numbers of a training by name and step, and what happened on the way.

A training as TensorBoard reads it: scalars by name, events as texts.

A training as Weights & Biases reads it, written to a folder and never sent: `wandb sync` does that by hand.

A training's numbers for programs that track experiments: TensorBoard, and Weights & Biases without its network.

`series.py` reads them from a run's artifacts, the other files write them. Nothing of this runs while a model trains:
what is exported is what the artifacts hold, so an export can be made again, and of any old run.
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from model.checkpoint.metrics import final_rows, final_steps
from model.errors import InputError, RecipeError
from tasks.artifacts.artifact import Artifact

OF_METRICS = {
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

OF_PERF = {"tokens_s": "speed/tokens_per_second", "mfu": "speed/model_flops_utilisation", "rss": "speed/resident_bytes"}

OF_VALIDATION = {"bits_per_byte": "bits_per_byte", "nats_per_token": "nats_per_token"}


@dataclass(frozen=True)
class Happening:
    """One event: the step that it belongs to, when it was (seconds since 1970), and what it was."""

    step: int
    time: float
    kind: str
    detail: str


@dataclass
class Training:
    """`values` has for each step its numbers by name, `times` when the step ended (seconds since 1970)."""

    values: dict[int, dict[str, float]]
    times: dict[int, float]
    happenings: list[Happening] = field(default_factory=list)

    def rows(self) -> Iterator[tuple[int, float, dict[str, float]]]:
        """(step, time, numbers by name) in order of steps; what has no time of its own has that of the step before."""
        time = min(self.times.values(), default=0.0)
        for step in sorted(self.values):
            time = self.times.get(step, time)
            yield step, time, self.values[step]


def training_of(artifacts: Mapping[str, Artifact]) -> Training:
    """What a run's training left; scores of its evaluation, if it has any, belong to the last step.

    Steps that the guard took back are left out: they led to no weight. Raises InputError for a run without a training.
    """
    if "train" not in artifacts:
        raise InputError("this run trained no model, or its model no longer stands: there are no numbers to export")
    train = artifacts["train"]
    steps = train.table("steps")
    values: dict[int, dict[str, float]] = defaultdict(dict)
    metrics = final_rows(train.table("metrics"), steps)
    _add(values, metrics, OF_METRICS)
    _add_thermometers(values, metrics, train)
    times: dict[int, float] = {}
    if train.rows("perf"):
        perf = final_rows(train.table("perf"), steps)
        _add(values, perf, OF_PERF)
        times = _ends(perf, train.manifest["timings"]["started"])
    if train.rows("validation"):
        _add_validation(values, train.table("validation"), steps)
    if "evaluate" in artifacts and values:
        values[max(values)] |= _scores(artifacts["evaluate"])
    return Training(dict(values), times, _happenings(train))


def _add(values: dict[int, dict[str, float]], table: pa.Table, names: Mapping[str, str]) -> None:
    known = {column: name for column, name in names.items() if column in table.column_names}
    for row in table.select(["step", *known]).to_pylist():
        values[row["step"]] |= {name: row[column] for column, name in known.items() if row[column] is not None}


def _add_thermometers(values: dict[int, dict[str, float]], metrics: pa.Table, train: Artifact) -> None:
    """The largest absolute value of each segment of the network that model.json names."""
    names = json.loads(train.file("model.json").read_text()).get("thermometers") or []
    for row in metrics.select(["step", "thermometers"]).to_pylist():
        read = zip(names, row["thermometers"], strict=False)  # Nothing is read where thermometers are off.
        values[row["step"]] |= {f"thermometers/{name.replace(' ', '_')}": value for name, value in read}


def _ends(perf: pa.Table, started: float) -> dict[int, float]:
    ends = itertools.accumulate(perf.column("wall_s").to_pylist(), initial=started)
    return dict(zip(perf.column("step").to_pylist(), itertools.islice(ends, 1, None), strict=True))


def _add_validation(values: dict[int, dict[str, float]], table: pa.Table, steps: pa.Table) -> None:
    """Held-out rows by source; of a step that was computed more than once, what the attempt in the weights gave."""
    kept = set(zip(*(final_steps(steps).column(name).to_pylist() for name in ("step", "attempt")), strict=True))
    for row in table.to_pylist():
        if (row["step"], row["attempt"]) in kept:
            found = {f"heldout/{row['source']}/{name}": row[column] for column, name in OF_VALIDATION.items()}
            values[row["step"]] |= {name: value for name, value in found.items() if value is not None}


def _scores(evaluate: Artifact) -> dict[str, float]:
    return {
        f"scores/{row['task']}/{row['metric']}/{row['shots']}_shots/{row['subset']}": row["value"]
        for row in evaluate.table("scores").to_pylist()
        if row["value"] is not None
    }


def _happenings(train: Artifact) -> list[Happening]:
    if not train.rows("events"):
        return []
    rows = train.table("events").sort_by("seq").to_pylist()
    return [Happening(row["step"], row["time"], row["kind"], row["detail"]) for row in rows]


def write_tensorboard(training: Training, folder: Path) -> Path:
    """Write an event file into `folder`, which must be new or empty, and return the folder.

    Raises InputError where something stands in the folder: TensorBoard would show both, one over the other.
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
        for happening in training.happenings:
            text = f"{happening.kind} {happening.detail}"
            writer.add_text(f"events/{happening.kind}", text, happening.step, walltime=happening.time)
    return folder


def check_empty(folder: Path) -> None:
    """Raise InputError where something stands in the folder already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} holds something already; remove it to export again, or name another folder")


PROJECT = "bessemer"


def write_wandb(training: Training, folder: Path, *, run_id: str, name: str, config: dict[str, Any]) -> Path:
    """Write an offline run into `folder`, which must be new or empty; returns what `wandb sync` takes.

    `config` is the recipe of the run. Nothing else of this machine goes into it: no environment, no address of a
    repository, no code, no output.
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
        if training.happenings:
            rows: list[Any] = [[one.step, one.time, one.kind, one.detail] for one in training.happenings]
            run.log({"events": wandb.Table(columns=["step", "time", "kind", "detail"], data=rows)})
    wandb.teardown()  # Its process writes behind; only when it has ended is all of the run on disk.
    (written,) = (folder / "wandb").glob("offline-run-*")
    return written
