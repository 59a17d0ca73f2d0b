"""What the commands share: options, groups, tables or JSON on stdout, and one message with an exit code for an error.

Each group of commands has a file in this folder. Heavy imports stay inside functions, so that help answers at once.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from flows.metrics.escaping import EscapingConsole
    from flows.reports.progress import ProgressBars
    from flows.runs.record import RunData


class CommandGroup(TyperGroup):
    """A group that shows the whole first sentence of each command's help, accepts `--root` before a command, and turns
    the errors of commands into a message and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep a leading `--root PATH` for the command that follows."""
        kept: list[str] = []
        while args and args[0].partition("=")[0] == "--root":
            words = 1 if "=" in args[0] else 2
            kept, args = [*kept, *args[:words]], args[words:]
        ctx.meta[_ROOT_BEFORE] = kept
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the named command, and its words with `--root` at their front; name the group of a command of one."""
        unknown = args and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None
        if ctx.parent is None and unknown:
            groups = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
            if found := [name for name, group in groups if args[0] in getattr(group, "commands", ())]:
                commands = " or ".join(f"`{ctx.command_path} {name} {args[0]}`" for name in found)
                ctx.fail(f"No such command '{args[0]}'. Did you mean {commands}?")
        name, command, rest = super().resolve_command(ctx, args)
        return name, command, [*ctx.meta.get(_ROOT_BEFORE, ()), *rest]

    def invoke(self, ctx: Any) -> Any:
        with handle_errors():
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a line for each command: its name and the first sentence of its help, wrapped instead of cut."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(limit=300)) for name, command in commands if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


_ROOT_BEFORE = "bessemer.root_before_command"


def _root(named: str | Path) -> Path:
    from flows.runs.roots import open_root

    return open_root(named)


def _root_option(**options: Any) -> Any:
    return typer.Option(
        "--root",
        envvar="BESSEMER_ROOT",
        metavar="PATH",
        help="Folder of all artifacts and runs, or an object store's address such as s3://bucket/prefix.",
        show_default=True,
        **options,
    )


# As text, for a path has one slash where an address has two; a parser's errors would be shown as those of a value.
Root = Annotated[Path, _root_option(parser=str, callback=_root)]

UnopenedRoot = Annotated[str, _root_option()]
"""For commands that report themselves that a root cannot be opened."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

RUN_HELP = (
    "Run id or its beginning; `latest` is the latest run that has what the command needs, `current` the promoted one."
)

Run = Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)]

RunId = Annotated[str | None, typer.Option("--run", help=f"{RUN_HELP} By default the latest.")]

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped one.")]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a recipe value, e.g. --set dedup.threshold=0.9"),
]

Limit = Annotated[str, typer.Option(help="Share of every source to keep, e.g. 1% for a quick pass over everything.")]

FromStage = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="STAGE",
        help="Start with this stage; earlier artifacts must exist. Add --force to rebuild existing ones.",
    ),
]

UntilStage = Annotated[
    str | None,
    typer.Option("--until", metavar="STAGE", help="End with this stage, e.g. `--until chunk` for the sequences alone."),
]

OnlyStage = Annotated[
    str | None,
    typer.Option(
        "--only",
        metavar="STAGE",
        help="Build this stage alone, unless its artifact exists; earlier artifacts must exist.",
    ),
]

Force = Annotated[
    bool, typer.Option("--force", help="Rebuild the selected stages and compare with the existing artifacts.")
]


def _confined(folder: Path | None) -> Path | None:
    folder = of_home(folder)
    if folder is not None:
        from tasks.common.confinement import confine

        confine(folder)
    return folder


def of_home(path: Path | None) -> Path | None:
    """Return the path of an option with its `~`, which a shell leaves in `--output=~/recipe.toml`, replaced."""
    return None if path is None else Path(os.path.expanduser(path))


def utf8(text: Any) -> Any:
    """Return the text or texts of an option; raise InputError where the shell gave bytes that are no text."""
    from model.errors import InputError

    try:
        "".join(text or ()).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"the text {text!r} is not UTF-8; type it in a terminal whose encoding that is") from error
    return text


Untrusted = Annotated[
    Path | None,
    typer.Option(
        "--untrusted",
        metavar="DIR",
        callback=_confined,
        is_eager=True,
        help="For a recipe from someone else: it may read only files in DIR and public web addresses, and run no code.",
    ),
]
"""Applies to the whole process once it is parsed; commands need do nothing with it."""

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show Prefect's log and all tables.")]

OpenPage = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]

DEFAULT_ROOT = Path("bessemer-data")


def open_in_browser(page: Path) -> None:
    """Open a page in the browser of this machine; say where it is if there is none."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        print(f"no browser on this machine; the page is {page.resolve().as_uri()}", file=sys.stderr)


