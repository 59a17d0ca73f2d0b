"""`bessemer nightly`: continue the current model on new text, and promote the result if it is no worse."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.common import (
    DEFAULT_ROOT,
    Json,
    RecipeName,
    Settings,
    UnopenedRoot,
    Untrusted,
    Verbose,
    console,
    ended,
    print_found,
    shown_progress,
)
from flows.commands.run import quieten_prefect

if TYPE_CHECKING:
    from rich.console import Console

    from flows.nightly.history import Night


def nightly(
    recipe: RecipeName = "",
    root: UnopenedRoot = str(DEFAULT_ROOT),
    again: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN", help="Read the files of a blocked or undone nightly run again; repeatable."),
    ] = None,
    list_nights: Annotated[bool, typer.Option("--list", help="List the nightly runs so far; run nothing.")] = False,
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Train the current model on the files added since the last nightly run; promote the result if it is no worse.

    The first one runs the whole recipe. Each later one reads the files that are new, continues from the current model,
    and is compared with it on the text that the first one held out. If there are no new files, nothing is done. Exit
    codes are those of `run`; 4 also if the promotion was blocked.
    """
    if list_nights:
        from flows.runs.roots import open_root

        _list(open_root(root), as_json)
        return
    if not recipe:
        from model.errors import RecipeError

        raise RecipeError("nightly: name a recipe, or give --list to see the nightly runs so far")
    night = _run(recipe, root, again or [], settings or [], as_json, verbose)
    from flows.nightly.terminal import describe_nightly_run

    print_found(night, as_json, lambda shown: shown.print(describe_nightly_run(night), markup=False))


def _list(root: Path, as_json: bool) -> None:
    from flows.nightly.history import chain_epochs, list_nights
    from flows.runs.model_registry import current_promotion

    nights, promotion = list_nights(root), current_promotion(root)
    current = promotion.run_id if promotion else None
    chain = next(([*night.chain, night.run_id] for night in nights if night.run_id == current), [])
    epochs = chain_epochs(nights, chain)

    def show(shown: "Console") -> None:
        from flows.nightly.terminal import table_of_nights

        if not nights:
            shown.print(f"no nightly run under {root} yet; start with `bessemer nightly RECIPE`", markup=False)
            return
        shown.print(table_of_nights(nights, current).rich())
        if epochs:
            reads = ", ".join(f"{source} {times:.2f}" for source, times in sorted(epochs.items()))
            shown.print(
                f"the current model has read the text of its {len(chain)} nightly runs so often: {reads}", markup=False
            )

    print_found({"nights": nights, "current": current, "epochs_of_chain": epochs}, as_json, show)


def _run(recipe: str, root: str, again: list[str], settings: list[str], as_json: bool, verbose: bool) -> "Night":
    from flows.nightly.finish import record_failures
    from flows.nightly.night import skip_nightly
    from flows.nightly.start import start_nightly

    err = console(stderr=True)
    # Without new files no server is started: that takes longer than looking for them.
    with start_nightly(recipe, root, again, settings, lambda sentence: err.print(sentence, markup=False)) as tonight:
        if tonight.nothing_new:
            return skip_nightly(tonight)
    quieten_prefect(verbose)
    from flows.runs.guards import remember_interrupts
    from flows.service.local_server import prefect_server

    with ExitStack() as stack:
        with record_failures(tonight.raw, tonight.night):
            stack.enter_context(prefect_server(tonight.raw.root))
        stack.enter_context(remember_interrupts())
        bars = stack.enter_context(shown_progress(as_json))
        for warning in tonight.warnings():
            bars.console.print(f"! {warning}", markup=False)
        from flows.nightly.flow import nightly as night_flow

        return ended(lambda: night_flow(recipe, tonight.raw.root, " ".join(again), settings))
