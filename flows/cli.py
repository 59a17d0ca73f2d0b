"""The command `bessemer`. Everything heavy is imported inside the commands, so that `--help` answers at once."""

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="bessemer",
    help="From raw text to a trained, evaluated language model, with the record of every document.",
    epilog="First time? `bessemer quickstart` trains a small model on the text that comes with Python, in minutes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Root = Annotated[
    Path, typer.Option("--root", envvar="BESSEMER_ROOT", help="Folder of all artifacts and runs.", show_default=True)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
RunId = Annotated[str | None, typer.Option("--run", help="Run id or its beginning; the latest run by default.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Overrule a recipe value, e.g. --set dedup.threshold=0.9"),
]
Limit = Annotated[str, typer.Option(help="Share of every source to keep, e.g. 1% for a quick pass over everything.")]
FromStage = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="STAGE",
        help="Go from this stage on; earlier ones must exist. Add --force to rebuild what stands.",
    ),
]
OnlyStage = Annotated[
    str | None,
    typer.Option("--only", metavar="STAGE", help="Build this stage alone, unless it stands; earlier ones must exist."),
]
Force = Annotated[bool, typer.Option("--force", help="Rebuild the selected stages and compare with what stands.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show Prefect's log too.")]
DEFAULT_ROOT = Path("bessemer-data")
PIPE_WIDTH = 140
"""Columns of tables that go to a file or pipe, where nobody can make the window wider."""


