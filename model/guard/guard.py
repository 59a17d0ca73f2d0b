"""Guard one attempt: judge each step before the weights change, detect divergence, and roll back.

A rollback is a decision on disk, durable before it is acted on, so that a run that is killed in between acts on it
again. `attempts/0001/` holds the first decision with the metrics log up to it. It is renamed into place as a whole, so
that a folder without COMPLETE is damaged.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from model.checkpoint.checkpoint import Checkpoint, checkpoint_state, checkpoint_steps, discard
from model.checkpoint.complete_marker import complete
from model.checkpoint.metrics import MetricsLog
from model.checkpoint.run_folder import CHECKPOINTS, checkpoint_folder
from model.checkpoint.state import GuardState
from model.config.train import TrainerRun
from model.distributed.process_group import Ranks
from model.distributed.protocol import LauncherChannel
from model.engines.base import Limits, StepResult
from model.errors import Numerics
from model.files import sync_directory, write_synced
from model.guard.change_points import RISEN
from model.guard.decisions import ATTEMPTS, DECISION, Decision
from model.guard.detection import Detector, Divergence, Level
from model.guard.policy import Health, RecoveryExhausted, decide
from model.nn.factory import activation_range_names
from model.optim.schedules import TrainingSchedule

DIVERGED = "diverged"
"""Folder with the tables of a run that ended because it diverged."""


class Guard:
    """The guard of one attempt.

    `run` has the settings that decisions changed, and `state` is the guard's in the checkpoint from which the attempt
    resumes. With the guard off, only non-finite steps are rejected, and no rollback is possible.
    """

    def __init__(self, run: TrainerRun, decisions: Sequence[Decision], state: GuardState | None = None) -> None:
        self._run = run
        self._config = run.train.guard
        self._decisions = decisions
        names = activation_range_names(run.model)
        self._detector = Detector(self._config, state["detector"] if state else None, names)
        self.health = Health(self._config.healthy_steps, state["health"] if state else None)

    @property
    def state(self) -> GuardState:
        return {"detector": self._detector.state, "health": self.health.state}

    @property
    def to_keep(self) -> list[int]:
        """Checkpoints that must not be deleted, by the steps before them."""
        return self.health.to_keep if self._config.enabled else []

    def skips(self, begin: int, end: int) -> bool:
        """Return whether a decision skips any of the positions [begin, end) of ORDER."""
        ranges = (decision.skipped for decision in self._decisions if decision.skipped is not None)
        return any(begin < last and first < end for first, last in ranges)

    def limits(self) -> Limits:
        """Return the largest numbers with which the next step may change the weights."""
        return self._detector.limits()

    def saved(self, steps: int) -> None:
        """Note that a checkpoint is written after `steps` steps.

        One written because of a stop request is no rollback target: the guard decides the same whether a run was
        interrupted or not.
        """
        if steps % self._run.train.checkpoint_steps == 0:
            self.health.saved(steps)

    def step_done(self, step: int, done: StepResult, *, overflow: bool, scale: float) -> Divergence | None:
        """Add the outcome of a step; return the divergence that it completes, if any.

        `overflow` says whether the loss scale was lowered for it, and `scale` is the one it was computed with.
        """
        # Finite numbers were compared with the limits, so whether the step was applied says its level.
        level: Level = "clean" if overflow or done.applied else "spike" if done.finite else "nonfinite"
        limit = RISEN / 2 if self._replays(step) else RISEN
        found = self._detector.update(
            step, level, done.loss, done.grad_norm, done.largest_activations, halved=overflow, limit=limit
        )
        clean = done.applied and scale >= 1
        self.health.step_done(step + 1, clean=clean, suspected=self._detector.suspects)
        return found

    def recovered(self, step: int, positions: Callable[[int], tuple[int, int]]) -> Decision | None:
        """Return the guard's last decision where the computed `step`, which completed no divergence, shows that it
        helped; `positions` are those of ORDER that a step reads.

        It helped if nothing rose again, by half the usual limit, over `healthy_steps` steps after the divergence. Where
        the last of them is skipped, the next computed step shows it.
        """
        last = self._last_of_guard
        if last is None or step < (end := last.step + self._config.healthy_steps):
            return None
        return last if all(self.skips(*positions(skipped)) for skipped in range(end, step)) else None

    def _replays(self, step: int) -> bool:
        """Return whether the data and steps of the guard's last divergence are being replayed."""
        last = self._last_of_guard
        return last is not None and step <= last.step + self._config.healthy_steps

    @property
    def _last_of_guard(self) -> Decision | None:
        """The last decision, if it is the guard's."""
        return self._decisions[-1] if self._decisions and self._decisions[-1].by == "guard" else None


