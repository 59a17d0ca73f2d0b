"""`bessemer store`: verify, accept and delete the artifacts and records of a root."""

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.common import (
    DEFAULT_ROOT,
    CommandGroup,
    Json,
    Limit,
    RecipeName,
    Root,
    Settings,
    Untrusted,
    Yes,
    console,
    print_found,
    share,
)

if TYPE_CHECKING:
    from flows.metrics.escaping import EscapingConsole
    from flows.upkeep.gc import Plan
    from flows.upkeep.verify import Verification
    from tasks.artifacts.reuse import Alias

store = typer.Typer(
    name="store",
    cls=CommandGroup,
    help="Artifacts and records of a root: verify their bytes, accept a harmless change, delete what no run needs.",
    no_args_is_help=True,
)


@store.command()
def verify(
    stage: Annotated[
        str | None, typer.Argument(metavar="STAGE", help="Only this stage's artifacts; all by default.")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--run", help="Only what this run ended with: its id, its beginning, or `latest`.")
    ] = None,
    set_aside: Annotated[
        bool, typer.Option("--set-aside", help="Rename what is damaged, so that the next run builds it again.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Hash only files whose size or time has changed; trust the others.")
    ] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Hash artifacts and records again and name every damaged file. Exit code 5 if there is one.

    Records are those of runs, unfinished builds and their checkpoints, leases, accepted artifacts, promotions, studies,
    and `inputs.json`; with STAGE or --run only artifacts are hashed. Runs check every file before they read it, so that
    none trains on a damaged one; this finds it earlier. With an object store, its files are hashed too and certificates
    of removals compared; --set-aside uploads what is damaged again if this machine has it undamaged, and deletes what
    is there again of removed artifacts.
    """
    from flows.reports.progress import bytes_bar
    from flows.runs.lineage import open_run
    from flows.runs.record import stage_paths
    from flows.upkeep.root_records import records_under
    from flows.upkeep.verify import repair_stored
    from flows.upkeep.verify import set_aside as rename
    from flows.upkeep.verify import verify as hash_again
    from model.errors import InputError, IntegrityError
    from tasks.artifacts.published import artifacts_under

    if run_id:
        folders = [path for name, path in stage_paths(open_run(root, run_id)).items() if stage in (None, name)]
    else:
        folders = artifacts_under(root, stage)
    records = [] if run_id or stage else records_under(root)
    if not folders and not records:
        raise InputError(f"store verify: there is no artifact{f' of `{stage}`' if stage else ''} under {root}")
    with bytes_bar("verifying", console(stderr=True)) as progress:
        found = hash_again(folders, progress, quick=quick, records=records, root=None if run_id or stage else root)
    aside = [*repair_stored(found.damages), *rename(found.damages)] if set_aside else []
    print_found({**asdict(found), "set_aside": aside}, as_json, lambda shown: _print_verification(found, aside, shown))
    if found.damages:
        raise typer.Exit(IntegrityError.exit_code)


@store.command()
def accept(
    stage: Annotated[
        str, typer.Argument(metavar="STAGE", help="The stage whose existing artifact to accept, or `all`.")
    ],
    recipe: RecipeName,
    because: Annotated[
        str,
        typer.Option(help="Why the change has no effect, kept with your name; without it, differences are only shown."),
    ] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Undo an earlier acceptance.")] = False,
    whatever_changed: Annotated[
        bool, typer.Option("--whatever-changed", help="Also if settings or inputs differ.")
    ] = False,
    yes: Yes = False,
    root: Root = DEFAULT_ROOT,
    limit: Limit = "100%",
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
) -> None:
    """Reuse the existing artifact of a stage whose code or libraries changed without effect.

    Shows all differences, and writes who accepted them, when and why to `aliases/STAGE/IDENTITY.json`. Manifests never
    change; runs show `accepted`. `bessemer run --force --only STAGE` checks whether it was right. With --json nothing
    is asked, and without --yes the differences are all that is shown.
    """
    from flows.recipe.load import open_recipe
    from flows.upkeep import accept as accepting
    from model.errors import RecipeError

    chosen = open_recipe(recipe, root, settings or (), share(limit))
    if undo:
        path = accepting.undo_accept(chosen, root, stage)
        sentence = f"undone: {path} is deleted, the stage will be built again"
        print_found({"undone": str(path)}, as_json, lambda _: typer.echo(sentence))
        return
    shown = console(stderr=as_json)
    written: list[dict[str, object]] = []
    for alias in accepting.propose_aliases(chosen, root, stage, because):
        _print_proposal(alias, shown)
        if not because:
            raise RecipeError(f'store accept {stage}: give a reason with --because "..."; it is kept with your name')
        if as_json and not yes:
            written.append(vars(alias))
            continue
        if not (yes or typer.confirm("accept it?")):
            raise typer.Exit(1)
        path = accepting.accept(root, alias, whatever_changed=whatever_changed)
        written.append({**vars(alias), "alias": str(path)})
        typer.echo(f"accepted by {alias.who}: {path}\n", err=as_json)
    print_found(written, as_json)


@store.command()
def gc(
    keep_last: Annotated[int, typer.Option(min=0, help="Number of latest runs that keep all that they need.")] = 10,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", metavar="RUN", help="Another run to keep, by its id or beginning.")
    ] = None,
    models: Annotated[bool, typer.Option("--models", help="Delete trained models of other runs as well.")] = False,
    unfinished_days: Annotated[
        float, typer.Option(min=0, help="Days for which unfinished runs and builds are kept.")
    ] = 7.0,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Delete artifacts that no kept run needs, and the leftovers of killed builds.

    \b
    bessemer store gc --keep-last 30 --dry-run
    bessemer store gc --keep-last 30 --keep 20261101 --yes

    Kept runs keep their artifacts and everything these were built from. Records, pages and logs of all runs stay, as do
    trained models (without --models) and everything built within the last hour. Deleted artifacts are built again when
    they are needed.
    """
    from flows.upkeep.gc import delete, plan

    find = partial(
        plan,
        root,
        keep_last=keep_last,
        keep=keep or (),
        models=models,
        unfinished_days=unfinished_days,
        say=lambda sentence: console(stderr=True).print(sentence, markup=False),
    )
    removal = find()
    shown = console(stderr=as_json)
    shown.print(_describe(removal), markup=False)
    if (removal.artifacts or removal.works or removal.left) and not dry_run and (yes or not as_json):
        if not yes:
            typer.confirm("delete them?", abort=True)
            # A run may have begun to use some of them while the question was open.
            removal = removal.within(find())
        freed = delete(root, removal)
        shown.print(f"deleted {len(removal.artifacts)} artifacts, {freed / 1e6:,.1f} MB", markup=False)
    print_found({**asdict(removal), "bytes": removal.bytes}, as_json)


def _describe(removal: "Plan") -> str:
    stages: dict[str, list[int]] = {}
    for one in removal.artifacts:
        stages.setdefault(one.stage, []).append(one.bytes)
    runs = f"{len(removal.kept_runs)}, others: {len(removal.dropped_runs)}"
    lines = [f"runs that keep what they need: {runs}; artifacts that stay: {removal.kept}"]
    if removal.fresh:
        lines.append(f"  {removal.fresh} of them are needed by no such run, and were built within the last hour")
    lines += [f"  {stage}: {len(sizes)} artifacts, {sum(sizes) / 1e6:,.1f} MB" for stage, sizes in stages.items()]
    if removal.kept_models:
        lines.append(f"  {len(removal.kept_models)} trained models of other runs stay (--models removes them too)")
    if removal.works:
        lines.append(f"  {len(removal.works)} unfinished builds that nothing continues")
    if removal.left:
        lines.append(f"  {len(removal.left)} unfinished builds left files in the object store")
    anything = removal.artifacts or removal.works or removal.left
    lines.append(f"{removal.bytes / 1e6:,.1f} MB can go" if anything else "nothing can go")
    return "\n".join(lines)


MAX_DIFFERENCES = 12


def _print_proposal(alias: "Alias", shown: "EscapingConsole") -> None:
    """Print the differences between an existing artifact and the one that would be built."""
    shown.print(
        f"[bold]{alias.stage}[/]: the artifact {alias.accepted} would be accepted in place of {alias.identity}. They"
        f" differ in"
    )
    for line in alias.differences[:MAX_DIFFERENCES]:
        shown.print(f"  {line}", markup=False)
    if len(alias.differences) > MAX_DIFFERENCES:
        shown.print(f"  [dim]and {len(alias.differences) - MAX_DIFFERENCES} more[/]")


def _print_verification(found: "Verification", moved: list[str], shown: "EscapingConsole") -> None:
    """Print what was hashed, and a line for each damage."""
    size = f"{found.bytes / 1e9:.3f} GB"
    hashed = f"{found.artifacts} artifacts, {found.files} files, {size} hashed, {found.records} records"
    shown.print(f"{hashed}: {_result(found)}")
    if found.trusted:
        shown.print(f"  {found.trusted} files not hashed: their sizes and times are as published")
    for damage in found.damages:
        place = f"{damage.place.parent.name}/{damage.place.name}/{damage.file}" if damage.file else str(damage.place)
        shown.print(f"  damaged {place}: {damage.problem}", style="bold red", markup=False, soft_wrap=True)
    for path in moved:
        shown.print(f"  set aside: {path}", markup=False)
    if found.damages and not moved:
        shown.print(
            "  No run uses these. Set them aside with `bessemer store verify --set-aside`, and the next run builds them"
            " again."
        )


def _result(found: "Verification") -> str:
    if not found.damages:
        return "[green]all as published[/]"
    artifacts, records = (len({one.place for one in found.damages if bool(one.file) is of}) for of in (True, False))
    damaged = [
        f"{count} damaged {what}{'s' if count > 1 else ''}"
        for count, what in ((artifacts, "artifact"), (records, "record"))
        if count
    ]
    return f"[bold red]{', '.join(damaged)}[/]"
