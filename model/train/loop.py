"""Run the steps of one attempt; callbacks watch them.

The loop reads rows and has the engine compute. All else (tables, messages, the guard, validation, checkpoints) is done
by callbacks, in the order of their list, which `model/train/trainer.py` makes.

On a CUDA device a step's gradient is launched before the host waits for the numbers of the step before, so that the
device always has work. By these numbers the guard limits the update, which is launched behind the gradient: its
decisions are those of a loop that waits. Where callbacks act on the weights after a step, the next begins afterwards.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from model.checkpoint.metrics import MetricsLog
from model.config.train import TrainConfig, TrainerRun
from model.data.dataset import SequenceReader
from model.distributed.process_group import Ranks
from model.distributed.protocol import LauncherChannel
from model.engines.base import Engine, Limits, Reading, StepResult
from model.engines.runtime import LossScale, seed_dropout
from model.objectives.base import Objective, map_batch
from model.optim.schedules import StepSchedule, TrainingSchedule


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
    began: float
    """On the monotonic clock."""
    is_skipped: bool = False
    """Whether a callback had it read and not computed."""
    reading: Reading | None = None
    """Since its update was launched; None where it is skipped."""
    result: StepResult | None = None
    """Of `reading`."""
    overflowed: bool = False
    """Whether the loss scale was lowered because of it."""
    next_loss_scale: float = 1.0
    seconds: float = 0.0
    """Wall time of reading and computing, from when the step before was done."""


class Callback:
    """Watches the steps of an attempt.

    Every rank has the same callbacks in the same order, so that a callback may communicate with its peers on other
    ranks.
    """

    def before_step(self, number: int) -> None:
        """Act before step `number` reads its rows; after_step of the one before may still follow."""

    def skips(self, step: Step) -> bool:
        """Return whether the step is to be read and not computed, the same on all ranks."""
        del step
        return False

    def rests_after(self, number: int) -> bool:
        """Return whether `after_step` acts on the weights after step `number`, the same on all ranks."""
        del number
        return False

    def after_step(self, step: Step) -> None:
        """Act on a step that was computed or skipped. An exception ends the attempt."""


@dataclass
class StepLoop:
    """The steps of an attempt."""

    attempt: Attempt
    scale: LossScale
    limits: Callable[[], Limits]
    """Of the next step, by all steps before it."""
    callbacks: Sequence[Callback]
    tokens: int
    """Tokens of text read so far, by earlier processes too."""
    _concluded: float = field(default=0.0, init=False)
    """When the numbers of the last step were there, on the monotonic clock."""

    def run_from(self, first: int) -> None:
        """Run all steps from `first` to the end of ORDER. Raises what a callback raises."""
        run, schedule = self.attempt.run, self.attempt.schedule
        unread: Step | None = None
        with StepReader(
            self.attempt.objective, self.attempt.data, schedule, run.model.context, ahead=run.train.device == "cuda"
        ) as reader:
            for number in range(first, schedule.steps):
                for callback in self.callbacks:
                    callback.before_step(number)
                step = self._begin(number, reader)
                if unread is not None:
                    self._conclude(unread)
                if not step.is_skipped:
                    step.reading = self.attempt.engine.finish(self.limits())
                # All are asked, since they may communicate.
                rests = [callback.rests_after(number) for callback in self.callbacks]
                is_last = number + 1 == schedule.steps
                unread = step if runs_ahead(run.train) and not any(rests) and not is_last else None
                if unread is None:
                    self._conclude(step)

    def _begin(self, number: int, reader: "StepReader") -> Step:
        """Read a step's rows and launch the computation of its gradient."""
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
            began,
        )
        step.is_skipped = any(callback.skips(step) for callback in self.callbacks)
        if not step.is_skipped:
            self._seed_dropout(number)
            self.attempt.engine.begin(rows.batch, step.schedule, step.loss_scale)
        return step

    def _conclude(self, step: Step) -> None:
        """Wait for a step's numbers, and have the callbacks act on it."""
        if step.reading is not None:
            step.result = step.reading()
            step.overflowed = self.scale.adapt(step.result)
        step.next_loss_scale = self.scale.value
        now = time.monotonic()
        step.seconds, self._concluded = now - max(step.began, self._concluded), now
        for callback in self.callbacks:
            callback.after_step(step)

    def _seed_dropout(self, step: int) -> None:
        run = self.attempt.run
        if run.model.dropout:
            by_row = run.train.divides_weights or run.train.numerics == "portable"
            seed_dropout(run.train.seed, step, 0 if by_row else self.attempt.ranks.rank)


def runs_ahead(train: TrainConfig) -> bool:
    """Return whether a step begins before the numbers of the one before are read.

    A processor has computed by then. The loss scale of float16 depends on the step before.
    """
    return train.device == "cuda" and train.dtype != "float16"


@dataclass(frozen=True)
class StepRows:
    """What a step reads."""

    batch: Any
    """Of the objective's kind."""
    text_tokens: int
    """As the budget counts them."""


class StepReader:
    """Reads the rows of a step, and if `ahead` in a thread those of the next one, into pinned memory, from which a
    device copies while it computes."""

    def __init__(
        self, objective: Objective, data: SequenceReader, curriculum: TrainingSchedule, context: int, *, ahead: bool
    ) -> None:
        self._objective, self._data, self._loader = objective, data, objective.loader(data)
        self._curriculum, self._context = curriculum, context
        # On a processor the thread would take the time of a training thread.
        self._thread = ThreadPoolExecutor(1, "rows") if ahead else None
        self._next: tuple[int, Future[StepRows]] | None = None

    def read(self, step: int) -> StepRows:
        """Return the rows of a step; InputError for a token beyond the vocabulary."""
        if self._thread is None:
            return self._read(step)
        # After a rollback another step comes than the one that was read ahead.
        ready = self._next[1] if self._next is not None and self._next[0] == step else None
        rows = self._pinned(step) if ready is None else ready.result()
        following = step + 1
        if following < self._curriculum.steps:
            self._next = following, self._thread.submit(self._pinned, following)
        return rows

    def _pinned(self, step: int) -> StepRows:
        rows = self._read(step)
        if not torch.cuda.is_available():
            return rows
        return replace(rows, batch=map_batch(torch.Tensor.pin_memory, rows.batch))

    def _read(self, step: int) -> StepRows:
        begin, end = self._curriculum.positions(step)
        rows = self._data.rows(begin, end)
        batch, tokens = self._loader.batch_of(rows), self._objective.text_tokens(self._data, rows)
        if (pieces := self._curriculum.step_schedule(step).row_pieces) > 1:
            batch = batch.shortened(self._context // pieces)
        return StepRows(batch, tokens)

    def __enter__(self) -> "StepReader":
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
