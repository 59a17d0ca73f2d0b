"""Two runs beside each other."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import DEFAULT_ROOT, RUN_HELP, Json, Root
from flows.commands.output import console, print_json, told_errors


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
        from flows.comparing.differing import compare as differences_of
        from flows.comparing.writing import write_comparison
        from flows.lineage import open_run
        from model.durable import NOT_WRITABLE

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

        from flows.comparing.telling import tell_comparison

        shown = console()
        tell_comparison(found, shown)
        if path is not None:
            shown.print(f"[bold]page[/] {escape(str(path))}", soft_wrap=True)
