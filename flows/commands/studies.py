"""`bessemer study`: many runs of one recipe, to search settings, ablate, mix sources and predict scale."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.common import (
    DEFAULT_ROOT,
    CommandGroup,
    Json,
    Limit,
    RecipeName,
    Root,
    Settings,
    Untrusted,
    Verbose,
    console,
    of_home,
    print_found,
    share,
    shown_progress,
)
from flows.commands.run import prefect_ready

if TYPE_CHECKING:
    from rich.console import Console

    from flows.reports.document import Document

study = typer.Typer(
    name="study",
    cls=CommandGroup,
    help="Many runs of one recipe: search settings, ablate, mix sources, predict the loss of larger models.",
    no_args_is_help=True,
)


StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="Name of the study: its folder under ROOT/searches.")]


class RunByDefault(CommandGroup):
    """Make `search RECIPE` the same as `search run RECIPE`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
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
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe file with a table [search], or the name of a shipped one.")
    ],
    root: Root = DEFAULT_ROOT,
    search_file: Annotated[
        Path | None, typer.Option("--search", callback=of_home, help="File that holds the table [search] instead.")
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
    from flows.experiments.study import read_study
    from flows.runs.record import check_writable

    check_writable(root)
    read_study(recipe, root, search_file, trials, parallel, share(limit), tuple(settings or ()))
    with _study(root, as_json, verbose):
        from flows.experiments.search import search as search_flow

        found = search_flow(
            recipe,
            root,
            search_file=search_file,
            trials=trials,
            parallel=parallel,
            limit=share(limit),
            settings=tuple(settings or ()),
        )
    _report(root, found["study"], as_json)


@contextmanager
def _study(root: Path, as_json: bool, verbose: bool) -> Iterator[None]:
    """Prepare Prefect for the flow of a study, and show its progress.

    Commands read and check the study before this, since a server takes long to start.
    """
    with prefect_ready(root, verbose), shown_progress(as_json):
        yield


@search.command()
def add(
    study: StudyName,
    settings: Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="A setting to try.")],
    root: Root = DEFAULT_ROOT,
) -> None:
    """Add a trial of yours to a study; a running search takes it next, otherwise the next call does.

    Keys that are not named keep the recipe's values.
    """
    from flows.experiments.study import add_manual_trial, reopen
    from flows.recipe.load import parse_setting
    from flows.runs.record import root_option

    found = reopen(root, study)
    add_manual_trial(found, dict(map(parse_setting, settings)))
    command = f"bessemer study search {(found.base.command or '').removeprefix('run ')}{root_option(root)}"
    said = f"added; a running search takes it next, otherwise start one: {command}"
    console().print(said, markup=False, soft_wrap=True)


@search.command()
def show(study: StudyName, root: Root = DEFAULT_ROOT, as_json: Json = False) -> None:
    """Show the trials of a study, the best settings, and how to run them."""
    _report(root, study, as_json)


def _report(root: Path, name: str, as_json: bool) -> None:
    from flows.experiments.search_report import search_document, write_results
    from flows.experiments.study import reopen
    from flows.runs.record import root_option

    study = reopen(root, name)
    found = write_results(study)
    _show({**found, "lines": study.trials}, search_document(study), as_json)
    if found["recipe"] and not as_json:
        limit = study.request.limit
        options = f"{f' --limit {limit!r}' if limit < 1 else ''}{root_option(root)}"
        console().print(f"run it: bessemer run {shlex.quote(found['recipe'])}{options}", markup=False, soft_wrap=True)


@study.command()
def ablate(
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped one; with --components a run."),
    ],
    changes: Annotated[
        str | None,
        typer.Argument(
            metavar="CHANGES",
            help="A file of changes, or the name of a shipped one: data, experts, network, t5, vocabulary.",
        ),
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
    from model.errors import RecipeError

    if components:
        _components(recipe, root, as_json)
        return
    if changes is None:
        raise RecipeError("name the changes: a file, or a shipped one: data, experts, network, t5, vocabulary")
    from flows.experiments.changes import read_ablation

    read_ablation(recipe, changes, root, seeds, share(limit), tuple(settings or ()))
    with _study(root, as_json, verbose):
        from flows.experiments.ablation import ablate as ablate_flow
        from flows.experiments.ablation_report import ablation_document

        found = ablate_flow(recipe, changes, root=root, seeds=seeds, limit=share(limit), settings=tuple(settings or ()))
    _show(found, ablation_document(found["name"], found), as_json)


def _show(found: Mapping[str, object], document: "Document", as_json: bool) -> None:
    """Print what a study found, as JSON or as its report with the paths."""

    def show(shown: "Console") -> None:
        document.print(shown)
        for name in ("markdown", "page", "file", "recipe"):
            if found.get(name):
                shown.print(f"{name}: {found[name]}", markup=False, soft_wrap=True)

    print_found(found, as_json, show)


def _components(run_id: str, root: Path, as_json: bool) -> None:
    from flows.experiments.component_ablation import components_document, measure_components, write_components

    with console(stderr=True).status("removing heads and layers") as status:
        found = measure_components(root, run_id, lambda done, total: status.update(f"{done} of {total} parts"))
    _show({**found, **write_components(found, root)}, components_document(found), as_json)


@study.command()
def mix(
    recipe: RecipeName,
    root: Root = DEFAULT_ROOT,
    proxies: Annotated[int | None, typer.Option(min=7, help="Small trainings; [mix] sets the default.")] = None,
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
    from flows.experiments.mixture_config import read_mixture

    read_mixture(recipe, root.resolve(), proxies, tuple(settings or ()))
    with _study(root, as_json, verbose):
        from flows.experiments.mixture import mix as mix_flow
        from flows.experiments.mixture import mixture_document

        found = mix_flow(recipe, root, proxies=proxies, settings=tuple(settings or ()))
    _show(found, mixture_document(Path(found["file"]).parent.name, found), as_json)


@study.command()
def scale(
    recipe: RecipeName,
    ladder: Annotated[
        str, typer.Argument(metavar="SIZES", help="A file of sizes, or the name of a shipped one: small.")
    ],
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
    from flows.experiments.ladder import read_ladder

    read_ladder(recipe, ladder, root, seeds, share(limit), tuple(settings or ()))
    with _study(root, as_json, verbose):
        from flows.experiments.scaling import scale as scale_flow
        from flows.experiments.scaling_law import ladder_document

        found = scale_flow(recipe, ladder, root=root, seeds=seeds, limit=share(limit), settings=tuple(settings or ()))
    _show(found, ladder_document(found), as_json)
