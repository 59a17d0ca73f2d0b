"""Looking at what runs left: runs, documents, steps, pages.

Looking at what a stage did to documents.

What of the benchmarks stood in the training text.

Two runs beside each other.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.common import DEFAULT_ROOT, RUN_HELP, Json, Root, RunId, console, print_json, tell_run, told_errors
from flows.commands.run import finish

MOST_LIVES = 5


def ls(root: Root = DEFAULT_ROOT, as_json: Json = False) -> None:
    """List runs, newest last, with the network that each trains and what each stage did."""
    with told_errors():
        from flows.runs.lineage import model_of
        from flows.runs.record import list_runs, state_of

        runs = [{**one, "state": state_of(one), "model": model_of(one, root)} for one in list_runs(root)]
        if as_json:
            print_json(runs)
            return
        from rich.markup import escape
        from rich.table import Table

        from flows.reports.terminal import format_model, format_stage_outcomes

        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in ("run", "recipe", "model", "state", "stages"):
            table.add_column(column)
        for record in runs:
            model, told = format_model(record["model"]), format_stage_outcomes(record)
            table.add_row(record["run_id"], escape(record["recipe_name"]), model, record["state"], told)
        console().print(table if runs else f"no runs under {escape(str(root))} yet; begin one: `bessemer run RECIPE`")


def why(
    document: Annotated[str, typer.Argument(help="Document id (or its beginning), or a part of its path.")],
    root: Root = DEFAULT_ROOT,
    run_id: RunId = None,
    as_json: Json = False,
) -> None:
    """Tell a document's life: from file and record to the steps that trained on it, or to the rule that removed it."""
    with told_errors():
        from flows.runs.document_history import life_of, listed_files, why_unsampled
        from flows.runs.lineage import (
            documents_by_file,
            find_documents,
            open_run,
            rejects_of,
            run_artifacts,
            run_that_trained,
        )
        from flows.runs.record import RUNNING, state_of
        from model.errors import InputError

        record = open_run(root, run_id)
        artifacts = run_artifacts(record)
        found = find_documents(artifacts, document)
        rejects = rejects_of(artifacts, document)
        others: list[str] = []
        if not found and not rejects:
            files = listed_files(root / "runs" / record["run_id"], document)
            by_file = documents_by_file(artifacts, [(file.source, file.relative) for file in files])
            found = [doc_id for of_file in by_file.values() for doc_id in of_file]
            others = [
                why_unsampled(file, artifacts["sample"]) for file in files if not by_file[file.source, file.relative]
            ]
            if not files:
                raise InputError(
                    f"why {document}: run {record['run_id']} sampled no document of this id or path and rejected no"
                    f" record of it, and no source lists such a file as data. Give the beginning of an id, or a part of"
                    f" the file's path; another run with --run."
                )
        ended = state_of(record) != RUNNING
        lives = [life_of(artifacts, doc_id, ended=ended) for doc_id in found[:MOST_LIVES]]
        if as_json:
            print_json({"documents": [life.to_json() for life in lives], "rejects": rejects, "others": others})
            return
        tell_run(record)
        if run_id is None and (trained := run_that_trained(root, record)):
            hint = f"this run did not train; the latest that did: bessemer why {document} --run {trained}"
            console().print(hint, style="dim", markup=False)
        for sentence in others:
            console().print(sentence, markup=False)
        from flows.reports.terminal import print_document_history, print_rejected_record

        for life in lives:
            print_document_history(life, console())
        for reject in rejects[:MOST_LIVES]:
            print_rejected_record(reject, console())
        if len(found) > MOST_LIVES:
            console().print(f"... and {len(found) - MOST_LIVES} more documents match; give a longer id or path")


def step(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)],
    number: Annotated[int, typer.Argument(metavar="N", help="Step number; the first is 0.")],
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Name the documents that one training step read, and show some of their text."""
    with told_errors():
        from flows.runs.lineage import open_run, run_artifacts, step_of

        record = open_run(root, run_id, needs="train")
        told = step_of(run_artifacts(record), number)
        if as_json:
            print_json(told)
            return
        tell_run(record)
        from flows.reports.terminal import print_step

        print_step(told, record["run_id"], console())


def report(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)] = "latest",
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Write a run's page again from its artifacts, and print the summary and the page's path."""
    with told_errors():
        from flows.reports.page.page import write_page
        from flows.runs.lineage import open_run

        record = open_run(root, run_id)
        page = write_page(root / "runs" / record["run_id"], root)
        finish({**record, "page": str(page)}, root, as_json)


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
        from flows.inspection.preview import VIEWS
        from flows.inspection.preview import peek as look
        from flows.inspection.preview_rows import Chooser
        from flows.runs.lineage import artifacts_reaching, open_run
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
        from flows.inspection.terminal import print_views

        print_views(views, console(), full=full)


def leaks(
    benchmarks: Annotated[
        list[str] | None, typer.Argument(metavar="[BENCHMARK]...", help="Benchmarks whose items to name, one by one.")
    ] = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only items that are leaked, clean or unmatchable; repeatable.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    run_id: RunId = None,
    as_json: Json = False,
) -> None:
    """Name every benchmark item as leaked (and where), clean, or unmatchable; without a name, count them."""
    with told_errors():
        from flows.reports.terminal import STATES, count_states, format_item_states, list_items
        from flows.runs.lineage import open_run, run_artifacts
        from model.errors import RecipeError

        unknown = sorted(set(state or ()) - set(STATES))
        if unknown:
            raise RecipeError(f"--state {unknown[0]}: an item is one of {', '.join(STATES)}")
        record = open_run(root, run_id, needs="decontaminate")
        artifacts = run_artifacts(record)
        counts = count_states(artifacts["decontaminate"])
        names = benchmarks or ([line["benchmark"] for line in counts] if state or as_json else [])
        items = list_items(artifacts, names, state or list(STATES))
        if as_json:
            print_json({"benchmarks": counts, "items": items})
            return
        tell_run(record)
        from flows.reports.terminal import leak_counts_table, print_benchmark_item

        if not names:
            console().print(leak_counts_table(counts) if counts else "the run checked no benchmarks")
            return
        for item in items:
            print_benchmark_item(item, console())
        console().print(format_item_states(items))


def compare(
    first: Annotated[str, typer.Argument(metavar="RUN", help="Run id or its beginning.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)] = "latest",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page; by default in the second run's folder.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Tell what differs between two runs: recipe, code, data, mixture, removals, loss, scores; and write a page of it.

    Scores are compared item by item where both runs answered the same items.
    """
    with told_errors():
        from flows.reports.comparison import compare as differences_of
        from flows.reports.comparison_page import write_comparison
        from flows.runs.lineage import open_run
        from model.files import NOT_WRITABLE

        root = root.resolve()
        records = [open_run(root, first), open_run(root, second)]
        found = differences_of(records[0], records[1])
        path = output or root / "runs" / records[1]["run_id"] / f"compare-{records[0]['run_id']}.html"
        try:
            write_comparison(found, records, path)
        except OSError as error:
            if output is not None or error.errno not in NOT_WRITABLE:
                raise
            print(f"no page was written: {path.parent}: {error.strerror}; --output names another file", file=sys.stderr)
            path = None
        if as_json:
            print_json({**found, "page": str(path) if path else None})
            return
        from rich.markup import escape

        from flows.reports.comparison_page import print_comparison

        shown = console()
        print_comparison(found, shown)
        if path is not None:
            shown.print(f"[bold]page[/] {escape(str(path))}", soft_wrap=True)
