"""What would run and why, what may stand for it, and whether it is still what it was."""

from typing import Annotated

import typer

from flows.commands.options import DEFAULT_ROOT, Json, Limit, Root, Settings, Untrusted, share
from flows.commands.output import console, print_json, told_errors

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
        from flows.explaining import explain as foresee
        from flows.shipped import open_recipe

        root = root.resolve()
        forecasts = foresee(open_recipe(recipe, root, settings or (), share(limit)), root)
        if as_json:
            print_json([forecast.to_json() for forecast in forecasts])
            return
        from flows.verdicts import tell_forecasts

        tell_forecasts(forecasts, console(), every=every)


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
        from flows import accepting
        from flows.shipped import open_recipe
        from flows.verdicts import tell_proposal
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
                tell_proposal(alias, console())
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
        from flows.lineage import open_run
        from flows.root_records import records_under
        from flows.terminal import bytes_bar
        from flows.verdicts import tell_verification
        from flows.verification import artifacts_of, artifacts_under, set_right_there
        from flows.verification import set_aside as rename
        from flows.verification import verify as hash_again
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
            tell_verification(found, [*there, *moved], console())
        if found.damages:
            raise typer.Exit(IntegrityError.exit_code)
