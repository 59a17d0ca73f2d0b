"""Artifacts of earlier formats."""

from typing import Annotated

import typer

from flows.commands.options import DEFAULT_ROOT, Json, Root
from flows.commands.output import print_json, told_errors


def upgrade(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would be upgraded, and make nothing.")] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Bring artifacts of earlier formats to the one that this version reads.

    Nothing that stands is changed: each gets a copy with an identity of its own, and runs that name the old one find
    the copy. `bessemer verify` hashes what was made.
    """
    with told_errors():
        from dataclasses import asdict

        from model.errors import InputError
        from tasks.schema import FORMAT
        from tasks.store.attached import store_of
        from tasks.upgrades import outdated
        from tasks.upgrades import upgrade as upgraded

        if not (root / "artifacts").is_dir():
            raise InputError(f"upgrade --root {root}: there are no artifacts; name the root of your runs with --root")
        if store_of(root) is not None:
            raise InputError(
                f"upgrade --root {root}: this root stands before an object store, whose artifacts are not upgraded in"
                f" place. Run the recipes again under a new prefix, or use the version that made them."
            )
        waiting = outdated(root)
        if dry_run:
            done = [{"stage": one["stage"], "identity": one["identity"], "format": one["format"]} for one in waiting]
        else:
            done = [asdict(one) for one in upgraded(root)]
        if as_json:
            print_json(done)
            return
        for one in done:
            typer.echo(f"{one['stage']}/{one['identity']} of format {one['format']}")
        told = f"would be upgraded to format {FORMAT}" if dry_run else f"upgraded to format {FORMAT}"
        typer.echo(f"{len(done)} artifacts {told}" if done else f"all artifacts are of format {FORMAT}")
