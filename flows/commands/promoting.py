"""The current model: which it is, how it came to be, and making another one current."""

from dataclasses import asdict
from typing import Annotated

import typer

from flows.commands.options import DEFAULT_ROOT, RUN_HELP, Json, Root
from flows.commands.output import console, print_json, told_errors


def current(
    history: Annotated[bool, typer.Option("--history", help="Every promotion, oldest first.")] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Tell which model is the current one, who promoted it, when and why.

    `current` may stand for it wherever a RUN is asked for, and ROOT/current/model is its folder.
    """
    with told_errors():
        from flows.promotions import current_promotion, current_run, point_to_latest
        from flows.promotions import history as promotions

        current_run(root)
        point_to_latest(root)
        found = promotions(root)
        latest = current_promotion(root)
        assert latest is not None, "there is a current run"
        if as_json:
            print_json([asdict(one) for one in found] if history else asdict(latest))
            return
        if history:
            from flows.nightly.telling import table_of_promotions

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
        from flows.lineage import open_run
        from flows.promotions import promote as make_current
        from flows.promotions import undo as take_back
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
