"""What of the benchmarks stood in the training text."""

from typing import Annotated

import typer

from flows.commands.options import DEFAULT_ROOT, Json, Root, RunId
from flows.commands.output import console, print_json, tell_run, told_errors


def leaks(
    benchmarks: Annotated[
        list[str] | None, typer.Argument(metavar="[BENCHMARK]...", help="Benchmarks whose items to name, one by one.")
    ] = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only items that are leaked, clean or unmatchable; repeatable.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    run_id: RunId = None,
    as_json: Json = False,
) -> None:
    """Name every benchmark item as leaked (and where), clean, or unmatchable; without a name, count them."""
    with told_errors():
        from flows.leak_report import STATES, count_states, list_items, states_told
        from flows.lineage import open_run, run_artifacts
        from model.errors import RecipeError

        unknown = sorted(set(state or ()) - set(STATES))
        if unknown:
            raise RecipeError(f"--state {unknown[0]}: an item is one of {', '.join(STATES)}")
        record = open_run(root, run_id, needs="decontaminate")
        artifacts = run_artifacts(record)
        counts = count_states(artifacts["decontaminate"])
        names = benchmarks or ([line["benchmark"] for line in counts] if state or as_json else [])
        items = list_items(artifacts, names, state or list(STATES))
        if as_json:
            print_json({"benchmarks": counts, "items": items})
            return
        tell_run(record)
        from flows.telling import leak_counts_table, tell_item

        if not names:
            console().print(leak_counts_table(counts) if counts else "the run checked no benchmarks")
            return
        for item in items:
            tell_item(item, console())
        console().print(states_told(items))