def share(text: str, option: str = "--limit") -> float:
    """Return the share that `1%` or `0.01` means; raise RecipeError, naming the option, outside (0, 1]."""
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
"""Exit code of a program that wrote to a closed pipe, as shells report it: 128 + SIGPIPE."""

WRONG_WORDS: type[Exception] = typer.BadParameter.__mro__[2]
"""Base class of the errors about a command line, ClickException, which typer has from click or as its own copy."""

PIPE_WIDTH = 140
"""Width of tables that go to a file or pipe, in columns."""


@contextmanager
def handle_errors() -> Iterator[None]:
    """Print an error as one message and exit with the code of its class; print a traceback only for a bug."""
    from model.errors import BessemerError, Bug, Infra, InputError
    from model.files import DISK_FULL, NOT_WRITABLE

    try:
        yield
    except (typer.Exit, typer.Abort, WRONG_WORDS):
        raise
    except BessemerError as error:
        # Not by `typer.echo`, which drops sequences of documents silently where no terminal is.
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        typer.echo("interrupted; finished parts and checkpoints are kept, run again to continue", err=True)
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
            print(f"InputError: {error.filename}: {error.strerror}; this user has no permission", file=sys.stderr)
            raise typer.Exit(InputError.exit_code) from error
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            where = error.filename or "a file under the root"
            print(f"Infra: no space left while writing {where}; free some and run again", file=sys.stderr)
            raise typer.Exit(Infra.exit_code) from error
        traceback.print_exc()
        raise typer.Exit(Bug.exit_code) from error


def _lost_the_server(error: Exception) -> bool:
    """Return whether Prefect's client lost its server or the server failed. Without httpx there is no client."""
    if "httpx" not in sys.modules:
        return False
    import httpx

    failed = isinstance(error, httpx.HTTPStatusError) and error.response.is_server_error
    return failed or isinstance(error, httpx.TransportError)


def ended(flow: Callable[[], Value]) -> Value:
    """Return the result of a flow. A server that did not hear of its end is a warning: no artifact depends on it."""
    from flows.runs.context import REPORTED_RESULTS, given
    from model.errors import BessemerError

    ends: list[Any] = []
    try:
        with given(REPORTED_RESULTS, ends):
            return flow()
    except Exception as error:
        if not ends or not _lost_the_server(error):
            raise
        unheard = f"the Prefect server does not know how the run ended ({error}); record and artifacts are written"
        print(f"warning: {unheard}", file=sys.stderr)
        if isinstance(ends[-1], BessemerError):
            raise ends[-1] from error
        return ends[-1]


def console(stderr: bool = False) -> "EscapingConsole":
    """Return a console as wide as the terminal, or `PIPE_WIDTH` columns without one."""
    from flows.metrics.escaping import EscapingConsole

    stream = sys.stderr if stderr else sys.stdout
    return EscapingConsole(stream, width=None if stream.isatty() else PIPE_WIDTH)


@contextmanager
def shown_progress(as_json: bool) -> Iterator["ProgressBars"]:
    """Show progress bars of what is built within the block, on stderr if stdout has JSON; yield them."""
    from flows.reports.progress import ProgressBars
    from flows.runs.context import heard_by

    with ProgressBars(console(stderr=as_json)) as bars, heard_by(bars):
        yield bars


def print_run_header(record: "RunData") -> None:
    """Print on stderr which run the output is about."""
    sentence = f"run {record['run_id']}, recipe {record['recipe_name']}"
    console(stderr=True).print(sentence, style="dim", markup=False, soft_wrap=True)


def _plain(value: object) -> object:
    """Return a typed value as plain ones: what its `to_json` returns, its fields, or its text."""
    if to_json := getattr(value, "to_json", None):
        return to_json()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def print_found(value: Any, as_json: bool, show: Callable[["EscapingConsole"], object] = lambda shown: None) -> None:
    """Print the result of a command: as one JSON value on stdout, or for people by `show`, which is given the console.

    A command without `show` has printed it already, on `console(stderr=as_json)`.
    """
    if as_json:
        from flows.metrics.formatting import strict_json

        sys.stdout.write(f"{strict_json(value, _plain, indent=1)}\n")
    else:
        show(console())
