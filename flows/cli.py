"""The command `bessemer`: its help, and its commands in groups."""

import atexit
import gc
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import data, models, nightly, plan, run, runs, service, store, studies, training
from flows.commands.common import CommandGroup, of_home
from flows.metrics.escaping import escape_output
from model.environment import filter_environment, reach_this_machine_directly
from model.processes import collecting_seldom

app = typer.Typer(
    name="bessemer",
    cls=CommandGroup,
    help="From raw text to a trained, evaluated language model, with a record of every document.",
    epilog="First time? `bessemer demo` trains a small model on two novels and the text of Python, in minutes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (run.demo, plan.init, plan.check, plan.plan, plan.estimate, run.run, nightly.nightly)
GROUPS = (runs.runs, data.data, models.model, studies.study, training.training, service.serve, store.store)


def reference(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", callback=of_home, help="A file to write instead of printing.")
    ] = None,
) -> None:
    """Print every recipe key and every command as one page of Markdown."""
    from flows.reference import reference as reference_page
    from model.files import write_atomically

    page = reference_page(app)
    if output is None:
        typer.echo(page, nl=False)
    else:
        write_atomically(output, page.encode())


for command in (*COMMANDS, reference):
    app.command()(command)
for group in GROUPS:
    app.add_typer(group)


def _print_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        typer.echo(f"bessemer {importlib.metadata.version('bessemer')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    root: Annotated[
        str | None, typer.Option(metavar="PATH", help="Root for the command that follows; also taken behind it.")
    ] = None,
) -> None:
    """Take the options of `bessemer` itself; `CommandGroup` hands `--root` on to the command."""


def main() -> None:
    """Run the command line."""
    filter_environment()
    escape_output()
    reach_this_machine_directly()
    # Registered first, it comes last: otherwise the end takes a second, to go through all that imports made.
    atexit.register(gc.freeze)
    with collecting_seldom():
        app()


if __name__ == "__main__":
    main()
