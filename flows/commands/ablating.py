"""What changes to a recipe do, and what the parts of a trained network do."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.options import DEFAULT_ROOT, Json, Limit, Root, Settings, Untrusted, Verbose, share
from flows.commands.output import console, print_json, shown_progress, told_errors
from flows.commands.running import quieten_prefect


def ablate(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or one that ships; with --components a run.")],
    changes: Annotated[
        str | None, typer.Argument(help="A file of changes, or one that ships: data, network, t5, vocabulary.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each change; the file's number by default.")] = None,
    components: Annotated[
        bool, typer.Option("--components", help="Take heads and layers from the trained network of a run instead.")
    ] = False,
    limit: Limit = "100%",
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """What each of a list of changes does: every one by itself, over several seeds, beside the recipe as it is.

    \b
    bessemer ablate recipe.toml network --seeds 3
    bessemer ablate RUN --components

    What a change leaves untouched is reused. The table has loss, bits per byte, benchmarks and speed, differences with
    intervals over seeds and items. A list that ends in [then] measures a second run, which goes on from each model
    alike: so `t5` compares objectives whose own figures cannot be compared (docs/search.md). Stopped, it goes on when
    it is called again.
    """
    with told_errors():
        from model.errors import RecipeError

        root = root.resolve()
        if components:
            _components(recipe, root, as_json)
            return
        if changes is None:
            raise RecipeError("name the changes: a file, or one that ships: data, network, t5, vocabulary")
        quieten_prefect(verbose)
        from flows.interrupts import heard_interrupts
        from flows.private_server import prefect_server
        from flows.record import check_writable

        check_writable(root)
        words = {"root": root, "seeds": seeds, "limit": share(limit), "settings": tuple(settings or ())}
        with prefect_server(root), heard_interrupts():
            found = _ablated(recipe, changes, words, as_json)
        if as_json:
            print_json(found)
            return
        from rich.markdown import Markdown

        from flows.ablate.report import as_markdown

        console().print(Markdown(as_markdown(found["name"], found)))
        console().print(f"table: {found['markdown']}\npage: {found['page']}", markup=False)


def _ablated(recipe: str, changes: str, words: dict[str, Any], as_json: bool) -> Any:
    with shown_progress(as_json):
        from flows.ablate.ablating import ablate as ablate_flow

        return ablate_flow(recipe, changes, **words)


def _components(run_id: str, root: Path, as_json: bool) -> None:
    from flows.ablate.components import take_apart
    from flows.ablate.components_report import as_markdown, write_report

    with console(stderr=True).status("taking the network apart") as status:
        found = take_apart(root, run_id, lambda done, total: status.update(f"{done} of {total} parts"))
    found |= write_report(found, root)
    if as_json:
        print_json(found)
        return
    from rich.markdown import Markdown

    console().print(Markdown(as_markdown(found)))
    console().print(f"table: {found['markdown']}\npage: {found['page']}", markup=False)
