"""The guard of a run: asked before the weights move, told what became of each step, and asked what to do then.

Going back: the decision is written before anything is acted on, or the run ends with a report.

Decisions on disk: durable before they are acted on, so that a run that is killed in between acts on them again.

`attempts/0001/` holds the first decision with what the run had written about itself by then; a folder without
COMPLETE is damaged, for it is renamed into place as a whole.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from model.checkpoint.checkpoint import Checkpoint, checkpoint_state, remove_checkpoint, standing_steps
from model.checkpoint.complete_marker import complete
from model.checkpoint.metrics import Journal
from model.checkpoint.run_folder import CHECKPOINTS
from model.config.train import TrainerRun
from model.distributed.process_group import Ranks
from model.distributed.protocol import LauncherChannel
from model.engines.base import StepResult
from model.errors import Numerics
from model.files import sync_directory, write_synced
from model.guard.change_points import RISEN
from model.guard.decisions import ATTEMPTS, DECISION, Decision, skips
from model.guard.detection import Detector, Divergence, Level
from model.guard.policy import Health, NothingLeft, decide
from model.nn.factory import activation_range_names
from model.optim.schedules import TrainingSchedule


class Guard:
    """Of one attempt; `run` is as it began, `state` what the checkpoint held from which the attempt goes on.

    A run whose guard is off leaves out non-finite steps alone, and can go back nowhere.
    """

    def __init__(self, run: TrainerRun, decisions: Sequence[Decision], state: dict[str, Any] | None = None) -> None:
        self._run = run
        self._config = run.train.guard
        self._decisions = decisions
        state = state or {}
        self._detector = Detector(
            self._config, run.train.max_nonfinite_steps, state.get("detector"), activation_range_names(run.model)
        )
        self._health = Health(self._config.healthy_steps, state.get("health"))

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON."""
        return {"detector": self._detector.state, "health": self._health.state}

    @property
    def to_keep(self) -> list[int]:
        """Checkpoints that must not be deleted, by the steps before them."""
        return self._health.to_keep if self._config.enabled else []

    def skips(self, begin: int, end: int) -> bool:
        """Whether the positions [begin, end) of ORDER are left out without a look."""
        return skips(self._decisions, begin, end)

    def admits(self, loss: float, grad_norm: float) -> bool:
        """Whether the weights may move by a step with this loss and gradient norm."""
        return self._detector.level(loss, grad_norm) == "clean"

    def saved(self, steps: int) -> None:
        """A checkpoint is about to be written after so many steps. One that somebody asked for in between is never gone
        back to: where the guard goes is the same whether a run was disturbed or not."""
        if steps % self._run.train.checkpoint_steps == 0:
            self._health.saved(steps)

    def step_done(self, step: int, done: StepResult, *, overflow: bool, scale: float) -> Divergence | None:
        """Take in what became of a step; the divergence that it completes, if any.

        `overflow`: the loss scale answers it. `scale` is the one that the step was computed with.
        """
        # `admits` has judged finite numbers: the step was applied or not by its word.
        level: Level = "clean" if overflow or done.applied else "spike" if done.finite else "nonfinite"
        limit = RISEN if self._replayed(step) is None else RISEN / 2
        found = self._detector.take(
            step, level, done.loss, done.grad_norm, done.largest_activations, halved=overflow, limit=limit
        )
        clean = done.applied and scale >= 1
        self._health.step_done(step + 1, clean=clean, suspected=self._detector.suspects)
        return found

    def recovered(self, step: int) -> Decision | None:
        """The guard's way back that `step`, which completed no divergence, shows to have helped: everything that rises
        did not rise again, by half the usual limit, over as many steps behind the trouble as make a checkpoint healthy.
        """
        decision = self._replayed(step)
        return decision if decision and step == decision.step + self._config.healthy_steps else None

    def _replayed(self, step: int) -> Decision | None:
        """The guard's last way back, while it is watched whether its cause is gone."""
        last = self._decisions[-1] if self._decisions else None
        if last is None or last.by == "hand" or step > last.step + self._config.healthy_steps:
            return None
        return last

    def decide(
        self,
        divergence: Divergence,
        standing: Iterable[int],
        positions: Callable[[int], tuple[int, int]],
        steps: int,
    ) -> Decision:
        """The way back; NothingLeft where there is none."""
        if not self._config.enabled:
            raise NothingLeft("the guard is off")
        return decide(self._run, self._decisions, divergence, self._health, standing, positions, steps)


