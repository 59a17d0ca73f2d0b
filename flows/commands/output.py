"""What commands print: tables or JSON, and errors as one message with its exit code."""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer

Value = TypeVar("Value")
CLOSED_PIPE = 141
"""What a shell reports of a program that wrote to a closed pipe: 128 + SIGPIPE."""
PIPE_WIDTH = 140
"""Columns of tables that go to a file or pipe, where nobody can make the window wider."""


@contextmanager
def told_errors() -> Iterator[None]:
    """Errors of the tree become one message and their exit code; a traceback is for faults of the program."""
    from model.durable import DISK_FULL, NOT_WRITABLE
    from model.errors import BessemerError, Bug, Infra, InputError

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
    from flows.record import ENDED
    from model.errors import BessemerError

    ends: list[Any] = []
    token = ENDED.set(ends)
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
        ENDED.reset(token)


def console(stderr: bool = False) -> Any:
    """A console of `rich`: as wide as the terminal, or wide enough for a table where there is none."""
    from flows.escaping import EscapingConsole

    stream = sys.stderr if stderr else sys.stdout
    return EscapingConsole(stream, width=None if stream.isatty() else PIPE_WIDTH)


@contextmanager
def shown_progress(as_json: bool) -> Iterator[Any]:
    """Bars of what is built within the block, which are given; on stderr beside JSON."""
    from flows.record import ONLOOKER
    from flows.terminal import ProgressBars

    with ProgressBars(console(stderr=as_json)) as bars:
        token = ONLOOKER.set(bars)
        try:
            yield bars
        finally:
            ONLOOKER.reset(token)


def tell_run(record: dict[str, Any]) -> None:
    """Which run the answer is from, on stderr: without an id it is the latest that can answer."""
    sentence = f"run {record['run_id']}, recipe {record['recipe_name']}"
    console(stderr=True).print(sentence, style="dim", markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    json.dump(value, sys.stdout, indent=1, default=str)
    sys.stdout.write("\n")