@app.command()
def run(
    recipe: Annotated[
        str, typer.Argument(help="A recipe file, or the name of one that ships: quickstart, multilingual.")
    ],
    root: Root = DEFAULT_ROOT,
    limit: Limit = "100%",
    from_stage: FromStage = None,
    only: OnlyStage = None,
    force: Force = False,
    settings: Settings = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a recipe: sample, clean, dedup, decontaminate, vocab, chunk, train, evaluate.

    What is already built under the same identity is reused. The last screen shows the funnel, the mixture, the scores
    and the path of the run page. Exit codes: 2 wrong recipe, 3 bad input, 4 a guard stopped it, 5 damaged data,
    75 the machine failed (run again), 76 training diverged, 70 a fault of the program.
    """
    with told_errors():
        from flows.recipe import find_recipe, load_recipe
        from flows.road import stretch

        root = root.resolve()
        stretch(from_stage, only)
        chosen = load_recipe(find_recipe(recipe), root, settings or (), _share(limit))
        _run(chosen, root, from_stage, only, force, as_json, verbose)


@app.command()
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
        from flows.quickstart import prepare
        from flows.recipe import find_recipe, load_recipe

        root = root.resolve()
        prepare(root)
        chosen = load_recipe(find_recipe("quickstart"), root, settings or ())
        _run(chosen, root, None, None, False, as_json, verbose)


@app.command()
def ls(root: Root = DEFAULT_ROOT, as_json: Json = False) -> None:
    """List runs, newest last, with what each stage did."""
    with told_errors():
        from flows.record import list_runs

        runs = list_runs(root)
        if as_json:
            _print_json(runs)
            return
        from rich.table import Table

        from flows.telling import stages_told

        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in ("run", "recipe", "state", "stages"):
            table.add_column(column)
        for record in runs:
            table.add_row(record["run_id"], record["recipe_name"], record["state"], stages_told(record))
        _console().print(table if runs else f"no runs under {root} yet; start one with `bessemer run RECIPE`")


@app.command()
def why(
    document: Annotated[str, typer.Argument(help="Document id (or its beginning), or a part of its path.")],
    root: Root = DEFAULT_ROOT,
    run_id: RunId = None,
    as_json: Json = False,
) -> None:
    """Tell a document's life: from file and record to the steps that trained on it, or to the rule that removed it."""
    with told_errors():
        from flows.lineage import find_documents, life_of, open_run, rejects_of, run_artifacts
        from model.errors import InputError

        artifacts = run_artifacts(open_run(root, run_id))
        found = find_documents(artifacts, document)
        rejects = rejects_of(artifacts, document)
        if not found and not rejects:
            raise InputError(
                f"why {document}: no sampled document has this id or path, and no record of such a path was rejected."
                f" Either no source lists it, or sampling did not select it (such documents take no row)."
            )
        lives = [life_of(artifacts, doc_id) for doc_id in found[:MOST_LIVES]]
        if as_json:
            _print_json({"documents": [life.to_json() for life in lives], "rejects": rejects})
            return
        from flows.telling import tell_life, tell_reject

        for life in lives:
            tell_life(life, _console())
        for reject in rejects[:MOST_LIVES]:
            tell_reject(reject, _console())
        if len(found) > MOST_LIVES:
            _console().print(f"... and {len(found) - MOST_LIVES} more documents match; give a longer id or path")


MOST_LIVES = 5


@app.command()
def step(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Run id or its beginning, or `latest`.")],
    number: Annotated[int, typer.Argument(metavar="N", help="Step number.")],
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Name the documents that one training step read, and show some of their text."""
    with told_errors():
        from flows.lineage import open_run, run_artifacts, step_of

        told = step_of(run_artifacts(open_run(root, _run_word(run_id), needs="train")), number)
        if as_json:
            _print_json(told)
            return
        from flows.telling import tell_step

        tell_step(told, _console())


@app.command()
def generate(
    model: Annotated[str, typer.Argument(help="Run id or its beginning, `latest`, or the folder of a MODEL artifact.")],
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens to write.")] = 100,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token.")] = 0.8,
    top_p: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Keep the likeliest tokens of this total probability.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(help="Same seed, same text.")] = 1,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Let a trained model continue a text."""
    with told_errors():
        from flows.generation import continue_text

        text = continue_text(root, model, prompt, tokens=tokens, temperature=temperature, top_p=top_p, seed=seed)
        if as_json:
            _print_json({"prompt": prompt, "text": text})
        else:
            print(prompt + text)


@app.command()
def report(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Run id or its beginning, or `latest`.")] = "latest",
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Write a run's page again from its artifacts, and print the summary and the page's path."""
    with told_errors():
        from flows.lineage import open_run
        from flows.page import write_page

        record = open_run(root, _run_word(run_id))
        page = write_page(root / "runs" / record["run_id"], root)
        _finish({**record, "page": str(page)}, root, as_json)


def main() -> None:
    """Entry point of the command."""
    app()


@contextmanager
def told_errors() -> Iterator[None]:
    """Errors of the tree become one message and their exit code; a traceback is for faults of the program."""
    from model.errors import BessemerError, Bug

    try:
        yield
    except BessemerError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        typer.echo("interrupted; finished parts and checkpoints are kept, run again to go on", err=True)
        raise typer.Exit(130) from error
    except Exception as error:
        traceback.print_exc()
        raise typer.Exit(Bug.exit_code) from error


def _run(
    chosen: Any, root: Path, from_stage: str | None, only: str | None, force: bool, as_json: bool, verbose: bool
) -> None:
    from flows.record import check_writable

    check_writable(root)
    _quieten_prefect(verbose)
    from flows.private_server import prefect_server

    with prefect_server():
        record = _run_flow(chosen, root, from_stage, only, force, as_json)
    _finish(record, root, as_json)


def _run_flow(
    chosen: Any, root: Path, from_stage: str | None, only: str | None, force: bool, as_json: bool
) -> dict[str, Any]:
    from flows.record import ONLOOKER, new_run_id
    from flows.terminal import ProgressBars

    run_id = new_run_id()
    with ProgressBars(_console(stderr=as_json)) as bars:
        bars.console.print(f"run {run_id}: recipe {chosen.name}, artifacts under {root}")
        token = ONLOOKER.set(bars)
        try:
            from flows.pretrain import pretrain

            return pretrain(chosen, root, from_stage=from_stage, only=only, force=force, run_id=run_id)
        finally:
            ONLOOKER.reset(token)


def _finish(record: dict[str, Any], root: Path, as_json: bool) -> None:
    if as_json:
        from flows.findings import gather, known_findings

        _print_json({**record, "findings": gather(record, known_findings(record))})
        return
    from flows.summary import print_summary

    print_summary(record, root, _console())


def _quieten_prefect(verbose: bool) -> None:
    """Defaults for Prefect that a user's own settings overrule; must run before Prefect is imported."""
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    if not verbose:
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")


def _share(text: str) -> float:
    from model.errors import RecipeError

    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise RecipeError(f"--limit {text}: give a share above 0, up to 100%, such as 1% or 0.01")
    return share


def _run_word(word: str) -> str | None:
    return None if word == "latest" else word


def _console(stderr: bool = False) -> Any:
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, highlight=False, width=None if terminal else PIPE_WIDTH)


def _print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=1, default=str)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