def roll_back(
    run: TrainerRun,
    decisions: Sequence[Decision],
    divergence: Divergence,
    guard: Guard,
    curriculum: TrainingSchedule,
    log: MetricsLog,
    ranks: Ranks,
    channel: LauncherChannel,
) -> None:
    """Write the decision from where the next attempt resumes; raise Numerics where the guard can do no more.

    All ranks call it with the same divergence and wait for the first one, which writes.
    """
    existing = checkpoint_steps(run.out / CHECKPOINTS)
    try:
        decision = decide(run, decisions, divergence, guard.health, existing, curriculum.positions, curriculum.steps)
    except RecoveryExhausted as reason:
        _give_up(run, decisions, divergence, str(reason), curriculum, log, ranks, channel)
    # The first rank must delete no checkpoint before all ranks have listed them.
    ranks.barrier()
    assert decision.skipped is not None, "the guard skips what diverged"
    facts = decision.model_dump(mode="json", include={"cause", "onset", "to_step", "firing", "settings"})
    log.event(divergence.step, "rollback", "Numerics", range(*decision.skipped), **facts)
    if ranks.is_first:
        write_decision(run.out, decision, log)
    channel.send(
        {
            "kind": "event",
            "event": "rollback",
            "step": divergence.step,
            "skipped": decision.skipped,
            "cause": decision.cause,
            "onset": decision.onset,
            "to_step": decision.to_step,
            "firing": decision.firing,
            "settings": facts["settings"],
        }
    )
    ranks.barrier()


def _give_up(
    run: TrainerRun,
    decisions: Sequence[Decision],
    divergence: Divergence,
    reason: str,
    curriculum: TrainingSchedule,
    log: MetricsLog,
    ranks: Ranks,
    channel: LauncherChannel,
) -> NoReturn:
    begin, end = curriculum.positions(divergence.onset)[0], curriculum.positions(divergence.step)[1]
    log.event(divergence.step, "diverged", "Numerics", range(begin, end), cause=divergence.cause)
    channel.send_event("diverged", step=divergence.step, cause=divergence.cause)
    folder = run.out / DIVERGED
    if ranks.is_first:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        log.write(folder)
        sync_directory(folder)
    tried = [_describe(decision) for decision in decisions if decision.by == "guard"]
    raise Numerics(
        f"training diverged: {divergence.cause}, the last at step {divergence.step} (positions {begin} to {end} of"
        f" ORDER; the divergence began at step {divergence.onset}), and {reason}."
        + (f" Tried before: {'; '.join(tried)}." if tried else "")
        + f" Its tables are in {folder}. Lower train.schedule.peak_lr, or inspect these documents with"
        " `bessemer data step`."
    )


def _describe(decision: Decision) -> str:
    changes = ", ".join(f"{path} = {value}" for path, value in decision.settings.items()) or "nothing else changed"
    begin, end = decision.skipped or (0, 0)
    return f"rollback from step {decision.step} to {decision.to_step}, positions {begin} to {end} skipped, {changes}"


def write_decision(out: Path, decision: Decision, log: MetricsLog) -> None:
    """Write a decision and the metrics log up to it, durable when this returns."""
    folder = out / ATTEMPTS
    temporary = folder / f"tmp-{decision.attempt:04d}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    log.write(temporary)
    write_synced(temporary / DECISION, [decision.model_dump_json(indent=1).encode()])
    complete(temporary)
    os.rename(temporary, folder / f"{decision.attempt:04d}")
    sync_directory(folder)


def load_metrics_log(out: Path, decisions: Sequence[Decision], checkpoint: Checkpoint | None) -> MetricsLog:
    """Return the log up to `checkpoint`, or that of the last decision where no checkpoint was written since."""
    written = checkpoint.state["attempt"] if checkpoint else 0
    if written < len(decisions):
        log = MetricsLog.read(out / ATTEMPTS / f"{decisions[-1].attempt:04d}")
    else:
        log = checkpoint.metrics_log() if checkpoint else MetricsLog()
    log.attempt = len(decisions)
    return log


def is_abandoned(checkpoints: Path, step: int, decisions: Sequence[Decision]) -> bool:
    """Return whether a decision since the checkpoint after `step` steps rolled back to before it."""
    written = checkpoint_state(checkpoints, step)["attempt"]
    return any(step > decision.to_step for decision in decisions[written:])


def delete_abandoned(checkpoints: Path, decisions: Sequence[Decision]) -> None:
    """Delete all abandoned checkpoints."""
    for step in checkpoint_steps(checkpoints):
        if is_abandoned(checkpoints, step, decisions):
            discard(checkpoint_folder(checkpoints, step))
