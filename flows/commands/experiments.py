"""What changes to a recipe do, and what the parts of a trained network do.

Finding the shares of a recipe's sources.

From small to large: a ladder of models, and what it says of a larger one.

Finding better settings: a search, its trials, and those that people add.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flows.commands.common import (
    DEFAULT_ROOT,
    Json,
    Limit,
    Root,
    Settings,
    Untrusted,
    Verbose,
    console,
    print_json,
    share,
    shown_progress,
    told_errors,
)
from flows.commands.run import quieten_prefect


def ablate(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or one that ships; with --components a run.")],
    changes: Annotated[
        str | None, typer.Argument(help="A file of changes, or one that ships: data, network, t5, vocabulary.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each change; the file's number by default.")] = None,
    components: Annotated[
        bool, typer.Option("--components", help="Take heads and layers from the trained network of a run instead.")
    ] = False,
    limit: Limit = "100%",
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """What each of a list of changes does: every one by itself, over several seeds, beside the recipe as it is.

    \b
    bessemer ablate recipe.toml network --seeds 3
    bessemer ablate RUN --components

    What a change leaves untouched is reused. The table has loss, bits per byte, benchmarks and speed, differences with
    intervals over seeds and items. A list that ends in [then] measures a second run, which goes on from each model
    alike: so `t5` compares objectives whose own figures cannot be compared (docs/search.md). Stopped, it goes on when
    it is called again.
    """
    with told_errors():
        from model.errors import RecipeError

        root = root.resolve()
        if components:
            _components(recipe, root, as_json)
            return
        if changes is None:
            raise RecipeError("name the changes: a file, or one that ships: data, network, t5, vocabulary")
        quieten_prefect(verbose)
        from flows.runs.guards import remember_interrupts
        from flows.runs.record import check_writable
        from flows.service.local_server import prefect_server

        check_writable(root)
        words = {"root": root, "seeds": seeds, "limit": share(limit), "settings": tuple(settings or ())}
        with prefect_server(root), remember_interrupts():
            found = _ablated(recipe, changes, words, as_json)
        if as_json:
            print_json(found)
            return
        from rich.markdown import Markdown

        from flows.experiments.ablation_report import as_markdown

        console().print(Markdown(as_markdown(found["name"], found)))
        console().print(f"table: {found['markdown']}\npage: {found['page']}", markup=False)


def _ablated(recipe: str, changes: str, words: dict[str, Any], as_json: bool) -> Any:
    with shown_progress(as_json):
        from flows.experiments.ablation import ablate as ablate_flow

        return ablate_flow(recipe, changes, **words)


def _components(run_id: str, root: Path, as_json: bool) -> None:
    from flows.experiments.component_ablation import as_markdown, measure_components, write_report

    with console(stderr=True).status("taking the network apart") as status:
        found = measure_components(root, run_id, lambda done, total: status.update(f"{done} of {total} parts"))
    found |= write_report(found, root)
    if as_json:
        print_json(found)
        return
    from rich.markdown import Markdown

    console().print(Markdown(as_markdown(found)))
    console().print(f"table: {found['markdown']}\npage: {found['page']}", markup=False)


def mix(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of one that ships.")],
    root: Root = DEFAULT_ROOT,
    proxies: Annotated[int | None, typer.Option(min=4, help="Small trainings; [mix] says how many else.")] = None,
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Find the shares of the sources: many small models on random mixtures say which are best.

    The recipe's table [mix] says how many and how small; all stages up to the vocabulary are built once. Writes the
    weights, which `weights_from` of a recipe takes, and the recipe with them. Stopped, it goes on when called again.
    """
    with told_errors():
        from flows.runs.record import check_writable

        root = root.resolve()
        check_writable(root)
        quieten_prefect(verbose)
        from flows.runs.guards import remember_interrupts
        from flows.service.local_server import prefect_server

        with prefect_server(root), remember_interrupts():
            found = _mixed(recipe, root, proxies, tuple(settings or ()), as_json)
        if as_json:
            print_json(found)
            return
        from rich.markdown import Markdown

        from flows.experiments.mixture import as_markdown

        console().print(Markdown(as_markdown(found)))
        console().print(f"weights: {found['file']}\nrecipe: {found['recipe']}", markup=False)


