"""`bessemer study`: many runs of one recipe, to search settings, ablate, mix sources and predict scale."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.common import (
    DEFAULT_ROOT,
    CommandGroup,
    Json,
    Limit,
    Root,
    Settings,
    Untrusted,
    Verbose,
    console,
    handle_errors,
    print_json,
    share,
    shown_progress,
)
from flows.commands.run import quieten_prefect

study = typer.Typer(
    name="study",
    cls=CommandGroup,
    help="Many runs of one recipe: search settings, ablate, mix sources, predict the loss of larger models.",
    no_args_is_help=True,
)


StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="Name of the study: its folder under ROOT/searches.")]


class RunByDefault(CommandGroup):
    """Make `search RECIPE` the same as `search run RECIPE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


search = typer.Typer(
    name="search",
    cls=RunByDefault,
    help="Search better settings of a recipe by training it under many; resumes if it was stopped.",
    no_args_is_help=True,
)
study.add_typer(search)


@search.command()
def run(
    recipe: Annotated[str, typer.Argument(help="A recipe file with a table [search], or the name of a shipped one.")],
    root: Root = DEFAULT_ROOT,
    search_file: Annotated[
        Path | None, typer.Option("--search", help="File that holds the table [search] instead.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials in total; more than before extends a study.")
    ] = None,
    parallel: Annotated[int | None, typer.Option(min=1, help="Trials that train at the same time.")] = None,
    limit: Limit = "100%",
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Start or resume a search: `bessemer study search RECIPE`.

    Each trial is a run of the recipe with other settings; artifacts in common are built once. The better third of
    trials continues at each level, from a checkpoint (successive halving). Stop it at any time and call it again.
    """
    with handle_errors():
        from flows.runs.record import check_writable

        root = root.resolve()
        check_writable(root)
        quieten_prefect(verbose)
        from flows.runs.guards import remember_interrupts
        from flows.service.local_server import prefect_server

        words = {"search_file": search_file, "trials": trials, "parallel": parallel, "limit": share(limit)}
        with prefect_server(root), remember_interrupts():
            found = _searched(recipe, root, words, tuple(settings or ()), as_json)
        _report(root, found["study"], as_json)


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
    """Add a trial of yours to a study; a running search takes it next, otherwise the next call does.

    Keys that are not named keep the recipe's values.
    """
    with handle_errors():
        from flows.experiments.study import add_manual_trial, parse_setting, reopen

        found = reopen(root.resolve(), study)
        add_manual_trial(found, dict(map(parse_setting, settings)))
        command = f"bessemer study search {found.request.recipe} --root {root}"
        console().print(f"added; a running search takes it next, otherwise start one: {command}", markup=False)


@search.command()
def show(study: StudyName, root: Root = DEFAULT_ROOT, as_json: Json = False) -> None:
    """Show the trials of a study, the best settings, and how to run them."""
    with handle_errors():
        _report(root.resolve(), study, as_json)


def _report(root: Path, name: str, as_json: bool) -> None:
    from flows.experiments.search_report import lines, write_results
    from flows.experiments.study import reopen

    study = reopen(root, name)
    found = write_results(study)
    if as_json:
        print_json({**found, "lines": lines(study.trials)})
        return
    from flows.experiments.search_report import print_study

    print_study(study, found, console())


@study.command()
def ablate(
    recipe: Annotated[
        str, typer.Argument(help="A recipe file, or the name of a shipped one; with --components a run.")
    ],
    changes: Annotated[
        str | None,
        typer.Argument(help="A file of changes, or the name of a shipped one: data, experts, network, t5, vocabulary."),
    ] = None,
    root: Root = DEFAULT_ROOT,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each change; the file's number by default.")] = None,
    components: Annotated[
        bool, typer.Option("--components", help="Remove heads and layers from the trained network of a run instead.")
    ] = False,
    limit: Limit = "100%",
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Measure what each change of a list does: every one alone, over several seeds, against the recipe unchanged.

    \b
    bessemer study ablate recipe.toml network --seeds 3
    bessemer study ablate RUN --components

    Artifacts that a change does not affect are reused. The table has loss, bits per byte, benchmarks and speed, and
    differences with intervals over seeds and items. A list that ends in [then] measures a second run that continues
    from each model: `t5` so compares objectives whose own losses cannot be compared (docs/studies.md). If it stops,
    call it again and it resumes.
    """
    with handle_errors():
        from model.errors import RecipeError

        root = root.resolve()
        if components:
            _components(recipe, root, as_json)
            return
        if changes is None:
            raise RecipeError("name the changes: a file, or a shipped one: data, experts, network, t5, vocabulary")
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

    with console(stderr=True).status("removing heads and layers") as status:
        found = measure_components(root, run_id, lambda done, total: status.update(f"{done} of {total} parts"))
    found |= write_report(found, root)
    if as_json:
        print_json(found)
        return
    from rich.markdown import Markdown

    console().print(Markdown(as_markdown(found)))
    console().print(f"table: {found['markdown']}\npage: {found['page']}", markup=False)


@study.command()
def mix(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of a shipped one.")],
    root: Root = DEFAULT_ROOT,
    proxies: Annotated[int | None, typer.Option(min=4, help="Small trainings; [mix] sets the default.")] = None,
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Find weights for the sources: train many small models on random mixtures and fit their losses.

    The recipe's table [mix] sets how many and how small; all stages up to the vocabulary are built once. Writes the
    weights, which `weights_from` of a recipe reads, and a recipe with them. If it is stopped, call it again and it
    resumes.
    """
    with handle_errors():
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


@study.command()
def scale(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of a shipped one.")],
    ladder: Annotated[str, typer.Argument(help="A file of sizes, or the name of a shipped one: small.")],
    root: Root = DEFAULT_ROOT,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each size; the file's number by default.")] = None,
    limit: Limit = "100%",
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Train models of growing size, fit a scaling law, and predict the largest before it is trained.

    \b
    bessemer study scale multilingual small

    All models read the same number of tokens, or a number per weight, as the ladder says. The law is
    L(N) = E + A / N^alpha; the largest size is held out of the fit, predicted with a 95% interval, then measured.
    If it is stopped, call it again and it resumes.
    """
    with handle_errors():
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
