"""Resume an interrupted run under other settings, or under another version of its software or machine.

`intervene` records a manual decision: the checkpoint to resume from and the settings that change. OPT-175B's crew did
so at dozens of restarts: another optimizer and back, an activation, a lower rate, tighter clipping (Zhang et al. 2022).
New settings hold for all later steps, those of the optimizer too, whose state in the checkpoint brings none of its own
back; OPT-175B lost a day to betas that did.

`change_versions` accepts another version of a library, of this program, or another machine, after a parity check: steps
that the old version computed are computed again in a copy of the run, and their losses and gradient norms must agree.
A difference beyond what another order of sums explains is a change of the arithmetic, and the run does not go on.
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

from model.checkpoint.checkpoint import checkpoint_at, checkpoint_state, intact_steps
from model.checkpoint.complete_marker import find_damage
from model.checkpoint.metrics import MetricsLog
from model.checkpoint.run_folder import CHECKPOINTS, MICRO_BATCH, RESULT, RUN_FILE, checkpoint_folder
from model.config.block import is_gated
from model.config.train import TrainerRun, read_run, write_run
from model.data.dataset import SequenceReader
from model.errors import GuardError, InputError, RecipeError
from model.files import link_or_copy
from model.guard.decisions import ATTEMPTS, Decision, effective_config, read_decisions, with_settings
from model.guard.guard import is_abandoned, load_metrics_log, write_decision
from model.guard.policy import check_policy
from model.optim.schedules import TrainingSchedule
from model.train.resume import changed_versions

CHANGEABLE_OF_MODEL = ("activation", "dropout", "z_loss")
"""Settings of a trained network that may change."""

FIXED_OF_TRAIN = ("batch_rows", "batch_warmup", "length_warmup", "new_rows", "trainable")
"""Settings of a training that may not change, since they decide which rows a step reads, or what the weights are."""

PARITY = "parity"

STEPS = 20
"""Steps that a parity check computes again."""

TOLERANCES = {"float32": 1e-5, "tf32": 1e-3, "bfloat16": 1e-2, "float16": 1e-2}
"""Relative difference that a step's loss may have, by the type of the products. Its gradient norm, the root of a sum
over all weights, may differ ten times as much. Two orders of float32 sums differ by 1e-6 after 20 steps."""


def resumable_steps(out: Path) -> list[int]:
    """Return the steps of the intact checkpoints that a run can resume from, ascending.

    Raises InputError where the run is finished or never began.
    """
    if not (out / RUN_FILE).is_file():
        raise InputError(f"no training began in {out}")
    if find_damage(out / RESULT) is None:
        raise InputError(f"the training in {out} is finished; there is nothing to resume")
    folder, decisions = out / CHECKPOINTS, read_decisions(out)
    return [step for step in intact_steps(folder) if not is_abandoned(folder, step, decisions)]


def intervene(
    out: Path,
    settings: Mapping[str, Any],
    to_step: int | None,
    cause: str,
    versions: Mapping[str, tuple[Any, Any]] | None = None,
) -> Decision:
    """Write the decision that the run in `out` resumes from the checkpoint after `to_step` steps under new settings.

    No process may be training the run. `to_step` is the newest checkpoint by default; 0 is the start. `settings` maps
    paths to values, and `versions` names what changed of the program and the machine (`change_versions`). Raises
    RecipeError for settings that the run cannot have, InputError where there is no such checkpoint.
    """
    steps = resumable_steps(out)
    run, decisions = read_run(out / RUN_FILE), read_decisions(out)
    _check_settings(effective_config(run, decisions), settings)
    newest = steps[-1] if steps else 0
    target = newest if to_step is None else to_step
    if target and target not in steps:
        known = ", ".join(map(str, [0, *steps]))
        raise InputError(f"there is no checkpoint after step {target}; the run can resume from {known}")
    checkpoint = checkpoint_at(out / CHECKPOINTS, newest, {}) if newest else None
    log = load_metrics_log(out, decisions, checkpoint)
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
    log.event(
        decision.step,
        "intervention",
        cause=cause,
        to_step=target,
        settings=decision.settings,
        versions=decision.versions,
    )
    write_decision(out, decision, log)
    return decision


def _check_settings(run: TrainerRun, settings: Mapping[str, Any]) -> None:
    other = with_settings(run, settings)
    for path in settings:
        section, _, name = path.partition(".")
        if section == "model" and name not in CHANGEABLE_OF_MODEL:
            raise RecipeError(
                f"{path} cannot be changed during training: the weights belong to the network as it is. Of the network"
                f" only {', '.join(CHANGEABLE_OF_MODEL)} can be changed"
            )
        if section == "train" and name.partition(".")[0] in FIXED_OF_TRAIN:
            raise RecipeError(
                f"{path} cannot be changed during training: it decides which rows a step reads, or what the weights"
                f" are. Start a new run from this one's weights instead (train.base_model)"
            )
    if is_gated(other.model.activation) != is_gated(run.model.activation):
        raise RecipeError(
            f"model.activation {run.model.activation} cannot become {other.model.activation}: a gated activation has"
            f" weights of its own"
        )
    if settings.get("train.micro_batch_rows") == "auto":
        raise RecipeError(
            "train.micro_batch_rows cannot become auto during training: a size is found before the first step alone."
            " Set a number"
        )
    check_policy(other)


@dataclass(frozen=True)
class Parity:
    """Result of a parity check: steps [first, last] computed twice, and their largest relative differences."""

    first: int
    last: int
    loss: float
    grad_norm: float


def change_versions(
    out: Path, versions: Mapping[str, tuple[Any, Any]], settings: Mapping[str, Any], cause: str
) -> tuple[Decision, Parity]:
    """Write the decision that the run in `out` resumes from its newest checkpoint under this version of the program.

    No process may be training the run. First 20 steps are computed again and must agree; `settings` change afterwards.
    `versions` maps what the caller knows to have changed to (before, now); what checkpoints record is added. Raises
    GuardError where the steps differ, InputError where the run has too few steps to compare with.
    """
    steps = resumable_steps(out)
    run, decisions = read_run(out / RUN_FILE), read_decisions(out)
    newest = steps[-1] if steps else 0
    begin = _find_start(steps, newest, decisions)
    versions = {**versions, **changed_versions(run, checkpoint_state(out / CHECKPOINTS, newest))}
    parity = compare_versions(out, run, begin, versions)
    shutil.rmtree(out / PARITY)
    return intervene(out, settings, None, cause, versions), parity


def _find_start(steps: list[int], newest: int, decisions: list[Decision]) -> int:
    """Return the newest checkpoint (or 0) after which the last attempt made 20 steps before the newest checkpoint."""
    last_change = decisions[-1].to_step if decisions else 0
    fitting = [step for step in {0, *steps} if last_change <= step <= newest - STEPS]
    if not fitting:
        raise InputError(
            f"the run has made {newest - last_change} steps since its start or its last change, and comparing this"
            f" version with the one that made them needs {STEPS} steps after a checkpoint. Go on with the old version,"
            f" or start a new run: little is lost."
        )
    return max(fitting)


def compare_versions(out: Path, run: TrainerRun, begin: int, versions: Mapping[str, tuple[Any, Any]]) -> Parity:
    """Compute the 20 steps after the checkpoint `begin` again, in a copy of the run.

    Raises GuardError where they differ, InputError where all of them were skipped.
    """
    decisions = read_decisions(out)
    before = _metrics_of(_newest_log(out), len(decisions), begin)
    if not before["step"]:
        raise InputError(
            f"steps {begin} to {begin + STEPS - 1} were all skipped after a rollback, so that nothing of them can be"
            f" compared. Go on with the old version for {STEPS} more steps, or start a new run."
        )
    copy = _copy_run(out, run, begin, decisions)
    intervene(copy, {"train.pause_share": _share_after(run, begin)}, begin, "parity of another version", versions)
    _train(copy)
    # The copy has paused, or finished.
    log = MetricsLog.read(copy / RESULT) if find_damage(copy / RESULT) is None else _newest_log(copy)
    now = _metrics_of(log, len(decisions) + 1, begin)
    comparable = before["step"] == now["step"]
    loss, grad_norm = (
        _max_difference(before[column], now[column]) if comparable else math.inf for column in ("loss", "grad_norm")
    )
    parity = Parity(begin, begin + STEPS - 1, loss, grad_norm)
    allowed = TOLERANCES[effective_config(run, decisions).train.dtype]
    if parity.loss > allowed or parity.grad_norm > 10 * allowed:
        raise GuardError(
            f"this version computes something else: steps {parity.first} to {parity.last}, computed again, differ in"
            f" loss by up to {parity.loss:.2e} and in gradient norm by up to {parity.grad_norm:.2e}; another order of"
            f" sums explains {allowed:.0e} and {10 * allowed:.0e}. The run is unchanged; the tables of both versions"
            f" are in {copy}. Go back to the old version, or start a new run."
        )
    return parity


def _newest_log(out: Path) -> MetricsLog:
    """Return the metrics log up to the newest intact checkpoint of a run."""
    steps = resumable_steps(out)
    checkpoint = checkpoint_at(out / CHECKPOINTS, steps[-1], {}) if steps else None
    return load_metrics_log(out, read_decisions(out), checkpoint)


def _metrics_of(log: MetricsLog, attempt: int, begin: int) -> dict[str, list[Any]]:
    """Return the rows of METRICS that `attempt` wrote for the 20 steps from `begin` on."""
    metrics = log.tables()["metrics"]
    steps = metrics.column("step")
    mine = pc.and_(pc.greater_equal(steps, begin), pc.less(steps, begin + STEPS))
    return metrics.filter(pc.and_(mine, pc.equal(metrics.column("attempt"), attempt))).to_pydict()


def _copy_run(out: Path, run: TrainerRun, begin: int, decisions: list[Decision]) -> Path:
    """Copy the run as it was after `begin` steps into a folder of its own."""
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
    write_run(copy / RUN_FILE, run.model_copy(update={"out": copy}))
    return copy


def _share_after(run: TrainerRun, begin: int) -> float | None:
    """Return the share of the sequences at which the run pauses 20 steps after step `begin`; None at its end."""
    positions = SequenceReader(run.sequences, run.order, run.model.vocab_size).positions
    _, end = TrainingSchedule(run.train, positions, run.model.context).positions(begin + STEPS - 1)
    return end / positions if end < positions else None


def _train(copy: Path) -> None:
    command = [sys.executable, "-m", "model.train", str(copy / RUN_FILE), str(os.getpid())]
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        reason = ended.stderr.strip().splitlines()[-1:] or ["no error was reported"]
        raise GuardError(f"this version failed within {STEPS} steps that the run has made before: {reason[0]}")


def _max_difference(before: list[float], now: list[float]) -> float:
    """Return the largest relative difference; infinity where only one of two values is NaN."""
    differences = [
        0.0 if old == new or (math.isnan(old) and math.isnan(new)) else abs(old - new) / abs(old or 1.0)
        for old, new in zip(before, now, strict=True)
    ]
    return math.inf if any(map(math.isnan, differences)) else max(differences)
