"""What would run and why, what may stand for it, and whether it is still what it was.

Removing what no kept run needs.

Artifacts of earlier formats.
"""

from typing import Annotated, Any

import typer

from flows.commands.common import (
    DEFAULT_ROOT,
    Json,
    Limit,
    Root,
    Settings,
    Untrusted,
    console,
    print_json,
    share,
    told_errors,
)

RecipeName = Annotated[str, typer.Argument(help="A recipe file, or the name of one that ships.")]


def explain(
    recipe: RecipeName,
    root: Root = DEFAULT_ROOT,
    limit: Limit = "100%",
    settings: Settings = None,
    untrusted: Untrusted = None,
    every: Annotated[bool, typer.Option("--all", help="Every difference of a stage, not the first alone.")] = False,
    as_json: Json = False,
) -> None:
    """Say what `run` would do and build nothing: which stages stand, which will be built, and the first cause of each.

    A stage behind one that will be built may still be reused: it counts its input by content, and a rebuild that gives
    the same bytes stops the wave there.
    """
    with told_errors():
        from flows.planning.explain import forecast_stages
        from flows.recipe.load import open_recipe

        root = root.resolve()
        forecasts = forecast_stages(open_recipe(recipe, root, settings or (), share(limit)), root)
        if as_json:
            print_json([forecast.to_json() for forecast in forecasts])
            return
        from flows.planning.explain_report import print_forecasts

        print_forecasts(forecasts, console(), every=every)


def accept(
    stage: Annotated[
        str, typer.Argument(help="The stage whose standing artifact may answer; `all` goes through them.")
    ],
    recipe: RecipeName,
    because: Annotated[
        str,
        typer.Option(
            help="Why the change cannot change the result, kept with your name; without it, differences are only shown."
        ),
    ] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Take an earlier word back.")] = False,
    whatever_changed: Annotated[
        bool, typer.Option("--whatever-changed", help="Also where settings or inputs differ: your word against theirs.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    root: Root = DEFAULT_ROOT,
    limit: Limit = "100%",
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
) -> None:
    """Let the artifact that stands answer for a stage whose code or libraries changed harmlessly.

    Shows all that differs, and writes who accepted it, when and why to `aliases/STAGE/IDENTITY.json`; manifests never
    change, and runs say `accepted`. `bessemer run --force --only STAGE` puts the word to the test.
    """
    with told_errors():
        from flows.planning.explain_report import print_proposal
        from flows.recipe.load import open_recipe
        from flows.runs import accept as accepting
        from model.errors import RecipeError

        root = root.resolve()
        chosen = open_recipe(recipe, root, settings or (), share(limit))
        if undo:
            path = accepting.take_back(chosen, root, stage)
            typer.echo(f"taken back: {path} is removed, the stage will be built again")
            return
        written: list[dict[str, object]] = []
        for alias in accepting.proposals(chosen, root, stage, because):
            if not as_json:
                print_proposal(alias, console())
            if not because:
                raise RecipeError(f'accept {stage}: say why with --because "..."; it stays with your name in the alias')
            if not yes and not typer.confirm("accept it?"):
                raise typer.Exit(1)
            path = accepting.accept(root, alias, whatever_changed=whatever_changed)
            written.append({**vars(alias), "alias": str(path)})
            if not as_json:
                typer.echo(f"accepted by {alias.who}: {path}\n")
        if as_json:
            print_json(written)


def verify(
    stage: Annotated[str | None, typer.Argument(help="Only this stage's artifacts; all by default.")] = None,
    run_id: Annotated[
        str | None, typer.Option("--run", help="Only what this run ended with: its id, its beginning, or `latest`.")
    ] = None,
    set_aside: Annotated[
        bool,
        typer.Option("--set-aside", help="Rename what is damaged, so that the next run makes it again."),
    ] = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Hash only files whose size or time is not as published; trust the others."),
    ] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Hash artifacts and records again and name every file whose bytes are not what was written. Exit 5 for damage.

    Records are those of runs, unfinished builds with their checkpoints, leases, accepted artifacts, promotions,
    studies, and `inputs.json`; with STAGE or --run only artifacts are hashed. Runs themselves check every file before
    they read it, so that a damaged one is never trained on; this finds it before the night does. Before an object
    store, what the store holds is read and hashed as well; --set-aside puts a damaged file there again from here where
    it is whole.
    """
    with told_errors():
        from flows.planning.explain_report import print_verification
        from flows.reports.progress import bytes_bar
        from flows.runs.lineage import open_run
        from flows.runs.root_records import records_under
        from flows.runs.verify import artifacts_of, artifacts_under, set_right_there
        from flows.runs.verify import set_aside as rename
        from flows.runs.verify import verify as hash_again
        from model.errors import InputError, IntegrityError

        root = root.resolve()
        folders = artifacts_of(open_run(root, run_id), stage) if run_id else artifacts_under(root, stage)
        records = [] if run_id or stage else records_under(root)
        if not folders and not records:
            raise InputError(f"verify: no artifact{f' of `{stage}`' if stage else ''} stands under {root}")
        with bytes_bar("verifying", console(stderr=True)) as progress:
            found = hash_again(folders, progress, quick=quick, records=records)
        there = set_right_there(found.damages) if set_aside else []
        moved = rename(found.damages) if set_aside else []
        if as_json:
            damages = [damage.to_json() for damage in found.damages]
            print_json({**vars(found), "damages": damages, "set_aside": [*there, *moved]})
        else:
            print_verification(found, [*there, *moved], console())
        if found.damages:
            raise typer.Exit(IntegrityError.exit_code)


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
        from flows.runs.gc import carry_out, plan

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
        from tasks.artifacts.remote.attach import store_of
        from tasks.artifacts.schema import FORMAT
        from tasks.artifacts.upgrades import outdated
        from tasks.artifacts.upgrades import upgrade as upgraded

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
