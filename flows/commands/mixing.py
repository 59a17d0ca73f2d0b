"""Finding the shares of a recipe's sources."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.options import DEFAULT_ROOT, Json, Root, Settings, Untrusted, Verbose
from flows.commands.output import console, print_json, shown_progress, told_errors
from flows.commands.running import quieten_prefect


def mix(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of one that ships.")],
    root: Root = DEFAULT_ROOT,
    proxies: Annotated[int | None, typer.Option(min=4, help="Small trainings; [mix] says how many else.")] = None,
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Find the shares of the sources: many small models on random mixtures say which are best.

    The recipe's table [mix] says how many and how small; all stages up to the vocabulary are built once. Writes the
    weights, which `weights_from` of a recipe takes, and the recipe with them. Stopped, it goes on when called again.
    """
    with told_errors():
        from flows.record import check_writable

        root = root.resolve()
        check_writable(root)
        quieten_prefect(verbose)
        from flows.interrupts import heard_interrupts
        from flows.private_server import prefect_server

        with prefect_server(root), heard_interrupts():
            found = _mixed(recipe, root, proxies, tuple(settings or ()), as_json)
        if as_json:
            print_json(found)
            return
        from rich.markdown import Markdown

        from flows.mix.writing import as_markdown

        console().print(Markdown(as_markdown(found)))
        console().print(f"weights: {found['file']}\nrecipe: {found['recipe']}", markup=False)


def _mixed(recipe: str, root: Path, proxies: int | None, settings: tuple[str, ...], as_json: bool) -> Any:
    with shown_progress(as_json):
        from flows.mix.mixing import mix as mix_flow

        return mix_flow(recipe, root, proxies=proxies, settings=settings)
