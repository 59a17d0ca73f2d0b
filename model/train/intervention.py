"""A person's word on a run that stands still: where it goes on from, and under which settings.

What OPT-175B's crew did at dozens of restarts: another optimizer and back, an activation, a lower rate, tighter
clipping, another engine. New settings hold for all that follows, those of the optimizer too, whose state in the
checkpoint brings none of its own back (its crew lost a day to betas that did).

A run that goes on under another version of a library, of this program, or on another machine.

OPT-175B's crew did so on the way, and could only hope that nothing else changed by it. Here steps that the old version
made are made again under the new one, in a copy, and must come to the same losses and norms; what differs by more than
another order of sums is a change of the arithmetic, and the run does not go on.
"""

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from model.checkpoint.checkpoint import checkpoint_at, checkpoints
from model.checkpoint.complete_marker import why_damaged
from model.checkpoint.metrics import Journal
from model.checkpoint.run_folder import CHECKPOINTS, RESULT, RUN_FILE, checkpoint_folder
from model.config.network import is_gated
from model.config.train import TrainerRun, read_run, write_run
from model.data.dataset import SequenceReader
from model.errors import GuardError, InputError, RecipeError
from model.files import link_or_copy
from model.guard.decisions import ATTEMPTS, Decision, changed, in_force, read_decisions
from model.guard.guard import is_abandoned, journal_so_far, write_decision
from model.optim.schedules import TrainingSchedule
from model.train.micro_batch import DECISION as MICRO_BATCH
from model.train.resume import versions_that_changed

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


PARITY = "parity"

STEPS = 20

TOLERANCES = {"float32": 1e-5, "tf32": 1e-3, "bfloat16": 1e-2, "float16": 1e-2}
"""Share by which a step's loss may differ, by the type of the products; its norm by ten times as much, since it is the
root of a sum over all weights. What two orders of float32 sums differ by after 20 steps is 1e-6."""


@dataclass(frozen=True)
class Parity:
    """Steps [first, last] made twice, and by which share they differ at most."""

    first: int
    last: int
    loss: float
    grad_norm: float


def change_versions(
    out: Path, versions: Mapping[str, tuple[Any, Any]], settings: Mapping[str, Any], cause: str
) -> tuple[Decision, Parity]:
    """Have the run in `out`, which nobody is training and another version has begun, go on from its newest checkpoint
    under this one, once 20 of its steps came out the same; `settings` change behind that.

    `versions` are what is known to have changed, before and now; what checkpoints say is looked up. Raises GuardError
    where the steps differ, InputError where there are not as many to compare with.
    """
    standing = reached(out)
    run, decisions = read_run(out / RUN_FILE), read_decisions(out)
    newest = standing[-1] if standing else 0
    begin = _where_to_begin(out, standing, newest, decisions)
    state = checkpoint_at(out / CHECKPOINTS, newest, {}).state
    versions = {**versions, **versions_that_changed(run, state)}
    parity = compare(out, run, begin, versions)
    shutil.rmtree(out / PARITY)
    return intervene(out, settings, None, cause, versions), parity


def compare(out: Path, run: TrainerRun, begin: int, versions: Mapping[str, tuple[Any, Any]]) -> Parity:
    """Make the 20 steps behind the checkpoint after `begin` again, in a copy; GuardError where they differ."""
    decisions = read_decisions(out)
    made = _rows(_journal_of_newest(out), len(decisions), begin)
    assert made["step"], "steps behind the last change are in the newest checkpoint's journal"
    copy = _copied(out, run, begin, decisions)
    intervene(copy, {}, begin, "parity of another version", versions)
    _train(copy)
    again = _rows(_journal_of(copy), len(decisions) + 1, begin)
    last, same = begin + STEPS - 1, made["step"] == again["step"]
    furthest = [_furthest(made[column], again[column]) if same else math.inf for column in ("loss", "grad_norm")]
    parity = Parity(begin, last, *furthest)
    allowed = TOLERANCES[in_force(run, decisions).train.dtype]
    if parity.loss > allowed or parity.grad_norm > 10 * allowed:
        raise GuardError(
            f"this version computes something else: steps {parity.first} to {parity.last}, made again, differ in loss"
            f" by up to {parity.loss:.2e} and in gradient norm by {parity.grad_norm:.2e}, where {allowed:.0e} and"
            f" {10 * allowed:.0e} are another order of sums. The run stands as it was, both tables in {copy}."
            f" Put the old version back, or begin anew."
        )
    return parity


