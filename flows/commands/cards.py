"""The model card of a run."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import DEFAULT_ROOT, RUN_HELP, Root
from flows.commands.output import tell_run, told_errors

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
        from flows.lineage import need_stage, open_run, run_artifacts
        from flows.model_card.card import model_card
        from model.durable import write_atomically

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
