"""Nights: training further on what came since, and promoting the result where it is no worse.

The current model: which it is, how it came to be, and making another one current.
"""

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.common import (
    DEFAULT_ROOT,
    RUN_HELP,
    Json,
    Root,
    Settings,
    UnopenedRoot,
    Untrusted,
    Verbose,
    console,
    ended,
    print_json,
    shown_progress,
    told_errors,
)
from flows.commands.run import quieten_prefect


def nightly(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of one that ships.")] = "",
    root: UnopenedRoot = str(DEFAULT_ROOT),
    again: Annotated[
        str | None, typer.Option(metavar="NIGHT", help="Read the files of a blocked or undone night once more.")
    ] = None,
    list_nights: Annotated[bool, typer.Option("--list", help="Show the nights so far; nothing is run.")] = False,
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Train the current model further on what came since the last night; promote the result where it is no worse.

    The first night runs the whole recipe. Each later one reads the files that are new, goes on from the current model,
    and is compared with it on the text that the first night set aside. Where nothing is new, nothing is done. Exit
    codes are those of `run`; 4 also where the promotion was blocked.
    """
    with told_errors():
        if list_nights:
            from flows.runs.roots import open_root

            _list(open_root(root).resolve(), as_json)
            return
        if not recipe:
            from model.errors import RecipeError

            raise RecipeError("nightly: name a recipe, or give --list to see the nights so far")
        night = _spend(recipe, root, again or "", settings or [], as_json, verbose)
        if as_json:
            print_json(night)
            return
        from flows.nightly.history import Night
        from flows.nightly.terminal import describe_nightly_run

        console().print(describe_nightly_run(Night(**night)), markup=False)


def _list(root: Path, as_json: bool) -> None:
    from flows.nightly.history import chain_epochs, list_nights
    from flows.runs.model_registry import current_promotion

    nights, promotion = list_nights(root), current_promotion(root)
    current = promotion.run_id if promotion else None
    chain = next(([*night.chain, night.run_id] for night in nights if night.run_id == current), [])
    epochs = chain_epochs(nights, chain)
    if as_json:
        print_json({"nights": [asdict(night) for night in nights], "current": current, "epochs_of_chain": epochs})
        return
    if not nights:
        console().print(f"no night under {root} yet; start with `bessemer nightly RECIPE`", markup=False)
        return
    from flows.nightly.terminal import table_of_nights

    console().print(table_of_nights(nights, current))
    if epochs:
        told = ", ".join(f"{source} {times:.2f}" for source, times in sorted(epochs.items()))
        console().print(
            f"the current model has read the text of its {len(chain)} nights so often: {told}", markup=False
        )


def _spend(recipe: str, root: str, again: str, settings: list[str], as_json: bool, verbose: bool) -> dict[str, Any]:
    from flows.nightly.finish import record_failures
    from flows.nightly.night import skip_nightly
    from flows.nightly.start import start_nightly

    err = console(stderr=True)
    # Where nothing is new no server is started, which takes longer than the look.
    with start_nightly(
        recipe, root, (again,) if again else (), settings, lambda sentence: err.print(sentence, markup=False)
    ) as tonight:
        if tonight.nothing_new:
            return asdict(skip_nightly(tonight))
    quieten_prefect(verbose)
    from flows.runs.guards import remember_interrupts
    from flows.service.local_server import prefect_server

    with ExitStack() as stack:
        with record_failures(tonight.raw, tonight.night):
            stack.enter_context(prefect_server(tonight.raw.root))
        stack.enter_context(remember_interrupts())
        bars = stack.enter_context(shown_progress(as_json))
        for warning in tonight.raw.warnings():
            bars.console.print(f"! {warning}", markup=False)
        from flows.nightly.flow import nightly as night_flow

        return ended(lambda: night_flow(recipe, tonight.raw.root, again, settings))


def current(
    history: Annotated[bool, typer.Option("--history", help="Every promotion, oldest first.")] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Tell which model is the current one, who promoted it, when and why.

    `current` may stand for it wherever a RUN is asked for, and ROOT/current/model is its folder.
    """
    with told_errors():
        from flows.runs.model_registry import current_promotion, current_run, point_to_latest
        from flows.runs.model_registry import history as promotions

        current_run(root)
        point_to_latest(root)
        found = promotions(root)
        latest = current_promotion(root)
        assert latest is not None, "there is a current run"
        if as_json:
            print_json([asdict(one) for one in found] if history else asdict(latest))
            return
        if history:
            from flows.nightly.terminal import table_of_promotions

            console().print(table_of_promotions(found))
            return
        told = f"{latest.run_id}, promoted by {latest.who} on {latest.when}: {latest.why}"
        console().print(told, markup=False)


def promote(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Take the latest promotion back.")] = False,
    because: Annotated[str, typer.Option("--because", metavar="WHY", help="Kept with the promotion.")] = "",
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Make a run's model the current one, or take the latest promotion back.

    \b
    bessemer promote 20261122T0200 --because "worse on code, which nobody reads"
    bessemer promote --undo --because "it writes nonsense"

    Nothing is copied or removed: the next night, and whoever asks for `current`, go on from it.
    """
    with told_errors():
        from flows.runs.lineage import open_run
        from flows.runs.model_registry import promote as make_current
        from flows.runs.model_registry import undo as take_back
        from model.errors import RecipeError

        if undo == bool(run_id):
            raise RecipeError("promote: name a run, or give --undo; not both")
        if undo:
            made = take_back(root, because)
        else:
            made = make_current(root, open_run(root, run_id, needs="train"), because or "by hand")
        if as_json:
            print_json(asdict(made))
            return
        console().print(f"the current model is that of run {made.run_id} ({made.why})", markup=False)
