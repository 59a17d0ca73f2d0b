"""A training as Weights & Biases reads it, written to a folder and never sent: `wandb sync` does that by hand."""

from pathlib import Path
from typing import Any

from flows.tracking.series import Training
from flows.tracking.tensorboard import check_empty
from model.errors import RecipeError

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