def _where_to_begin(out: Path, standing: list[int], newest: int, decisions: list[Decision]) -> int:
    """The newest place with a checkpoint (or the start) from which one attempt made 20 steps up to the newest."""
    last_change = decisions[-1].to_step if decisions else 0
    fitting = [step for step in {0, *standing} if last_change <= step <= newest - STEPS]
    if not fitting:
        raise InputError(
            f"the run has made {newest - last_change} steps since its start or the last change of it, and to compare"
            f" this version with the one that made them takes {STEPS} steps behind a checkpoint. Put the old version"
            f" back and go on with it, or begin anew: little is lost."
        )
    return max(fitting)


def _journal_of_newest(out: Path) -> Journal:
    """The journal up to the newest whole checkpoint of a run."""
    standing = reached(out)
    checkpoint = checkpoint_at(out / CHECKPOINTS, standing[-1], {}) if standing else None
    return journal_so_far(out, read_decisions(out), checkpoint)


def _journal_of(copy: Path) -> Journal:
    """Of a copy that came to its pause, or to its end."""
    return Journal.read(copy / RESULT) if why_damaged(copy / RESULT) is None else _journal_of_newest(copy)


def _rows(journal: Journal, attempt: int, begin: int) -> dict[str, list[Any]]:
    """METRICS of the 20 steps from `begin` on, as that attempt made them, or the one before it."""
    metrics = journal.tables()["metrics"]
    steps = metrics.column("step")
    mine = pc.and_(pc.greater_equal(steps, begin), pc.less(steps, begin + STEPS))
    return metrics.filter(pc.and_(mine, pc.equal(metrics.column("attempt"), attempt))).to_pydict()


def _copied(out: Path, run: TrainerRun, begin: int, decisions: list[Decision]) -> Path:
    """A run of its own that stands where this one stood after `begin` steps, and pauses 20 steps further."""
    copy = out / PARITY
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    if begin:
        target = checkpoint_folder(copy / CHECKPOINTS, begin)
        shutil.copytree(checkpoint_folder(out / CHECKPOINTS, begin), target, copy_function=link_or_copy)
    for decision in decisions:
        name = f"{decision.attempt:04d}"
        shutil.copytree(out / ATTEMPTS / name, copy / ATTEMPTS / name)
    if (out / MICRO_BATCH).exists():
        shutil.copy(out / MICRO_BATCH, copy / MICRO_BATCH)
    positions = SequenceReader(run.sequences, run.order, run.model.vocab_size).positions
    _, end = TrainingSchedule(run.train, positions, run.model.context).positions(begin + STEPS - 1)
    train = run.train.model_copy(update={"pause_share": end / positions if end < positions else None})
    told = run.model_copy(update={"out": copy, "train": train})
    write_run(copy / RUN_FILE, told)
    return copy


def _train(copy: Path) -> None:
    command = [sys.executable, "-m", "model.train", str(copy / RUN_FILE), str(os.getpid())]
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        words = ended.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise GuardError(f"this version did not come through {STEPS} steps that the run has made: {words[0]}")


def _furthest(before: list[float], now: list[float]) -> float:
    """Largest difference by share; infinite where one of the two alone is no number."""
    shares = [
        0.0 if _same(one, other) else abs(one - other) / abs(one or 1.0) for one, other in zip(before, now, strict=True)
    ]
    return math.inf if any(map(math.isnan, shares)) else max(shares)


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
