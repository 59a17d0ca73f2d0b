"""Run the steps of one attempt; callbacks watch them.

The loop reads rows and has the engine compute. All else (tables, messages, the guard, validation, checkpoints) is done
by callbacks, in the order of their list, which `model/train/trainer.py` makes.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from model.checkpoint.metrics import MetricsLog
from model.config.train import TrainerRun
from model.data.dataset import SequenceReader
from model.distributed.process_group import Ranks
from model.distributed.protocol import LauncherChannel
from model.engines.base import Admits, Engine, StepResult
from model.engines.runtime import LossScale, seed_dropout
from model.objectives.base import Objective
from model.optim.schedules import StepSchedule, TrainingSchedule
from model.train.step_rows import StepReader


@dataclass(frozen=True)
class Attempt:
    """A training from a checkpoint towards the end of ORDER, on one rank: what the loop and its callbacks share."""

    run: TrainerRun
    """With the settings that decisions changed."""
    data: SequenceReader
    objective: Objective
    schedule: TrainingSchedule
    engine: Engine
    ranks: Ranks
    log: MetricsLog
    channel: LauncherChannel


@dataclass
class Step:
    """One step: what it reads, and what it found once it was computed."""

    number: int
    """Steps before it."""
    positions: range
    """Positions of ORDER that it reads."""
    schedule: StepSchedule
    text_tokens: int
    """Tokens of text in its rows."""
    total_tokens: int
    """Tokens of text that the run has read with this step, by earlier processes too."""
    loss_scale: float
    """With which it is computed."""
    result: StepResult | None = None
    """None where a callback skipped it."""
    overflowed: bool = False
    """Whether the loss scale was lowered because of it."""
    next_loss_scale: float = 1.0
    seconds: float = 0.0
    """Wall time of reading and computing."""


class Callback:
    """Watches the steps of an attempt.

    Every rank has the same callbacks in the same order, so that a callback may communicate with its peers on other
    ranks.
    """

    def before_step(self, number: int) -> None:
        """Act before step `number` reads its rows."""

    def skips(self, step: Step) -> bool:
        """Return whether the step is to be read and not computed, the same on all ranks."""
        del step
        return False

    def after_step(self, step: Step) -> None:
        """Act on a step that was computed or skipped. An exception ends the attempt."""


@dataclass
class StepLoop:
    """The steps of an attempt."""

    attempt: Attempt
    scale: LossScale
    admits: Admits
    callbacks: Sequence[Callback]
    tokens: int
    """Tokens of text read so far, by earlier processes too."""

    def run_from(self, first: int) -> None:
        """Run all steps from `first` to the end of ORDER. Raises what a callback raises."""
        run, schedule = self.attempt.run, self.attempt.schedule
        with StepReader(
            self.attempt.objective, self.attempt.data, schedule, run.model.context, ahead=run.train.device == "cuda"
        ) as reader:
            for number in range(first, schedule.steps):
                for callback in self.callbacks:
                    callback.before_step(number)
                step = self._run_step(number, reader)
                for callback in self.callbacks:
                    callback.after_step(step)

    def _run_step(self, number: int, reader: StepReader) -> Step:
        began, schedule = time.monotonic(), self.attempt.schedule
        rows = reader.read(number)
        self.tokens += rows.text_tokens
        step = Step(
            number,
            range(*schedule.positions(number)),
            schedule.step_schedule(number),
            rows.text_tokens,
            self.tokens,
            self.scale.value,
        )
        if not any(callback.skips(step) for callback in self.callbacks):
            self._seed_dropout(number)
            step.result = self.attempt.engine.step(rows.batch, step.schedule, step.loss_scale, self.admits)
            step.overflowed = self.scale.adapt(step.result)
        step.next_loss_scale = self.scale.value
        step.seconds = time.monotonic() - began
        return step

    def _seed_dropout(self, step: int) -> None:
        run = self.attempt.run
        if run.model.dropout:
            by_row = run.train.divides_weights or run.train.numerics == "portable"
            seed_dropout(run.train.seed, step, 0 if by_row else self.attempt.ranks.rank)
