"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer


def _root(named: str | Path) -> Path:
    from flows.commands.output import told_errors

    with told_errors():
        from flows.roots import open_root

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
        from flows.commands.output import told_errors
        from tasks.confinement import confine

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
