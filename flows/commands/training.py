"""`bessemer training`: show, resume and join a training that has not ended."""

from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.common import DEFAULT_ROOT, CommandGroup, Json, Root, RunId, Verbose, console, print_found
from flows.commands.run import run_recipe

if TYPE_CHECKING:
    from tasks.artifacts.reuse import OtherVersion


training = typer.Typer(
    name="training",
    cls=CommandGroup,
    help="Unfinished trainings: show how far one has come, resume it, join it from another host.",
    no_args_is_help=True,
)


@training.command()
def status(root: Root = DEFAULT_ROOT, run_id: RunId = None, as_json: Json = False) -> None:
    """Show an unfinished training: its checkpoints, and the decisions of the guard or of people."""
    from flows.models.training_control import unfinished

    found = unfinished(root, run_id)
    decisions = [decision.model_dump(mode="json") for decision in found.decisions]
    summary = {"run_id": found.run_id, "identity": found.identity.key, "checkpoints": found.checkpoints}
    steps = ", ".join(map(str, found.checkpoints)) or "none yet: it would start over"
    lines = [f"run {found.run_id}, training {found.identity.key[:12]}", f"checkpoints after steps: {steps}"]
    lines += [_begun_by(found.other)] if found.other is not None else []
    for decision in found.decisions:
        who = "the guard" if decision.by == "guard" else "by hand"
        lines.append(f"{who}, at step {decision.step}: back to step {decision.to_step}. {decision.cause}")
        lines += [f"    {path} = {value}" for path, value in decision.settings.items()]
    values = {**summary, "decisions": decisions}
    print_found(values, as_json, lambda shown: shown.print("\n".join(lines), markup=False))


@training.command("resume")
def resume_training(
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A changed setting, e.g. --set train.schedule.peak_lr=1e-4"),
    ] = None,
    from_step: Annotated[
        int | None, typer.Option(help="Checkpoint to resume from, by its number of steps; the newest by default.")
    ] = None,
    because: Annotated[str, typer.Option(help="The reason, kept with the model.")] = "",
    root: Root = DEFAULT_ROOT,
    run_id: RunId = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Resume a training that was stopped or diverged, from a checkpoint and with other settings.

    \b
    bessemer training status
    bessemer training resume --set train.schedule.peak_lr=1e-4 --set train.clip.max_norm=0.3 --because "gradients drift"
    bessemer training resume --set train.optimizer.kind=sgd --from-step 1200

    Rate, clipping, optimizer, activation, dtype, loss scale and engine can be changed; settings of the data cannot. The
    change is recorded in the model, and so in the identity of everything made from it. Without a change, `bessemer run`
    resumes by itself. A training that paused at `train.pause_share` goes on to its end.

    If the code or a library has changed since the training began, 20 of its steps are repeated first and must give the
    same losses.
    """
    from flows.models.training_control import changes, resume, unfinished, without_pause

    found = unfinished(root, run_id)
    if found.other is not None and not as_json:
        console().print(f"{_begun_by(found.other)}; 20 of its steps are repeated and compared", markup=False)
    decision, parity = resume(found, root, changes(settings or ()), from_step, because)
    if parity is not None and not as_json:
        console().print(
            f"steps {parity.first} to {parity.last} gave the same result (loss within {parity.loss:.1e},"
            f" gradient norm within {parity.grad_norm:.1e})",
            markup=False,
        )
    if not as_json:
        console().print(f"resuming from step {decision.to_step} of run {found.run_id}", markup=False)
    run_recipe(without_pause(found.recipe), root, {}, as_json, verbose)


@training.command()
def join(
    root: Root = DEFAULT_ROOT,
    wait: Annotated[float, typer.Option(help="Seconds to wait for a training to begin.")] = 600.0,
) -> None:
    """Run this machine's ranks of a training on several hosts that share the files under --root.

    \b
    on the machine with the address:
        bessemer run RECIPE --set train.ranks=16 --set train.hosts.count=2 --set train.hosts.address=10.0.0.1:29400
    on each of the others:
        bessemer training join

    It may start before or after the first host, and again after a failure. The exit code is that of this machine's
    ranks.
    """
    from flows.models.training_control import exec_supervisor, wait_for_multi_host_training

    path, run = wait_for_multi_host_training(root, wait)
    hosts = run.train.hosts
    share = run.train.ranks // hosts.count
    console().print(f"joining {hosts.count} hosts at {hosts.address} with {share} of {run.train.ranks} ranks")
    console().print(f"training {path.parent}", markup=False)
    exec_supervisor(path, run.train.given)


def _begun_by(other: "OtherVersion") -> str:
    """Describe what changed since another version began a training."""
    code = [name for name in other.changed if name.startswith("code.")]
    rest = [
        f"{name.partition('.')[2]} {before} -> {now}"
        for name, (before, now) in other.changed.items()
        if name not in code
    ]
    edited = [f"{len(code)} definitions of the program"] if code else []
    return f"begun under another version: {', '.join([*rest, *edited])}"
