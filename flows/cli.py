"""The command `bessemer`: its name, its help, and the list of its commands."""

from typing import Annotated

import typer

from flows.commands import artifacts as collecting
from flows.commands import artifacts as identity
from flows.commands import artifacts as upgrading
from flows.commands import experiments as ablating
from flows.commands import experiments as mixing
from flows.commands import experiments as scaling
from flows.commands import experiments as searching
from flows.commands import inspect as comparing
from flows.commands import inspect as leaking
from flows.commands import inspect as peeking
from flows.commands import inspect as records
from flows.commands import models, nightly, service
from flows.commands import models as networks
from flows.commands import models as teaching
from flows.commands import nightly as promoting
from flows.commands import plan as planning
from flows.commands import reports as cards
from flows.commands import reports as tracking
from flows.commands import run as running
from flows.commands import run as training
from flows.commands import tokenizers as vocabularies
from flows.metrics.escaping import escape_output
from flows.service.api import reach_this_machine_directly
from model.config.environment import filter_environment

app = typer.Typer(
    name="bessemer",
    help="From raw text to a trained, evaluated language model, with the record of every document.",
    epilog="First time? `bessemer quickstart` trains a small model on the text that comes with Python, in minutes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS = (
    running.quickstart,
    running.run,
    planning.init,
    planning.plan,
    ablating.ablate,
    nightly.nightly,
    promoting.current,
    promoting.promote,
    scaling.scale,
    mixing.mix,
    records.ls,
    peeking.peek,
    records.why,
    leaking.leaks,
    vocabularies.tokens,
    vocabularies.bases,
    records.step,
    records.report,
    comparing.compare,
    cards.card,
    models.generate,
    models.harness,
    teaching.finetune,
    teaching.predict,
    networks.presets,
    networks.export,
    tracking.export_metrics,
    identity.explain,
    identity.accept,
    identity.verify,
    collecting.gc,
    upgrading.upgrade,
    service.up,
    service.down,
    service.status,
)

for command in COMMANDS:
    app.command()(command)
app.add_typer(training.train)
app.add_typer(searching.search)


def _tell_version(asked: bool) -> None:
    if asked:
        import importlib.metadata

        typer.echo(f"bessemer {importlib.metadata.version('bessemer')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself; its help is that of the app."""


def main() -> None:
    """Entry point of the command."""
    filter_environment()
    escape_output()
    reach_this_machine_directly()
    app()


if __name__ == "__main__":
    main()
