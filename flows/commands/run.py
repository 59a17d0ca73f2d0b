"""`bessemer run` and `bessemer demo`: run a recipe, or a range of its stages."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.common import (
    DEFAULT_ROOT,
    Force,
    FromStage,
    Json,
    Limit,
    OnlyStage,
    OpenPage,
    Root,
    Settings,
    UntilStage,
    Untrusted,
    Verbose,
    console,
    ended,
    open_in_browser,
    print_found,
    share,
    shown_progress,
)

if TYPE_CHECKING:
    from flows.recipe.schema import Recipe
    from flows.runs.record import Asked, RunData

HourPrice = Annotated[
    float | None, typer.Option(min=0.0, help="Price of an hour of this machine; the page then shows what the run cost.")
]


def run(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A recipe file, or the name of a shipped one: quickstart, multilingual, gpt3, opt_175b,"
            " yalm_100b, bert_base, t5_base.",
        ),
    ],
    root: Root = DEFAULT_ROOT,
    limit: Limit = "100%",
    from_stage: FromStage = None,
    until: UntilStage = None,
    only: OnlyStage = None,
    force: Force = False,
    settings: Settings = None,
    untrusted: Untrusted = None,
    open_page: OpenPage = False,
    hour_price: HourPrice = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a recipe: sample, clean, dedup, decontaminate, vocab, chunk, train, evaluate.

    Stages whose artifacts exist are reused. The page of the run shows its progress from the beginning; the last screen
    says what came out and what to try next, and with -v has the tables of documents, mixture and scores. Exit codes: 2
    wrong recipe, 3 bad input, 4 stopped by a guard, 5 damaged data, 75 infrastructure failed (run again), 76 training
    diverged, 77 a store or server refused the credentials, 70 a bug.
    """
    from flows.recipe.load import open_recipe
    from flows.recipe.stages import select_stages

    select_stages(from_stage, until, only)
    chosen = open_recipe(recipe, root, settings or (), share(limit))
    selection: Asked = {"from_stage": from_stage, "until": until, "only": only, "force": force}
    run_recipe(chosen, root, selection, as_json, verbose, open_page, hour_price)


