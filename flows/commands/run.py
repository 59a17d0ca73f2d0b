"""Running a recipe, or a stretch of its road.

A training that stands still: looking at it, and going on under other settings.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from flows.commands.common import (
    DEFAULT_ROOT,
    Force,
    FromStage,
    Json,
    Limit,
    OnlyStage,
    Root,
    RunId,
    Settings,
    UntilStage,
    Untrusted,
    Verbose,
    console,
    ended,
    print_json,
    share,
    shown_progress,
    told_errors,
)

if TYPE_CHECKING:
    from tasks.artifacts.reuse import OtherVersion


class Asked(TypedDict, total=False):
    """What a command asks of the flow besides a recipe and a root."""

    from_stage: str | None
    until: str | None
    only: str | None
    force: bool


def run(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe file, or the name of one that ships: quickstart, multilingual, gpt3, opt_175b, yalm_100b."
        ),
    ],
    root: Root = DEFAULT_ROOT,
    limit: Limit = "100%",
    from_stage: FromStage = None,
    until: UntilStage = None,
    only: OnlyStage = None,
    force: Force = False,
    settings: Settings = None,
    untrusted: Untrusted = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a recipe: sample, clean, dedup, decontaminate, vocab, chunk, train, evaluate.

    What is already built under the same identity is reused. The last screen shows the funnel, the mixture, the scores
    and the path of the run page. Exit codes: 2 wrong recipe, 3 bad input, 4 a guard stopped it, 5 damaged data,
    75 the machine failed (run again), 76 training diverged, 77 a store or server refuses this machine's credentials,
    70 a fault of the program.
    """
    with told_errors():
        from flows.recipe.load import open_recipe
        from flows.recipe.stages import stretch

        root = root.resolve()
        stretch(from_stage, until, only)
        chosen = open_recipe(recipe, root, settings or (), share(limit))
        asked: Asked = {"from_stage": from_stage, "until": until, "only": only, "force": force}
        _run(chosen, root, asked, as_json, verbose)


