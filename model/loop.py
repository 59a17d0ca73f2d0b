"""The steps of one attempt: each reads its rows, is computed where the guard lets it, and is written down."""

import math
import time
from typing import Any, NoReturn

from model.checkpoint_writer import CheckpointWriter
from model.config import TrainerRun
from model.curriculum import Curriculum
from model.data import SequenceReader
from model.dropout import seed_dropout
from model.engine import Engine, StepResult
from model.errors import Infra
from model.guard.detection import Divergence
from model.guard.guard import Guard
from model.journal import Journal
from model.link import Link
from model.loss_scale import LossScale
from model.micro_batch import resident_bytes
from model.objectives import objective_of
from model.pause import Paused
from model.ranks import Ranks
from model.recent_loss import recent_loss
from model.schedule import Pace
from model.validation import Validation


class Loop:
    """One rank's. `tokens` are those of text that were read before the first step made here, `record` is what every
    checkpoint says of the run, `peak_tokens_s` what all devices could read at their peak."""

    def __init__(
        self,
        run: TrainerRun,
        data: SequenceReader,
        engine: Engine,
        ranks: Ranks,
        journal: Journal,
        link: Link,
        checkpoints: CheckpointWriter,
        guard: Guard,
        scale: LossScale,
        tokens: int,
        record: dict[str, Any],
        peak_tokens_s: float | None = None,
    ) -> None:
        self._run = run
        self._data = data
        self._engine = engine
        self._ranks = ranks
        self._journal = journal
        self._link = link
        self._checkpoints = checkpoints
        self._guard = guard
        self._scale = scale
        self._tokens = tokens
        self._record = record
        self._peak_tokens_s = peak_tokens_s
        self._skipping = False
        self._objective = objective_of(run)
        self._loader = self._objective.loader(data)
        self._validation = Validation(run, self._objective) if run.train.validation_steps else None
        self.curriculum = Curriculum(run.train, data.positions, run.model.context)

    def run(self, step: int) -> Divergence | None:
        """Make the steps from `step` on; the divergence that ended them before their last, if any.

        Raises Infra when asked to stop, and Paused where the run asks for a pause, after a checkpoint was written.
        """
        steps, share = self.curriculum.steps, self._run.train.pause_share
        pause = steps if share is None else self.curriculum.steps_to(share)
        while step < steps:
            if step >= pause:
                self._pause(pause)
            diverged = self._step(step)
            step += 1
            self._link.beat(step)
            self._checkpoints.advance()
            if diverged is not None:
                return diverged
            self._validate(step)
            # The request reaches the ranks one after the other, perhaps at different steps; they stop at the same one.
            stopping = self._ranks.any(self._link.stop_requested) and step < steps
            if step % self._run.train.checkpoint_steps == 0 or stopping or step == pause:
                self._save(step)
            if stopping:
                self._link.between_steps()
                self._checkpoints.finish()
                raise Infra(f"asked to stop after step {step - 1}; a checkpoint was written, run again to go on")
        return None

    def _pause(self, step: int) -> NoReturn:
        self._link.between_steps()
        self._checkpoints.finish()
        loss = recent_loss(self._journal, step)
        # Losses of a run that diverged may be no numbers, and JSON has no word for those.
        loss = loss if loss is not None and math.isfinite(loss) else None
        self._link.tell("paused", step=step, steps=self.curriculum.steps, loss=loss)
        raise Paused(step, self.curriculum.steps, loss)

    def _step(self, step: int) -> Divergence | None:
        began = time.monotonic()
        begin, end = self.curriculum.positions(step)
        pace = self.curriculum.pace(step)
        fresh = self._objective.text_tokens(self._data, begin, end)
        self._tokens += fresh
        read = {"step": step, "pos_start": begin, "pos_end": end, "row_pieces": pace.row_pieces}
        if self._guard.skips(begin, end):
            self._journal.add("steps", **read, applied=False)
            self._journal.event(step, "skipped_data", "Numerics", range(begin, end))
            if not self._skipping:
                self._link.tell("event", event="skipped_data", from_step=step)
            self._skipping = True
            return None
        self._skipping = False
        used_scale = self._scale.value
        done = self._compute(step, begin, end, pace, used_scale)
        overflow = self._scale.adapt(done)
        self._journal.add("steps", **read, applied=done.applied)
        self._write_down(step, pace, used_scale, done)
        if overflow:
            self._tell(step, "overflow", range(begin, end), scale=used_scale, next_scale=self._scale.value)
        elif not done.applied:
            kind = "spike" if done.finite else "skipped_step"
            self._tell(step, kind, range(begin, end), loss=str(done.loss), grad_norm=str(done.grad_norm))
        wall = time.monotonic() - began
        mfu = None if self._peak_tokens_s is None else fresh / wall / self._peak_tokens_s
        self._journal.add("perf", step=step, wall_s=wall, tokens_s=fresh / wall, mfu=mfu, rss=resident_bytes())
        if done.applied:
            made, steps, speed = step + 1, self.curriculum.steps, round(fresh / wall)
            told = {"loss": done.loss, "lr": pace.lr, "tokens": self._tokens, "tokens_s": speed}
            self._link.step(made == steps, step=made, steps=steps, **told)
        diverged = self._guard.step_done(step, done, overflow=overflow, scale=used_scale)
        if diverged is None and (helped := self._guard.recovered(step)):
            facts = {"onset": helped.onset, "to_step": helped.to_step, "cause": helped.cause}
            self._journal.event(step, "recovered", **facts)
            self._link.tell("event", event="recovered", step=step, **facts)
        return diverged

    def _validate(self, made: int) -> None:
        """Look at held-out rows after every `validation_steps` steps, and after the last."""
        every = self._run.train.validation_steps
        if self._validation is None or every is None or (made % every and made != self.curriculum.steps):
            return
        self._link.between_steps()
        for measured in self._validation.measure(self._engine):
            self._journal.add("validation", step=made - 1, **measured)
        self._link.beat(made)

    def _compute(self, step: int, begin: int, end: int, pace: Pace, scale: float) -> StepResult:
        batch = self._loader.batch(begin, end)
        if pace.row_pieces > 1:
            batch = batch.shortened(self._run.model.context // pace.row_pieces)
        if self._run.model.dropout:
            seed_dropout(self._run.train.seed, step, self._ranks.rank)
        return self._engine.step(batch, pace, scale, self._guard.admits)

    def _write_down(self, step: int, pace: Pace, scale: float, done: StepResult) -> None:
        self._journal.add(
            "metrics",
            step=step,
            tokens=self._tokens,
            loss=done.loss,
            grad_norm=done.grad_norm,
            lr=pace.lr,
            max_norm=pace.max_norm,
            scale=scale,
            thermometers=done.thermometers,
            thermometer_lows=done.lows,
            thermometer_highs=done.highs,
            **_by_term(self._objective.terms, done),
        )

    def _tell(self, step: int, kind: str, positions: range, **facts: Any) -> None:
        self._journal.event(step, kind, "Numerics", positions, **facts)
        self._link.tell("event", event=kind, step=step, **facts)

    def _save(self, step: int) -> None:
        self._link.between_steps()
        self._guard.saved(step)
        state = {"tokens": self._tokens, "loss_scale": self._scale.state, "guard": self._guard.state}
        keep = self._run.train.keep_checkpoints
        self._checkpoints.save(step, self._engine, self._journal, {**self._record, **state}, keep, self._guard.to_keep)
        self._link.beat(step)


def _by_term(terms: tuple[str, ...], done: StepResult) -> dict[str, float | None]:
    """Columns of METRICS for an objective of several terms."""
    if len(terms) == 1:
        return {"masked_loss": None, "masked_accuracy": None, "next_loss": None, "next_accuracy": None}
    named = {f"{term}_loss": loss for term, loss in zip(terms, done.losses, strict=True)}
    return {**named, **{f"{term}_accuracy": share for term, share in zip(terms, done.accuracies, strict=True)}}
