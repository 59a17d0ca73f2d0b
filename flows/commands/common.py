"""Options that several commands share.

What commands print: tables or JSON, and errors as one message with its exit code.

The commands of `bessemer`, a file for each kind of work; heavy imports stay inside the functions.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer


def _root(named: str | Path) -> Path:

    with told_errors():
        from flows.runs.roots import open_root

        return open_root(named)


def _root_option(parser: Callable[[str], Path] | None = None) -> Any:
    return typer.Option(
        "--root",
        envvar="BESSEMER_ROOT",
        metavar="PATH",
        help="Folder of all artifacts and runs, or an object store's address such as s3://bucket/prefix.",
        show_default=True,
        parser=parser,
    )


Root = Annotated[Path, _root_option(_root)]

UnopenedRoot = Annotated[str, _root_option()]
"""For commands that have something to say where it cannot be opened."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

RUN_HELP = (
    "Run id or its beginning; `latest` is the latest that got as far as the command needs, `current` the promoted one."
)

RunId = Annotated[str | None, typer.Option("--run", help=f"{RUN_HELP} By default the latest.")]

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

UntilStage = Annotated[
    str | None,
    typer.Option("--until", metavar="STAGE", help="End with this stage, e.g. `--until chunk` for the rows alone."),
]

OnlyStage = Annotated[
    str | None,
    typer.Option("--only", metavar="STAGE", help="Build this stage alone, unless it stands; earlier ones must exist."),
]

Force = Annotated[bool, typer.Option("--force", help="Rebuild the selected stages and compare with what stands.")]


def _confined(folder: Path | None) -> Path | None:
    if folder is not None:
        from tasks.common.confinement import confine

        with told_errors():
            confine(folder)
    return folder


Untrusted = Annotated[
    Path | None,
    typer.Option(
        "--untrusted",
        metavar="DIR",
        callback=_confined,
        is_eager=True,
        help="For a recipe of others: let it read only files in DIR and public web addresses, and run no code.",
    ),
]
"""Holds for the whole process once it is parsed; commands need do nothing with it."""

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show Prefect's log too.")]

DEFAULT_ROOT = Path("bessemer-data")


def share(text: str, option: str = "--limit") -> float:
    """The share that `1%` or `0.01` means; RecipeError, naming the option, outside (0, 1]."""
    from model.errors import RecipeError

    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise RecipeError(f"{option} {text}: give a share above 0, up to 100%, such as 1% or 0.01")
    return value


Value = TypeVar("Value")

CLOSED_PIPE = 141
"""What a shell reports of a program that wrote to a closed pipe: 128 + SIGPIPE."""

PIPE_WIDTH = 140
"""Columns of tables that go to a file or pipe, where nobody can make the window wider."""


@contextmanager
def told_errors() -> Iterator[None]:
    """Errors of the tree become one message and their exit code; a traceback is for faults of the program."""
    from model.errors import BessemerError, Bug, Infra, InputError
    from model.files import DISK_FULL, NOT_WRITABLE

    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except BessemerError as error:
        # Not by `typer.echo`, which drops sequences of documents silently where no terminal is.
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        typer.echo("interrupted; finished parts and checkpoints are kept, run again to go on", err=True)
        raise typer.Exit(130) from error
    except BrokenPipeError as error:
        # The reader of our output (`| head`) has what it wanted; the interpreter must not try to flush to it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(CLOSED_PIPE) from error
    except Exception as error:
        if _lost_the_server(error):
            print(f"Infra: the Prefect server was lost ({error}); what is built is kept, run again", file=sys.stderr)
            raise typer.Exit(Infra.exit_code) from error
        if isinstance(error, OSError) and error.errno in NOT_WRITABLE:
            print(f"InputError: {error.filename}: {error.strerror}; this user may not do it there", file=sys.stderr)
            raise typer.Exit(InputError.exit_code) from error
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            where = error.filename or "a file under the root"
            print(f"Infra: no space left while writing {where}; free some and run again", file=sys.stderr)
            raise typer.Exit(Infra.exit_code) from error
        traceback.print_exc()
        raise typer.Exit(Bug.exit_code) from error


def _lost_the_server(error: Exception) -> bool:
    """Whether Prefect's client gave its server up, or the server itself failed, for want of disk say. Where httpx was
    never loaded there is none."""
    if "httpx" not in sys.modules:
        return False
    import httpx

    failed = isinstance(error, httpx.HTTPStatusError) and error.response.is_server_error
    return failed or isinstance(error, httpx.TransportError)


def ended(flow: Callable[[], Value]) -> Value:
    """What a flow ends with: that the server could not be informed is a warning, for no artifact depends on it."""
    from flows.runs.record import REPORTED_RESULTS
    from model.errors import BessemerError

    ends: list[Any] = []
    token = REPORTED_RESULTS.set(ends)
    try:
        return flow()
    except Exception as error:
        if not ends or not _lost_the_server(error):
            raise
        unheard = f"the Prefect server does not know how the run ended ({error}); record and artifacts are written"
        print(f"warning: {unheard}", file=sys.stderr)
        if isinstance(ends[-1], BessemerError):
            raise ends[-1] from error
        return ends[-1]
    finally:
        REPORTED_RESULTS.reset(token)


def console(stderr: bool = False) -> Any:
    """A console of `rich`: as wide as the terminal, or wide enough for a table where there is none."""
    from flows.metrics.escaping import EscapingConsole

    stream = sys.stderr if stderr else sys.stdout
    return EscapingConsole(stream, width=None if stream.isatty() else PIPE_WIDTH)


@contextmanager
def shown_progress(as_json: bool) -> Iterator[Any]:
    """Bars of what is built within the block, which are given; on stderr beside JSON."""
    from flows.reports.progress import ProgressBars
    from flows.runs.record import CURRENT_LISTENER

    with ProgressBars(console(stderr=as_json)) as bars:
        token = CURRENT_LISTENER.set(bars)
        try:
            yield bars
        finally:
            CURRENT_LISTENER.reset(token)


def tell_run(record: dict[str, Any]) -> None:
    """Which run the answer is from, on stderr: without an id it is the latest that can answer."""
    sentence = f"run {record['run_id']}, recipe {record['recipe_name']}"
    console(stderr=True).print(sentence, style="dim", markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    json.dump(value, sys.stdout, indent=1, default=str)
    sys.stdout.write("\n")