DIVERGED = "diverged"
"""Folder with the tables of a run that ended so."""


def go_back(
    run: TrainerRun,
    decisions: Sequence[Decision],
    divergence: Divergence,
    guard: Guard,
    curriculum: TrainingSchedule,
    journal: Journal,
    ranks: Ranks,
    link: LauncherChannel,
) -> None:
    """Write down where the next attempt goes on from, and why. Raises Numerics where nothing is left to be tried.

    All ranks come here with the same divergence, and wait for the first one, which writes.
    """
    standing = standing_steps(run.out / CHECKPOINTS)
    try:
        decision = guard.decide(divergence, standing, curriculum.positions, curriculum.steps)
    except NothingLeft as reason:
        _end(run, decisions, divergence, str(reason), curriculum, journal, ranks, link)
    # The first rank deletes nothing before all have seen what stands.
    ranks.barrier()
    skipped = range(*decision.skipped) if decision.skipped else None
    facts = decision.model_dump(mode="json", include={"cause", "onset", "to_step", "firing", "settings"})
    journal.event(divergence.step, "rollback", "Numerics", skipped, **facts)
    if ranks.is_first:
        write_decision(run.out, decision, journal)
    link.send("event", event="rollback", step=divergence.step, skipped=decision.skipped, **facts)
    ranks.barrier()


def _end(
    run: TrainerRun,
    decisions: Sequence[Decision],
    divergence: Divergence,
    reason: str,
    curriculum: TrainingSchedule,
    journal: Journal,
    ranks: Ranks,
    link: LauncherChannel,
) -> NoReturn:
    begin, end = curriculum.positions(divergence.onset)[0], curriculum.positions(divergence.step)[1]
    journal.event(divergence.step, "diverged", "Numerics", range(begin, end), cause=divergence.cause)
    link.send("event", event="diverged", step=divergence.step, cause=divergence.cause)
    told = run.out / DIVERGED
    if ranks.is_first:
        shutil.rmtree(told, ignore_errors=True)
        told.mkdir()
        journal.write(told)
        sync_directory(told)
    tried = [_told(decision) for decision in decisions if decision.by == "guard"]
    raise Numerics(
        f"training diverged: {divergence.cause}, the last at step {divergence.step} (positions {begin} to {end} of"
        f" ORDER; trouble began at step {divergence.onset}), and {reason}."
        + (f" Tried before: {'; '.join(tried)}." if tried else "")
        + f" Its tables are in {told}. Lower train.schedule.peak_lr, or see these documents with `bessemer data step`."
    )


def _told(decision: Decision) -> str:
    changes = ", ".join(f"{path} = {value}" for path, value in decision.settings.items()) or "nothing else changed"
    begin, end = decision.skipped or (0, 0)
    return f"back from step {decision.step} to {decision.to_step}, positions {begin} to {end} left out, {changes}"


def write_decision(out: Path, decision: Decision, journal: Journal) -> None:
    """Make a decision stand, and the journal of the run up to it."""
    folder = out / ATTEMPTS
    temporary = folder / f"tmp-{decision.attempt:04d}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    journal.write(temporary)
    write_synced(temporary / DECISION, [decision.model_dump_json(indent=1).encode()])
    complete(temporary)
    sync_directory(temporary)
    os.rename(temporary, folder / f"{decision.attempt:04d}")
    sync_directory(folder)


def journal_so_far(out: Path, decisions: Sequence[Decision], checkpoint: Checkpoint | None) -> Journal:
    """What the run has written up to `checkpoint`, or with the last decision where no checkpoint was made since."""
    written = checkpoint.state["attempt"] if checkpoint else 0
    if written < len(decisions):
        journal = Journal.read(out / ATTEMPTS / f"{decisions[-1].attempt:04d}")
    else:
        journal = checkpoint.journal() if checkpoint else Journal()
    journal.attempt = len(decisions)
    return journal


def is_abandoned(checkpoints: Path, step: int, decisions: Sequence[Decision]) -> bool:
    """Whether the checkpoint after `step` steps lies behind a place gone back to since it was written."""
    written = checkpoint_state(checkpoints, step)["attempt"]
    return any(step > decision.to_step for decision in decisions[written:])


def drop_abandoned(checkpoints: Path, decisions: Sequence[Decision]) -> None:
    """Delete the checkpoints that are abandoned."""
    for step in standing_steps(checkpoints):
        if is_abandoned(checkpoints, step, decisions):
            remove_checkpoint(checkpoints, step)
