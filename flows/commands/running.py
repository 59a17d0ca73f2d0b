"""Running a recipe, or a stretch of its road."""

import os
from pathlib import Path
from typing import Annotated, Any, TypedDict

import typer

from flows.commands.options import (
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
    share,
)
from flows.commands.output import console, ended, print_json, shown_progress, told_errors


class Asked(TypedDict, total=False):
    """What a command asks of the flow besides a recipe and a root."""

    from_stage: str | None
    until: str | None
    only: str | None
    force: bool


def run(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe file, or the name of one that ships: quickstart, multilingual, gpt3, opt_175b, yalm_100b."
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

    What is already built under the same identity is reused. The last screen shows the funnel, the mixture, the scores
    and the path of the run page. Exit codes: 2 wrong recipe, 3 bad input, 4 a guard stopped it, 5 damaged data,
    75 the machine failed (run again), 76 training diverged, 77 a store or server refuses this machine's credentials,
    70 a fault of the program.
    """
    with told_errors():
        from flows.road import stretch
        from flows.shipped import open_recipe

        root = root.resolve()
        stretch(from_stage, until, only)
        chosen = open_recipe(recipe, root, settings or (), share(limit))
        asked: Asked = {"from_stage": from_stage, "until": until, "only": only, "force": force}
        _run(chosen, root, asked, as_json, verbose)


def quickstart(
    root: Root = DEFAULT_ROOT,
    settings: Settings = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Train a small model on the text that comes with Python itself: documentation, READMEs, licences, code.

    Writes a cloze benchmark from passages of that text first; its documents stay in the sources, so that the run has
    true leaks to find and cut.
    """
    with told_errors():
        from flows.shipped import open_recipe

        root = root.resolve()
        chosen = open_recipe("quickstart", root, settings or ())
        _run(chosen, root, {}, as_json, verbose)


def go_on(recipe: Any, root: Path, as_json: bool, verbose: bool) -> None:
    """Run a recipe that was run before, as `run` does."""
    _run(recipe, root, {}, as_json, verbose)


def _run(chosen: Any, root: Path, asked: Asked, as_json: bool, verbose: bool) -> None:
    from flows.prerequisites import CHECKED, check_prerequisites
    from flows.record import check_writable
    from flows.road import stretch
    from model.errors import InputError

    # Before the run has a name: one that is refused leaves nothing that could be looked up by it.
    stages = stretch(asked.get("from_stage"), asked.get("until"), asked.get("only"))
    check_prerequisites(chosen, stages, root, force=asked.get("force", False))
    quieten_prefect(verbose)
    try:
        check_writable(root)
    except InputError as unwritable:
        from flows.run import standing_run

        record = standing_run(chosen, root, **asked) if root.is_dir() else None
        if record is None:
            raise
        finish(record, root, as_json)
        why = str(unwritable.__cause__ or unwritable)
        unkept = f"the record of this run could not be written under {root / 'runs'} ({why})"
        console(stderr=True).print(f"nothing needed building; {unkept}", markup=False, soft_wrap=True)
        return
    from flows.interrupts import heard_interrupts
    from flows.private_server import prefect_server

    checked = CHECKED.set(chosen)
    try:
        with prefect_server(root), heard_interrupts():
            record = _run_flow(chosen, root, asked, as_json)
    finally:
        CHECKED.reset(checked)
    finish(record, root, as_json)


def _run_flow(chosen: Any, root: Path, asked: Asked, as_json: bool) -> dict[str, Any]:
    from rich.markup import escape

    from flows.record import new_run_id
    from tasks.store.attached import shown

    run_id = new_run_id()
    with shown_progress(as_json) as bars:
        bars.console.print(f"run {run_id}: recipe {chosen.name}, artifacts under {shown(root)}", markup=False)
        for remark in chosen.remarks:
            bars.console.print(f"[yellow]![/] {escape(remark)}")
        from flows.pretrain import pretrain

        return ended(lambda: pretrain(chosen, root=root, run_id=run_id, **asked))


def finish(record: dict[str, Any], root: Path, as_json: bool) -> None:
    """The last screen of a run, or its record and findings as JSON."""
    if as_json:
        from flows.findings import gather, known_findings

        print_json({**record, "findings": gather(record, known_findings(record))})
        return
    from flows.summary import print_summary

    print_summary(record, root, console())


def quieten_prefect(verbose: bool) -> None:
    """Defaults for Prefect that a user's own settings overrule; must run before Prefect is imported."""
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    if os.path.expanduser("~") == "~":
        # A container's user without a name or home; Prefect does not even load without one.
        os.environ["HOME"] = "/nonexistent"
    os.environ["PREFECT_LOGGING_COLORS"] = "false"  # Its colours are sequences, which `flows.escaping` shows as text.
    if not verbose:
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
