"""From small to large: a ladder of models, and what it says of a larger one."""

from typing import Annotated, Any

import typer

from flows.commands.options import DEFAULT_ROOT, Json, Limit, Root, Settings, Untrusted, Verbose, share
from flows.commands.output import console, print_json, shown_progress, told_errors
from flows.commands.running import quieten_prefect


def scale(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or one that ships.")],
    ladder: Annotated[str, typer.Argument(help="A file of sizes, or one that ships: small.")],
    root: Root = DEFAULT_ROOT,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each size; the file's number by default.")] = None,
    limit: Limit = "100%",
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Train a ladder of small models, fit the law of their losses, and predict the largest before it is trained.

    \b
    bessemer scale multilingual small

    Each model reads so many tokens for each weight, and shares all data that it can with the others. The law is
    L(N) = E + A / N^alpha; the largest size is held back from it, predicted with a 95% interval, then measured.
    Stopped, it goes on when it is called again.
    """
    with told_errors():
        root = root.resolve()
        quieten_prefect(verbose)
        from flows.interrupts import heard_interrupts
        from flows.private_server import prefect_server
        from flows.record import check_writable

        check_writable(root)
        words = {"root": root, "seeds": seeds, "limit": share(limit), "settings": tuple(settings or ())}
        with prefect_server(root), heard_interrupts():
            found = _scaled(recipe, ladder, words, as_json)
        if as_json:
            print_json(found)
            return
        from rich.markdown import Markdown

        from flows.scaling.report import as_markdown

        console().print(Markdown(as_markdown(found)))
        console().print(f"table: {found['markdown']}\npage: {found['page']}", markup=False)


def _scaled(recipe: str, ladder: str, words: dict[str, Any], as_json: bool) -> Any:
    with shown_progress(as_json):
        from flows.scaling.scaling import scale as scale_flow

        return scale_flow(recipe, ladder, **words)
