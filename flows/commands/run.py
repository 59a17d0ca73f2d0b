"""`bessemer run` and `bessemer demo`: run a recipe, or a range of its stages."""

import os
from pathlib import Path
from typing import Annotated, Any, TypedDict

import typer

from flows.commands.common import (
    DEFAULT_ROOT,
    Force,
    FromStage,
    Json,
    Limit,
    OnlyStage,
    Root,
    Settings,
    UntilStage,
    Untrusted,
    Verbose,
    console,
    ended,
    handle_errors,
    print_json,
    share,
    shown_progress,
)


class StageSelection(TypedDict, total=False):
    """The range of stages that a command selects, and whether they are rebuilt."""

    from_stage: str | None
    until: str | None
    only: str | None
    force: bool


def run(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe file, or the name of a shipped one: quickstart, multilingual, gpt3, opt_175b, yalm_100b."
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
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a recipe: sample, clean, dedup, decontaminate, vocab, chunk, train, evaluate.

    Stages whose artifacts exist are reused. The last screen shows how many documents each stage kept, the mixture, the
    scores and the path of the run page. Exit codes: 2 wrong recipe, 3 bad input, 4 stopped by a guard, 5 damaged data,
    75 infrastructure failed (run again), 76 training diverged, 77 a store or server refused the credentials, 70 a bug.
    """
    with handle_errors():
        from flows.recipe.load import open_recipe
        from flows.recipe.stages import select_stages

        root = root.resolve()
        select_stages(from_stage, until, only)
        chosen = open_recipe(recipe, root, settings or (), share(limit))
        selection: StageSelection = {"from_stage": from_stage, "until": until, "only": only, "force": force}
        _run(chosen, root, selection, as_json, verbose)


def demo(
    root: Root = DEFAULT_ROOT,
    settings: Settings = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Train a small model on two novels and the text that comes with Python: documentation, READMEs, licences, code.

    First writes a cloze benchmark from passages of that text. Its documents stay in the sources, so that there are real
    leaks to find and cut.
    """
    with handle_errors():
        from flows.recipe.load import open_recipe

        root = root.resolve()
        chosen = open_recipe("quickstart", root, settings or ())
        _run(chosen, root, {}, as_json, verbose)


def run_recipe(recipe: Any, root: Path, as_json: bool, verbose: bool) -> None:
    """Run a recipe as `run` does."""
    _run(recipe, root, {}, as_json, verbose)


def _run(chosen: Any, root: Path, selection: StageSelection, as_json: bool, verbose: bool) -> None:
    from flows.planning.preconditions import CHECKED, check_prerequisites
    from flows.recipe.stages import select_stages
    from flows.runs.record import check_writable
    from model.errors import InputError

    # Before the run has an id, so that a refused one leaves no record.
    stages = select_stages(selection.get("from_stage"), selection.get("until"), selection.get("only"))
    check_prerequisites(chosen, stages, root, force=selection.get("force", False))
    quieten_prefect(verbose)
    try:
        check_writable(root)
    except InputError as unwritable:
        from flows.runs.run import existing_run

        record = existing_run(chosen, root, **selection) if root.is_dir() else None
        if record is None:
            raise
        finish(record, root, as_json)
        why = str(unwritable.__cause__ or unwritable)
        unkept = f"the record of this run could not be written under {root / 'runs'} ({why})"
        console(stderr=True).print(f"nothing needed building; {unkept}", markup=False, soft_wrap=True)
        return
    from flows.runs.guards import remember_interrupts
    from flows.service.local_server import prefect_server

    checked = CHECKED.set(chosen)
    try:
        with prefect_server(root), remember_interrupts():
            record = _run_flow(chosen, root, selection, as_json)
    finally:
        CHECKED.reset(checked)
    finish(record, root, as_json)


def _run_flow(chosen: Any, root: Path, selection: StageSelection, as_json: bool) -> dict[str, Any]:
    from rich.markup import escape

    from flows.runs.record import new_run_id
    from tasks.artifacts.remote.attach import shown

    run_id = new_run_id()
    with shown_progress(as_json) as bars:
        bars.console.print(f"run {run_id}: recipe {chosen.name}, artifacts under {shown(root)}", markup=False)
        for remark in chosen.warnings:
            bars.console.print(f"[yellow]![/] {escape(remark)}")
        from flows.pretrain import pretrain

        return ended(lambda: pretrain(chosen, root=root, run_id=run_id, **selection))


def finish(record: dict[str, Any], root: Path, as_json: bool) -> None:
    """Print the last screen of a run, or its record and metrics as JSON."""
    if as_json:
        from flows.metrics.run_metrics import collect_metrics, read_saved_metrics

        print_json({**record, "findings": collect_metrics(record, read_saved_metrics(record))})
        return
    from flows.reports.summary import print_summary

    print_summary(record, root, console())


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
