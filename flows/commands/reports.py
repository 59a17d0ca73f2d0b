"""The model card of a run.

A run's numbers for other programs that show them.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.common import DEFAULT_ROOT, RUN_HELP, Root, tell_run, told_errors

Licence = Annotated[
    str | None,
    typer.Option(
        "--licence",
        metavar="SPDX",
        help="What is declared for the model, e.g. CC-BY-SA-4.0; refused where a source's own licence stands against"
        " it. Without it none is granted.",
    ),
]


def card(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)] = "latest",
    licence: Licence = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file to write instead of printing.")] = None,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Print a run's model card in Hugging Face's format: data, mixture, duplicates, leaks, scores, energy, limits."""
    with told_errors():
        from flows.reports.model_card import model_card
        from flows.runs.lineage import need_stage, open_run, run_artifacts
        from model.files import write_atomically

        root = root.resolve()
        record = open_run(root, run_id, needs="train")
        need_stage(run_artifacts(record), "train")
        told = model_card(record, root, licence)
        if output is None:
            tell_run(record)
            sys.stdout.write(told)  # not by `typer.echo`, which drops sequences
        else:
            write_atomically(output, told.encode())
            typer.echo(f"{output}: the card of run {record['run_id']}")


def export_metrics(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)] = "latest",
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write FOLDER/RUN for `tensorboard --logdir FOLDER`.")
    ] = None,
    wandb: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write FOLDER/RUN for `wandb sync`; nothing is sent.")
    ] = None,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Write loss, learning rate, gradient norms, thermometers, speed, held-out figures, scores and events of a run for
    TensorBoard (the extra `tensorboard`) or Weights & Biases (the extra `wandb`).
    """
    with told_errors():
        from flows.metrics.run_metrics import open_artifacts
        from flows.reports.trackers import read_training
        from flows.runs.lineage import open_run
        from flows.runs.record import read_recipe
        from model.errors import RecipeError

        if tensorboard is None and wandb is None:
            raise RecipeError("export-metrics: say for which program: --tensorboard FOLDER, --wandb FOLDER, or both")
        record = open_run(root, run_id, needs="train")
        tell_run(record)
        training = read_training(open_artifacts(record))
        if tensorboard is not None:
            from flows.reports.trackers import write_tensorboard

            written = write_tensorboard(training, tensorboard / record["run_id"])
            typer.echo(f"{written}: look at it with `tensorboard --logdir {tensorboard}`")
        if wandb is not None:
            from flows.reports.trackers import write_wandb

            config = read_recipe(root / "runs" / record["run_id"])
            name = f"{record['recipe_name']} {record['run_id']}"
            folder = wandb / record["run_id"]
            written = write_wandb(training, folder, run_id=record["run_id"], name=name, config=config)
            typer.echo(f"{written}: nothing was sent; `wandb sync {written}` does it")
