"""A run's numbers for other programs that show them."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import DEFAULT_ROOT, RUN_HELP, Root
from flows.commands.output import tell_run, told_errors


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
        from flows.findings import open_artifacts
        from flows.lineage import open_run
        from flows.record import read_recipe
        from flows.tracking.series import training_of
        from model.errors import RecipeError

        if tensorboard is None and wandb is None:
            raise RecipeError("export-metrics: say for which program: --tensorboard FOLDER, --wandb FOLDER, or both")
        record = open_run(root, run_id, needs="train")
        tell_run(record)
        training = training_of(open_artifacts(record))
        if tensorboard is not None:
            from flows.tracking.tensorboard import write_tensorboard

            written = write_tensorboard(training, tensorboard / record["run_id"])
            typer.echo(f"{written}: look at it with `tensorboard --logdir {tensorboard}`")
        if wandb is not None:
            from flows.tracking.weights_and_biases import write_wandb

            config = read_recipe(root / "runs" / record["run_id"])
            name = f"{record['recipe_name']} {record['run_id']}"
            folder = wandb / record["run_id"]
            written = write_wandb(training, folder, run_id=record["run_id"], name=name, config=config)
            typer.echo(f"{written}: nothing was sent; `wandb sync {written}` does it")
