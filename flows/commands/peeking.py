"""Looking at what a stage did to documents."""

from typing import Annotated

import typer

from flows.commands.options import DEFAULT_ROOT, Json, Root, RunId
from flows.commands.output import console, print_json, tell_run, told_errors

STEP_STAGE, SCORE_STAGE = "train", "evaluate"


def peek(
    stage: Annotated[str, typer.Argument(help="sample, clean, dedup, decontaminate, vocab or chunk.")],
    root: Root = DEFAULT_ROOT,
    run_id: RunId = None,
    count: Annotated[int, typer.Option("-n", min=1, help="How many to show.")] = 5,
    source: Annotated[str | None, typer.Option(help="Only documents of this source.")] = None,
    rule: Annotated[str | None, typer.Option(help="Only what this edit or rule did, e.g. --rule emoji.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other documents; the same seed, the same.")] = 1,
    full: Annotated[bool, typer.Option("--full", help="Whole texts.")] = False,
    as_json: Json = False,
) -> None:
    """Show a few documents before and after a stage, from the artifacts of a run.

    sample: as read; clean: what edits changed, and what rules dropped; dedup: a duplicate beside its survivor;
    decontaminate: the cut in its context, with the item; vocab: text in pieces; chunk: a row, its documents, and what
    the network reads and writes of it, hidden tokens red and what stands in their place green. Red went,
    green came, cyan stands in both; in a pipe [-red-], {+green+} and <cyan>.
    """
    with told_errors():
        from flows.lineage import open_run
        from flows.peek.documents import Chooser
        from flows.peek.stages import VIEWS
        from flows.peek.stages import peek as look
        from flows.reached import artifacts_reaching
        from model.errors import RecipeError

        if stage == STEP_STAGE:
            raise RecipeError("peek train: what a step read is told by `bessemer step RUN N`")
        if stage == SCORE_STAGE:
            raise RecipeError(
                "peek evaluate: its artifact holds scores and samples of text, not the model's pick for each item;"
                " `bessemer report RUN` shows them"
            )
        record = open_run(root, run_id)
        artifacts = artifacts_reaching(stage, record, root) if stage in VIEWS else {}
        views = look(artifacts, stage, Chooser(count, seed, source, rule))
        tell_run(record)
        if as_json:
            print_json(views)
            return
        from flows.peek.telling import tell_views

        tell_views(views, console(), full=full)
