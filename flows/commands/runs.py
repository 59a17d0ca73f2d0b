"""`bessemer runs`: list runs, compare two, write a report, export metrics."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from flows.commands.common import (
    DEFAULT_ROOT,
    RUN_HELP,
    CommandGroup,
    Json,
    OpenPage,
    Root,
    Run,
    of_home,
    open_in_browser,
    print_found,
    print_run_header,
)
from flows.commands.run import finish

if TYPE_CHECKING:
    from rich.console import Console

    from flows.runs.record import RunData

runs = typer.Typer(
    name="runs",
    cls=CommandGroup,
    help="Runs of a root: list them, compare two, write the page of one, export metrics.",
    no_args_is_help=True,
)


@runs.command("list")
def list_runs(root: Root = DEFAULT_ROOT, open_page: OpenPage = False, as_json: Json = False) -> None:
    """List runs, newest last, with each one's network and the outcome of its stages; as a page with --open.

    A run that built nothing is shown with `as` and the beginning of the run that has the same artifacts.
    """
    if open_page:
        from flows.reports.run_list import write_run_list

        open_in_browser(write_run_list(root))
        if not as_json:
            return
    from flows.runs.lineage import model_of
    from flows.runs.record import list_history, list_runs, settings_of, state_of, time_of

    found = [{**one, "state": state_of(one)} for one in list_runs(root)] + list_history(root)
    runs = sorted(cast("list[RunData]", found), key=time_of)
    models = {run["run_id"]: model_of(run, root) for run in runs}
    models |= {run["run_id"]: models[same] for run in runs if (same := run.get("same_as")) in models}

    def show(shown: "Console") -> None:
        from flows.metrics.formatting import format_model
        from flows.reports.document import Table

        if not runs:
            shown.print(f"no runs under {root} yet; begin one: `bessemer run RECIPE`", markup=False)
            return
        rows = [
            (
                run["run_id"],
                f"{run['recipe_name']} {settings_of(run)}".rstrip(),
                format_model(models[run["run_id"]]),
                run["state"],
                _format_stage_outcomes(run),
            )
            for run in runs
        ]
        columns = ("run", "recipe", "model", "state", "stages")
        shown.print(Table(columns, rows, texts=columns[1:]).rich())

    print_found([{**run, "model": models[run["run_id"]]} for run in runs], as_json, show)


def _format_stage_outcomes(record: "RunData") -> str:
    """Return the outcomes of a run's stages: `6 reused, 2 built`, or `2 built, failed in dedup`."""
    from flows.metrics.formatting import count_outcomes

    unfinished = [entry for entry in record["stages"] if entry["outcome"] in ("failed", "interrupted")]
    parts = [count_outcomes(entry for entry in record["stages"] if entry not in unfinished)]
    parts += [f"{entry['outcome']} in {entry['stage']}" for entry in unfinished]
    earlier = record.get("same_as")
    same = f", as {earlier.partition('-')[0]}" if earlier else ""
    return f"{', '.join(filter(None, parts)) or '-'}{same}"


@runs.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="FIRST", help="Run id or its beginning.")],
    second: Annotated[str, typer.Argument(metavar="SECOND", help=RUN_HELP)] = "latest",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", callback=of_home, help="The page; by default in the second run's folder."),
    ] = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Compare two runs: recipe, code, data, mixture, removals, loss, scores; and write a page.

    Scores are compared item by item if both runs answered the same items.
    """
    from flows.reports.comparison import compare as differences_of
    from flows.reports.comparison_page import comparison_document
    from flows.runs.lineage import open_run
    from model.files import NOT_WRITABLE

    records = [open_run(root, first), open_run(root, second)]
    found = differences_of(records[0], records[1])
    path = output or root / "runs" / records[1]["run_id"] / f"compare-{records[0]['run_id']}.html"
    document = comparison_document(found, records)
    try:
        document.write_page(path)
    except OSError as error:
        if output is not None or error.errno not in NOT_WRITABLE:
            raise
        print(f"no page was written: {path.parent}: {error.strerror}; --output names another file", file=sys.stderr)
        path = None

    def show(shown: "Console") -> None:
        document.print(shown)
        if path is not None:
            shown.print(f"page {path}", markup=False, soft_wrap=True)

    print_found({**found, "page": str(path) if path else None}, as_json, show)


@runs.command()
def report(
    run_id: Run = "latest",
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Write a run's page again from its artifacts, and print its summary and path."""
    from flows.reports.page.page import write_page
    from flows.runs.lineage import open_run

    record = open_run(root, run_id)
    page = write_page(root / "runs" / record["run_id"], root)
    finish({**record, "page": str(page)}, root, as_json, verbose=True)


@runs.command()
def export_metrics(
    run_id: Run = "latest",
    tensorboard: Annotated[
        Path | None,
        typer.Option(callback=of_home, metavar="FOLDER", help="Write FOLDER/RUN for `tensorboard --logdir FOLDER`."),
    ] = None,
    wandb: Annotated[
        Path | None,
        typer.Option(callback=of_home, metavar="FOLDER", help="Write FOLDER/RUN for `wandb sync`; nothing is sent."),
    ] = None,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Write the metrics of a run for TensorBoard or Weights & Biases.

    Loss, learning rate, gradient norms, activation ranges, speed, held-out figures, scores and events. Needs the extra
    `tensorboard` or `wandb`.
    """
    from flows.metrics.stage_lines import open_artifacts
    from flows.reports.trackers import read_training
    from flows.runs.lineage import open_run
    from flows.runs.record import read_recipe
    from model.errors import RecipeError

    if tensorboard is None and wandb is None:
        raise RecipeError("runs export-metrics: name the program: --tensorboard FOLDER, --wandb FOLDER, or both")
    record = open_run(root, run_id, needs="train")
    print_run_header(record)
    training = read_training(open_artifacts(record))
    if tensorboard is not None:
        from flows.reports.trackers import write_tensorboard

        written = write_tensorboard(training, tensorboard / record["run_id"])
        typer.echo(f"{written}: look at it with `tensorboard --logdir {tensorboard}`")
    if wandb is not None:
        from flows.reports.trackers import write_wandb

        config = read_recipe(root / "runs" / record["run_id"])
        name = f"{record['recipe_name']} {record['run_id']}"
        folder = wandb / record["run_id"]
        written = write_wandb(training, folder, run_id=record["run_id"], name=name, config=config)
        typer.echo(f"{written}: nothing was sent; `wandb sync {written}` sends it")
