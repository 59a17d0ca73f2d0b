"""Looking at what runs left: runs, documents, steps, pages."""

from typing import Annotated

import typer

from flows.commands.options import DEFAULT_ROOT, RUN_HELP, Json, Root, RunId
from flows.commands.output import console, print_json, tell_run, told_errors
from flows.commands.running import finish

MOST_LIVES = 5


def ls(root: Root = DEFAULT_ROOT, as_json: Json = False) -> None:
    """List runs, newest last, with the network that each trains and what each stage did."""
    with told_errors():
        from flows.record import list_runs, state_of
        from flows.run_models import model_of

        runs = [{**one, "state": state_of(one), "model": model_of(one, root)} for one in list_runs(root)]
        if as_json:
            print_json(runs)
            return
        from rich.markup import escape
        from rich.table import Table

        from flows.telling import model_told, stages_told

        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in ("run", "recipe", "model", "state", "stages"):
            table.add_column(column)
        for record in runs:
            model, told = model_told(record["model"]), stages_told(record)
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
        from flows.lineage import (
            documents_by_file,
            find_documents,
            open_run,
            rejects_of,
            run_artifacts,
            run_that_trained,
        )
        from flows.lives import life_of
        from flows.record import RUNNING, state_of
        from flows.unsampled import listed_files, why_unsampled
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
        from flows.telling import tell_life, tell_reject

        for life in lives:
            tell_life(life, console())
        for reject in rejects[:MOST_LIVES]:
            tell_reject(reject, console())
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
        from flows.lineage import open_run, run_artifacts, step_of

        record = open_run(root, run_id, needs="train")
        told = step_of(run_artifacts(record), number)
        if as_json:
            print_json(told)
            return
        tell_run(record)
        from flows.telling import tell_step

        tell_step(told, record["run_id"], console())


def report(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)] = "latest",
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Write a run's page again from its artifacts, and print the summary and the page's path."""
    with told_errors():
        from flows.lineage import open_run
        from flows.page import write_page

        record = open_run(root, run_id)
        page = write_page(root / "runs" / record["run_id"], root)
        finish({**record, "page": str(page)}, root, as_json)
