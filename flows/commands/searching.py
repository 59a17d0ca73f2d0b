"""Finding better settings: a search, its trials, and those that people add."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flows.commands.options import DEFAULT_ROOT, Json, Limit, Root, Settings, Untrusted, Verbose, share
from flows.commands.output import console, print_json, shown_progress, told_errors
from flows.commands.running import quieten_prefect

StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="Name of the study: its folder under ROOT/searches.")]


class RunByDefault(TyperGroup):
    """`bessemer search RECIPE` is `bessemer search run RECIPE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


search = typer.Typer(
    name="search",
    cls=RunByDefault,
    help="Find better settings of a recipe by training it under many: `bessemer search RECIPE`, which goes on where it"
    " was stopped.",
    no_args_is_help=True,
)


@search.command()
def run(
    recipe: Annotated[str, typer.Argument(help="A recipe file with a table [search], or one that ships.")],
    root: Root = DEFAULT_ROOT,
    search_file: Annotated[
        Path | None, typer.Option("--search", help="File that holds the table [search] instead.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials in all; more than before go on with a study.")
    ] = None,
    parallel: Annotated[int | None, typer.Option(min=1, help="Trials that train at once.")] = None,
    limit: Limit = "100%",
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Search, or go on with a search: `bessemer search RECIPE`.

    Every trial is a run of the recipe with other settings; what they have in common is built once. The better third of
    trials goes on at each rung, from a checkpoint. Stop it whenever you like, and call it again.
    """
    with told_errors():
        from flows.record import check_writable

        root = root.resolve()
        check_writable(root)
        quieten_prefect(verbose)
        from flows.interrupts import heard_interrupts
        from flows.private_server import prefect_server

        words = {"search_file": search_file, "trials": trials, "parallel": parallel, "limit": share(limit)}
        with prefect_server(root), heard_interrupts():
            found = _searched(recipe, root, words, tuple(settings or ()), as_json)
        _tell(root, found["study"], as_json)


def _searched(recipe: str, root: Path, words: dict[str, Any], settings: tuple[str, ...], as_json: bool) -> Any:
    with shown_progress(as_json):
        from flows.search.searching import search as search_flow

        return search_flow(recipe, root, settings=settings, **words)


@search.command()
def add(
    study: StudyName,
    settings: Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="A setting to try.")],
    root: Root = DEFAULT_ROOT,
) -> None:
    """Add a trial of yours to a study; a search that runs takes it next, else the next call does.

    Keys that are not named are as the recipe has them.
    """
    with told_errors():
        from flows.search.study import add_by_hand, parsed, reopen

        found = reopen(root.resolve(), study)
        add_by_hand(found, dict(map(parsed, settings)))
        command = f"bessemer search {found.asked.recipe} --root {root}"
        console().print(f"added; a search that runs takes it next, else start one: {command}", markup=False)


@search.command()
def show(study: StudyName, root: Root = DEFAULT_ROOT, as_json: Json = False) -> None:
    """The trials of a study, the best settings, and how to run them."""
    with told_errors():
        _tell(root.resolve(), study, as_json)


def _tell(root: Path, name: str, as_json: bool) -> None:
    from flows.search.study import reopen
    from flows.search.verdict import lines, write_results

    study = reopen(root, name)
    found = write_results(study)
    if as_json:
        print_json({**found, "lines": lines(study.trials)})
        return
    from flows.search.telling import tell_study

    tell_study(study, found, console())
