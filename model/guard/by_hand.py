"""A person's word on a run that stands still: where it goes on from, and under which settings.

What OPT-175B's crew did at dozens of restarts: another optimizer and back, an activation, a lower rate, tighter
clipping, another engine. New settings hold for all that follows, those of the optimizer too, whose state in the
checkpoint brings none of its own back (its crew lost a day to betas that did).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.block_shape import is_gated
from model.checkpoint import checkpoint_at, checkpoints
from model.complete import why_damaged
from model.errors import InputError, RecipeError
from model.guard.attempts import is_abandoned, journal_so_far, write_decision
from model.guard.decision import Decision, changed, in_force, read_decisions
from model.run_folder import CHECKPOINTS, RESULT, RUN_FILE
from model.train import read_run

OF_THE_NETWORK = ("activation", "dropout", "z_loss")
"""What can be changed of a network with weights."""
OF_THE_DATA = ("batch_rows", "batch_warmup", "length_warmup", "new_rows", "trainable")
"""What cannot be changed of a training, since it says which rows belong to which step, or what the weights are."""


def reached(out: Path) -> list[int]:
    """Steps of the whole checkpoints that a run could go on from, ascending; InputError where it is at its end or
    never began."""
    if not (out / RUN_FILE).is_file():
        raise InputError(f"no training began in {out}")
    if why_damaged(out / RESULT) is None:
        raise InputError(f"the training in {out} came to its end; there is nothing to resume")
    folder, decisions = out / CHECKPOINTS, read_decisions(out)
    return [step for step in checkpoints(folder) if not is_abandoned(folder, step, decisions)]


def intervene(
    out: Path,
    settings: Mapping[str, Any],
    to_step: int | None,
    cause: str,
    versions: Mapping[str, tuple[Any, Any]] | None = None,
) -> Decision:
    """Have the run in `out`, which nobody is training, go on from the checkpoint after `to_step` steps (the newest by
    default, 0 is the start) under other settings, by their paths, and other versions (`guard/version_change.py`).

    Raises RecipeError for settings that the run cannot take, InputError where there is no such checkpoint.
    """
    standing = reached(out)
    run, decisions = read_run(out / RUN_FILE), read_decisions(out)
    _check(in_force(run, decisions), settings)
    newest = standing[-1] if standing else 0
    target = newest if to_step is None else to_step
    if target and target not in standing:
        known = ", ".join(map(str, [0, *standing]))
        raise InputError(f"there is no checkpoint after step {target}; the run can go on from {known}")
    checkpoint = checkpoint_at(out / CHECKPOINTS, newest, {}) if newest else None
    journal = journal_so_far(out, decisions, checkpoint)
    decision = Decision(
        attempt=len(decisions) + 1,
        by="hand",
        cause=cause,
        onset=newest,
        step=max(newest - 1, 0),
        to_step=target,
        settings=dict(settings),
        versions=dict(versions or {}),
    )
    told = {"settings": decision.settings, "versions": decision.versions}
    journal.event(decision.step, "intervention", cause=cause, to_step=target, **told)
    write_decision(out, decision, journal)
    return decision


def _check(run: Any, settings: Mapping[str, Any]) -> None:
    other = changed(run, settings)
    for path in settings:
        room, _, name = path.partition(".")
        if room == "model" and name not in OF_THE_NETWORK:
            raise RecipeError(
                f"{path} cannot be changed on the way: the weights are those of another network. Of the network only"
                f" {', '.join(OF_THE_NETWORK)} can be"
            )
        if room == "train" and name.partition(".")[0] in OF_THE_DATA:
            raise RecipeError(
                f"{path} cannot be changed on the way: which rows a step reads follows from it. Start a new run from"
                f" this one's weights instead (train.base_model)"
            )
    if is_gated(other.model.activation) != is_gated(run.model.activation):
        raise RecipeError(
            f"model.activation {run.model.activation} cannot become {other.model.activation}: a gate has weights of its"
            f" own"
        )