def quickstart(
    root: Root = DEFAULT_ROOT,
    settings: Settings = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Train a small model on the text that comes with Python itself: documentation, READMEs, licences, code.

    Writes a cloze benchmark from passages of that text first; its documents stay in the sources, so that the run has
    true leaks to find and cut.
    """
    with told_errors():
        from flows.recipe.load import open_recipe

        root = root.resolve()
        chosen = open_recipe("quickstart", root, settings or ())
        _run(chosen, root, {}, as_json, verbose)


def go_on(recipe: Any, root: Path, as_json: bool, verbose: bool) -> None:
    """Run a recipe that was run before, as `run` does."""
    _run(recipe, root, {}, as_json, verbose)


def _run(chosen: Any, root: Path, asked: Asked, as_json: bool, verbose: bool) -> None:
    from flows.planning.preconditions import CHECKED, check_prerequisites
    from flows.recipe.stages import stretch
    from flows.runs.record import check_writable
    from model.errors import InputError

    # Before the run has a name: one that is refused leaves nothing that could be looked up by it.
    stages = stretch(asked.get("from_stage"), asked.get("until"), asked.get("only"))
    check_prerequisites(chosen, stages, root, force=asked.get("force", False))
    quieten_prefect(verbose)
    try:
        check_writable(root)
    except InputError as unwritable:
        from flows.runs.run import standing_run

        record = standing_run(chosen, root, **asked) if root.is_dir() else None
        if record is None:
            raise
        finish(record, root, as_json)
        why = str(unwritable.__cause__ or unwritable)
        unkept = f"the record of this run could not be written under {root / 'runs'} ({why})"
        console(stderr=True).print(f"nothing needed building; {unkept}", markup=False, soft_wrap=True)
        return
    from flows.runs.guards import heard_interrupts
    from flows.service.local_server import prefect_server

    checked = CHECKED.set(chosen)
    try:
        with prefect_server(root), heard_interrupts():
            record = _run_flow(chosen, root, asked, as_json)
    finally:
        CHECKED.reset(checked)
    finish(record, root, as_json)


def _run_flow(chosen: Any, root: Path, asked: Asked, as_json: bool) -> dict[str, Any]:
    from rich.markup import escape

    from flows.runs.record import new_run_id
    from tasks.artifacts.remote.attach import shown

    run_id = new_run_id()
    with shown_progress(as_json) as bars:
        bars.console.print(f"run {run_id}: recipe {chosen.name}, artifacts under {shown(root)}", markup=False)
        for remark in chosen.remarks:
            bars.console.print(f"[yellow]![/] {escape(remark)}")
        from flows.pretrain import pretrain

        return ended(lambda: pretrain(chosen, root=root, run_id=run_id, **asked))


def finish(record: dict[str, Any], root: Path, as_json: bool) -> None:
    """The last screen of a run, or its record and findings as JSON."""
    if as_json:
        from flows.metrics.run_metrics import gather, known_findings

        print_json({**record, "findings": gather(record, known_findings(record))})
        return
    from flows.reports.summary import print_summary

    print_summary(record, root, console())


def quieten_prefect(verbose: bool) -> None:
    """Defaults for Prefect that a user's own settings overrule; must run before Prefect is imported."""
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    if os.path.expanduser("~") == "~":
        # A container's user without a name or home; Prefect does not even load without one.
        os.environ["HOME"] = "/nonexistent"
    os.environ["PREFECT_LOGGING_COLORS"] = (
        "false"  # Its colours are sequences, which `flows.metrics.escaping` shows as text.
    )
    if not verbose:
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")


train = typer.Typer(
    name="train",
    help="A training that stands still: how far it came, and how it goes on.",
    no_args_is_help=True,
)


@train.command()
def status(root: Root = DEFAULT_ROOT, run_id: RunId = None, as_json: Json = False) -> None:
    """How far an unfinished training came: its checkpoints, and what the guard or a person decided."""
    with told_errors():
        from flows.models.training_control import unfinished

        found = unfinished(root.resolve(), run_id)
        decisions = [decision.model_dump(mode="json") for decision in found.decisions]
        told = {"run_id": found.run_id, "identity": found.identity.key, "checkpoints": found.checkpoints}
        if as_json:
            print_json({**told, "decisions": decisions})
            return
        steps = ", ".join(map(str, found.checkpoints)) or "none yet: it would go on from its start"
        lines = [f"run {found.run_id}, training {found.identity.key[:12]}", f"checkpoints after steps: {steps}"]
        lines += [_begun_by(found.other)] if found.other is not None else []
        for decision in found.decisions:
            who = "the guard" if decision.by == "guard" else "by hand"
            lines.append(f"{who}, at step {decision.step}: back to step {decision.to_step}. {decision.cause}")
            lines += [f"    {path} = {value}" for path, value in decision.settings.items()]
        console().print("\n".join(lines), markup=False)


@train.command("resume")
def resume_training(
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="What changes, e.g. --set train.schedule.peak_lr=1e-4"),
    ] = None,
    from_step: Annotated[
        int | None, typer.Option(help="Checkpoint to go on from, by the steps before it; the newest by default.")
    ] = None,
    because: Annotated[str, typer.Option(help="Why, kept with the model.")] = "",
    root: Root = DEFAULT_ROOT,
    run_id: RunId = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Go on with a training that was stopped or diverged, from a checkpoint and under other settings.

    \b
    bessemer train status
    bessemer train resume --set train.schedule.peak_lr=1e-4 --set train.clip.max_norm=0.3 --because "gradients drift"
    bessemer train resume --set train.optimizer.kind=sgd --from-step 1200

    Rate, clipping, optimizer, activation, dtype, loss scale and engine can be changed; what belongs to the data cannot.
    The change holds for all that follows, is written into the model, and thereby counts for all that is made from it.
    Without a change, `bessemer run` goes on by itself.

    Where the code or a library is no longer the one that began it, 20 of its steps are first made again, and must come
    to the same losses.
    """
    with told_errors():
        from flows.models.training_control import changes, resume, unfinished

        root = root.resolve()
        found = unfinished(root, run_id)
        if found.other is not None and not as_json:
            console().print(f"{_begun_by(found.other)}; 20 of its steps are made again and compared", markup=False)
        decision, parity = resume(found, root, changes(settings or ()), from_step, because)
        if parity is not None and not as_json:
            console().print(
                f"steps {parity.first} to {parity.last} came out the same (loss within {parity.loss:.1e}, gradient norm"
                f" {parity.grad_norm:.1e})",
                markup=False,
            )
        if not as_json:
            console().print(f"going on from step {decision.to_step} of run {found.run_id}", markup=False)
        go_on(found.recipe, root, as_json, verbose)


@train.command()
def join(
    root: Root = DEFAULT_ROOT,
    wait: Annotated[float, typer.Option(help="Seconds to wait for a training to begin.")] = 600.0,
) -> None:
    """Take this machine's share of a training of several hosts, whose files it sees under the same --root.

    \b
    on the machine with the address:
        bessemer run RECIPE --set train.ranks=16 --set train.hosts.count=2 --set train.hosts.address=10.0.0.1:29400
    on each other one:
        bessemer train join

    It may come before the other or later, and again after it failed. Its exit code is that of the training here.
    """
    with told_errors():
        from flows.models.training_control import become, wait_for_multi_host_training

        path, run = wait_for_multi_host_training(root.resolve(), wait)
        hosts = run.train.hosts
        share = run.train.ranks // hosts.count
        console().print(f"joining {hosts.count} hosts at {hosts.address} with {share} of {run.train.ranks} ranks")
        console().print(f"training {path.parent}", markup=False)
        become(path, run.train.given)


def _begun_by(other: "OtherVersion") -> str:
    """In words what changed since another version began a training."""
    code = [name for name in other.changed if name.startswith("code.")]
    rest = [
        f"{name.partition('.')[2]} {before} -> {now}"
        for name, (before, now) in other.changed.items()
        if name not in code
    ]
    edited = [f"{len(code)} definitions of the program"] if code else []
    return f"begun under another version: {', '.join([*rest, *edited])}"
