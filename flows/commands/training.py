"""A training that stands still: looking at it, and going on under other settings."""

from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.options import DEFAULT_ROOT, Json, Root, RunId, Verbose
from flows.commands.output import console, print_json, told_errors
from flows.commands.running import go_on

if TYPE_CHECKING:
    from tasks.other_versions import OtherVersion

train = typer.Typer(
    name="train",
    help="A training that stands still: how far it came, and how it goes on.",
    no_args_is_help=True,
)


@train.command()
def status(root: Root = DEFAULT_ROOT, run_id: RunId = None, as_json: Json = False) -> None:
    """How far an unfinished training came: its checkpoints, and what the guard or a person decided."""
    with told_errors():
        from flows.intervening import unfinished

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
        from flows.intervening import changes, resume, unfinished

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
        from flows.joining import become, training_of_several_hosts

        path, run = training_of_several_hosts(root.resolve(), wait)
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