def _mixed(recipe: str, root: Path, proxies: int | None, settings: tuple[str, ...], as_json: bool) -> Any:
    with shown_progress(as_json):
        from flows.experiments.mixture import mix as mix_flow

        return mix_flow(recipe, root, proxies=proxies, settings=settings)


def scale(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or one that ships.")],
    ladder: Annotated[str, typer.Argument(help="A file of sizes, or one that ships: small.")],
    root: Root = DEFAULT_ROOT,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each size; the file's number by default.")] = None,
    limit: Limit = "100%",
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Train a ladder of small models, fit the law of their losses, and predict the largest before it is trained.

    \b
    bessemer scale multilingual small

    Each model reads so many tokens for each weight, and shares all data that it can with the others. The law is
    L(N) = E + A / N^alpha; the largest size is held back from it, predicted with a 95% interval, then measured.
    Stopped, it goes on when it is called again.
    """
    with told_errors():
        root = root.resolve()
        quieten_prefect(verbose)
        from flows.runs.guards import remember_interrupts
        from flows.runs.record import check_writable
        from flows.service.local_server import prefect_server

        check_writable(root)
        words = {"root": root, "seeds": seeds, "limit": share(limit), "settings": tuple(settings or ())}
        with prefect_server(root), remember_interrupts():
            found = _scaled(recipe, ladder, words, as_json)
        if as_json:
            print_json(found)
            return
        from rich.markdown import Markdown

        from flows.experiments.scaling_law import as_markdown

        console().print(Markdown(as_markdown(found)))
        console().print(f"table: {found['markdown']}\npage: {found['page']}", markup=False)


def _scaled(recipe: str, ladder: str, words: dict[str, Any], as_json: bool) -> Any:
    with shown_progress(as_json):
        from flows.experiments.scaling import scale as scale_flow

        return scale_flow(recipe, ladder, **words)


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
        from flows.runs.record import check_writable

        root = root.resolve()
        check_writable(root)
        quieten_prefect(verbose)
        from flows.runs.guards import remember_interrupts
        from flows.service.local_server import prefect_server

        words = {"search_file": search_file, "trials": trials, "parallel": parallel, "limit": share(limit)}
        with prefect_server(root), remember_interrupts():
            found = _searched(recipe, root, words, tuple(settings or ()), as_json)
        _tell(root, found["study"], as_json)


def _searched(recipe: str, root: Path, words: dict[str, Any], settings: tuple[str, ...], as_json: bool) -> Any:
    with shown_progress(as_json):
        from flows.experiments.search import search as search_flow

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
        from flows.experiments.study import add_manual_trial, parse_setting, reopen

        found = reopen(root.resolve(), study)
        add_manual_trial(found, dict(map(parse_setting, settings)))
        command = f"bessemer search {found.request.recipe} --root {root}"
        console().print(f"added; a search that runs takes it next, else start one: {command}", markup=False)


@search.command()
def show(study: StudyName, root: Root = DEFAULT_ROOT, as_json: Json = False) -> None:
    """The trials of a study, the best settings, and how to run them."""
    with told_errors():
        _tell(root.resolve(), study, as_json)


def _tell(root: Path, name: str, as_json: bool) -> None:
    from flows.experiments.search_report import lines, write_results
    from flows.experiments.study import reopen

    study = reopen(root, name)
    found = write_results(study)
    if as_json:
        print_json({**found, "lines": lines(study.trials)})
        return
    from flows.experiments.search_report import print_study

    print_study(study, found, console())
