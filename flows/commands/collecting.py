"""Removing what no kept run needs."""

from typing import Annotated, Any

import typer

from flows.commands.options import DEFAULT_ROOT, Json, Root
from flows.commands.output import console, print_json, told_errors


def gc(
    keep_last: Annotated[int, typer.Option(min=0, help="Latest runs that keep all that they need.")] = 10,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", metavar="RUN", help="A run that does so too, by its id or beginning.")
    ] = None,
    models: Annotated[bool, typer.Option("--models", help="Remove trained models of other runs as well.")] = False,
    unfinished_days: Annotated[
        float, typer.Option(min=0, help="Days for which runs and builds that came to no end are kept.")
    ] = 7.0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would go, and remove nothing.")] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Remove artifacts that no kept run needs, and what killed builders left.

    \b
    bessemer gc --keep-last 30 --dry-run
    bessemer gc --keep-last 30 --keep 20261101 --yes

    Kept runs keep all that they ended with and all that it was made from. Records, pages and logs of all runs stay, and
    so do trained models unless --models says otherwise, and whatever was built within the last hour. What was removed
    is built again when it is needed.
    """
    with told_errors():
        from flows.collecting import carry_out, plan

        root = root.resolve()
        asked = plan(
            root,
            keep_last=keep_last,
            keep=keep or (),
            models=models,
            unfinished_days=unfinished_days,
            say=lambda sentence: console(stderr=True).print(sentence, markup=False),
        )
        if as_json and (dry_run or not yes):
            print_json(asked.to_json())
            return
        if not as_json:
            console().print(_told(asked), markup=False)
        if dry_run or not (asked.artifacts or asked.works or asked.left):
            return
        if not (yes or typer.confirm("remove them?")):
            raise typer.Exit(1)
        freed = carry_out(root, asked)
        if as_json:
            print_json(asked.to_json())
        else:
            console().print(f"removed {len(asked.artifacts)} artifacts, {freed / 1e6:,.1f} MB", markup=False)


def _told(asked: Any) -> str:
    stages: dict[str, list[int]] = {}
    for one in asked.artifacts:
        stages.setdefault(one.stage, []).append(one.bytes)
    count = len(asked.kept_runs)
    runs = f"{count}, others: {len(asked.dropped_runs)}"
    lines = [f"runs that keep what they need: {runs}; artifacts that stay: {asked.kept}"]
    if asked.fresh:
        lines.append(f"  {asked.fresh} of them are needed by no such run, and were built within the last hour")
    lines += [f"  {stage}: {len(sizes)} artifacts, {sum(sizes) / 1e6:,.1f} MB" for stage, sizes in stages.items()]
    if asked.kept_models:
        lines.append(f"  {len(asked.kept_models)} trained models of other runs stay (--models removes them too)")
    if asked.works:
        lines.append(f"  {len(asked.works)} unfinished builds that nobody goes on with")
    if asked.left:
        lines.append(f"  {len(asked.left)} builds that came to no end left files in the object store")
    anything = asked.artifacts or asked.works or asked.left
    lines.append(f"{asked.bytes / 1e6:,.1f} MB can go" if anything else "nothing can go")
    return "\n".join(lines)