def demo(
    root: Root = DEFAULT_ROOT,
    settings: Settings = None,
    open_page: OpenPage = False,
    hour_price: HourPrice = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Train a small model on two novels and the text that comes with Python: documentation, READMEs, licences, code.

    First writes a cloze benchmark from passages of that text. Its documents stay in the sources, so that there are real
    leaks to find and cut.
    """
    from flows.recipe.load import open_recipe
    from flows.runs.compile_ahead import compiling_ahead

    with compiling_ahead():
        chosen = open_recipe("quickstart", root, settings or ())
        run_recipe(chosen, root, {}, as_json, verbose, open_page, hour_price)


def run_recipe(
    chosen: "Recipe",
    root: Path,
    selection: "Asked",
    as_json: bool,
    verbose: bool,
    open_page: bool = False,
    hour_price: float | None = None,
    shows_end: bool = True,
) -> "RunData":
    """Run a recipe as `run` does, and return its record; print its last screen, or its record as JSON, if it
    `shows_end`."""
    from flows.runs.context import HOUR_PRICE, given
    from flows.runs.existing_artifacts import existing_run

    with given(HOUR_PRICE, hour_price):
        record = existing_run(chosen, root, **selection)
    if record is not None:
        record = _finish_without_building(chosen, record, root, as_json, verbose, shows_end)
        if open_page and (page := record.get("page")):
            open_in_browser(Path(page))
        return record
    from flows.planning.preconditions import CHECKED, check_prerequisites
    from flows.runs.record import stages_of

    # Before the run has an id, so that a refused one leaves no record.
    stages = stages_of(selection)
    check_prerequisites(chosen, stages, root, force=selection.get("force", False))
    with given(CHECKED, chosen), given(HOUR_PRICE, hour_price), prefect_ready(root, verbose):
        record = _run_flow(chosen, root, selection, as_json, open_page)
    if shows_end:
        finish(record, root, as_json, verbose)
    return record


def _finish_without_building(
    recipe: "Recipe", record: "RunData", root: Path, as_json: bool, verbose: bool, shows_end: bool
) -> "RunData":
    """Keep the record of a run whose artifacts all exist, print its last screen and return it; no Prefect server is
    needed."""
    from rich.markup import escape

    from flows.runs.record import add_to_history
    from model.errors import IntegrityError
    from model.files import DISK_FULL, NOT_WRITABLE

    aside, unkept = console(stderr=True), ""
    for remark in recipe.warnings:
        aside.print(f"[yellow]![/] {escape(remark)}")
    try:
        if record.get("same_as") is None:
            record = _with_page(recipe, record, root)
        else:
            add_to_history(root, record)
    except (OSError, IntegrityError) as error:
        if isinstance(error, OSError) and error.errno not in (*NOT_WRITABLE, *DISK_FULL):
            raise
        unkept = f"; the record of this run could not be written under {root / 'runs'} ({error})"
    if shows_end:
        finish(record, root, as_json, verbose)
    earlier = record.get("same_as")
    same = f": every stage is as in run {earlier}" if earlier and not unkept else unkept
    aside.print(f"nothing needed building{same}", markup=False, soft_wrap=True)
    return record


def _with_page(recipe: "Recipe", record: "RunData", root: Path) -> "RunData":
    """Write a folder for a run that built nothing, but has the artifacts of no other run that has a page."""
    from flows.reports.page.page import write_page
    from flows.runs.record import RECORD, write_recipe
    from flows.runs.roots import put_record
    from model.checksummed_json import write_sealed

    folder, kept = root / "runs" / record["run_id"], record.copy()
    kept.pop("same_as", None)
    write_recipe(folder, recipe)
    write_sealed(folder / RECORD, kept)
    kept["page"] = str(write_page(folder, root))
    write_sealed(folder / RECORD, kept)
    put_record(root, record["run_id"], pages=True)
    return kept


def _run_flow(chosen: "Recipe", root: Path, selection: "Asked", as_json: bool, open_page: bool) -> "RunData":
    from rich.markup import escape

    from flows.reports.live import begin_page
    from flows.runs.record import PAGE, new_run_id
    from tasks.artifacts.remote.attach import shown

    run_id = new_run_id()
    page = (root / "runs" / run_id / PAGE).resolve()
    with shown_progress(as_json) as bars:
        head = f"run {run_id}: recipe {chosen.name}, page {page.as_uri()}, artifacts under {shown(root)}"
        bars.console.print(head, markup=False, soft_wrap=True)
        begin_page(page.parent, chosen.name, time.time())
        if open_page:
            open_in_browser(page)
        for remark in chosen.warnings:
            bars.console.print(f"[yellow]![/] {escape(remark)}")
        from flows.pretrain import pretrain

        return ended(lambda: pretrain(chosen, root=root, run_id=run_id, **selection))


def finish(record: "RunData", root: Path, as_json: bool, verbose: bool) -> None:
    """Print the last screen of a run in words, with `verbose` as tables, or its record and metrics as JSON."""
    from flows.metrics.run_metrics import metrics_of
    from flows.reports.summary import print_outcome, print_summary

    values = {**record, "findings": metrics_of(record)} if as_json else None
    show = print_summary if verbose else print_outcome
    print_found(values, as_json, lambda shown: show(record, root, shown))


@contextmanager
def prefect_ready(root: Path, verbose: bool = False) -> Iterator[None]:
    """Prepare what the flow of a command needs: a root that can be written, a server, and Ctrl-C that is not lost."""
    from flows.runs.record import check_writable

    check_writable(root)
    # Parses hundreds of signatures; CPython before 3.11.8 may fail where Prefect's threads parse too (gh-106905).
    import numpy.ma  # noqa: F401

    quieten_prefect(verbose)
    from flows.runs.guards import remember_interrupts
    from flows.service.local_server import prefect_server

    with prefect_server(root), remember_interrupts():
        yield


def quieten_prefect(verbose: bool) -> None:
    """Set defaults for Prefect, which the user's own settings replace. Must run before Prefect is imported."""
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    if os.path.expanduser("~") == "~":
        # A container's user without a name or home; Prefect does not even load without one.
        os.environ["HOME"] = "/nonexistent"
    # Colours are escape sequences, which `flows.metrics.escaping` shows as text.
    os.environ["PREFECT_LOGGING_COLORS"] = "false"
    if not verbose:
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
