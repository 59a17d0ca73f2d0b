"""What watches the steps of an attempt: tables and messages, heartbeats, the guard, validation, checkpoints."""

from typing import NoReturn

from model.checkpoint.metrics import recent_loss
from model.checkpoint.run_folder import lasting_steps
from model.checkpoint.state import AttemptState, CheckpointState
from model.checkpoint.writer import CheckpointWriter
from model.config.machine import resident_bytes
from model.distributed.messages import EventName
from model.engines.base import StepResult
from model.engines.runtime import LossScale
from model.errors import Infra, Paused
from model.guard.detection import Divergence
from model.guard.guard import Guard
from model.train.loop import Attempt, Callback, Step
from model.train.validation import LiveSample, Validation, validation_interval


class Metrics(Callback):
    """Adds each step to STEPS, METRICS, PERF and EVENTS, sends its progress to the launcher, and shows launcher and
    supervisor that this rank is at work.

    `peak_tokens_s` is the rate at the peak of all devices, or None where it is unknown.
    """

    def __init__(self, attempt: Attempt, peak_tokens_s: float | None) -> None:
        self._log, self._channel = attempt.log, attempt.channel
        self._terms, self._steps = attempt.objective.terms, attempt.schedule.steps
        self._peak_tokens_s = peak_tokens_s
        self._skipped_before = False

    def after_step(self, step: Step) -> None:
        result, begin, end = step.result, step.positions.start, step.positions.stop
        self._log.add(
            "steps",
            step=step.number,
            pos_start=begin,
            pos_end=end,
            row_pieces=step.schedule.row_pieces,
            applied=result is not None and result.applied,
        )
        if result is None:
            self._log.event(step.number, "skipped_data", "Numerics", step.positions)
            if not self._skipped_before:
                self._channel.send_event("skipped_data", from_step=step.number)
        else:
            self._add_metrics(step, result)
            self._add_trouble(step, result)
            rate = step.text_tokens / step.seconds
            mfu = None if self._peak_tokens_s is None else rate / self._peak_tokens_s
            self._log.add("perf", step=step.number, wall_s=step.seconds, tokens_s=rate, mfu=mfu, rss=resident_bytes())
            if result.applied:
                self._send_progress(step, result, rate)
        self._skipped_before = result is None
        self._channel.beat(step.number + 1)

    def _add_metrics(self, step: Step, result: StepResult) -> None:
        self._log.add(
            "metrics",
            step=step.number,
            tokens=step.total_tokens,
            loss=result.loss,
            grad_norm=result.grad_norm,
            lr=step.schedule.lr,
            max_norm=step.schedule.max_norm,
            scale=step.loss_scale,
            largest_activations=result.largest_activations,
            activation_lows=result.lows,
            activation_highs=result.highs,
            **_columns_by_term(self._terms, result),
        )

    def _add_trouble(self, step: Step, result: StepResult) -> None:
        kind: EventName
        if step.overflowed:
            kind, facts = "overflow", {"scale": step.loss_scale, "next_scale": step.next_loss_scale}
        elif not result.applied:
            kind = "spike" if result.finite else "skipped_step"
            facts = {"loss": str(result.loss), "grad_norm": str(result.grad_norm)}
        else:
            return
        self._log.event(step.number, kind, "Numerics", step.positions, **facts)
        self._channel.send_event(kind, step=step.number, **facts)

    def _send_progress(self, step: Step, result: StepResult, rate: float) -> None:
        self._channel.send_step(
            {
                "kind": "step",
                "step": step.number + 1,
                "steps": self._steps,
                "loss": result.loss,
                "lr": step.schedule.lr,
                "tokens": step.total_tokens,
                "tokens_s": round(rate),
            }
        )


def _columns_by_term(terms: tuple[str, ...], result: StepResult) -> dict[str, float | None]:
    """Return the columns of METRICS for an objective of several terms; all None for one of a single term."""
    if len(terms) == 1:
        return {"masked_loss": None, "masked_accuracy": None, "next_loss": None, "next_accuracy": None}
    losses = {f"{term}_loss": loss for term, loss in zip(terms, result.losses, strict=True)}
    return {**losses, **{f"{term}_accuracy": share for term, share in zip(terms, result.accuracies, strict=True)}}


class Diverged(Exception):
    """Ends an attempt whose steps diverged."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence.cause)
        self.divergence = divergence


class Guarding(Callback):
    """Skips data by the guard's decisions, and has it judge each step; raises Diverged."""

    def __init__(self, attempt: Attempt, guard: Guard) -> None:
        self._guard, self._log, self._channel = guard, attempt.log, attempt.channel
        self._positions = attempt.schedule.positions

    def skips(self, step: Step) -> bool:
        return self._guard.skips(step.positions.start, step.positions.stop)

    def after_step(self, step: Step) -> None:
        if step.result is None:
            return
        divergence = self._guard.step_done(step.number, step.result, overflow=step.overflowed, scale=step.loss_scale)
        if divergence is not None:
            raise Diverged(divergence)
        if decision := self._guard.recovered(step.number, self._positions):
            onset, to_step, cause = decision.onset, decision.to_step, decision.cause
            self._log.event(step.number, "recovered", onset=onset, to_step=to_step, cause=cause)
            self._channel.send(
                {
                    "kind": "event",
                    "event": "recovered",
                    "step": step.number,
                    "onset": onset,
                    "to_step": to_step,
                    "cause": cause,
                }
            )


class Validating(Callback):
    """Scores the held-out rows after every so many steps and after the last, and has a GPT write a sample.

    Does nothing where no text was held out and none is asked for.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        run, steps, positions = attempt.run, attempt.schedule.steps, attempt.data.positions
        # Rows are given wherever text was held out; the setting alone asks for rows that are not there.
        wanted = run.train.validation_steps or (run.train.validation_steps is None and run.heldout is not None)
        self._validation = Validation(run, attempt.objective) if wanted else None
        rows = self._validation.rows if self._validation else 0
        self._every = validation_interval(run.train, positions, steps, rows)
        self._sample = LiveSample(run) if self._validation and attempt.ranks.is_first else None

    def rests_after(self, number: int) -> bool:
        if self._validation is None or self._every is None:
            return False
        return (number + 1) % self._every == 0 or number + 1 == self._attempt.schedule.steps

    def after_step(self, step: Step) -> None:
        done, channel = step.number + 1, self._attempt.channel
        if self._validation is None or not self.rests_after(step.number):
            return
        channel.between_steps()
        rows = self._validation.measure(self._attempt.engine)
        for row in rows:
            self._attempt.log.add("validation", step=step.number, **row)
        channel.send({"kind": "validation", "step": done, "rows": rows})
        if self._sample and (text := self._sample.write(self._attempt.engine)):
            channel.send({"kind": "sample", "step": done, "prompt": text[0], "tokens": text[1]})
        channel.beat(done)


class Checkpoints(Callback):
    """Writes a checkpoint where it is due, where the run was asked to stop, and where it is to pause.

    `record` is what every checkpoint of the attempt records.
    """

    def __init__(
        self, attempt: Attempt, writer: CheckpointWriter, guard: Guard, scale: LossScale, record: AttemptState
    ) -> None:
        self._attempt, self._writer, self._guard, self._scale = attempt, writer, guard, scale
        self._record = record
        train, schedule = attempt.run.train, attempt.schedule
        self._lasting = lasting_steps(train.lasting_checkpoints, schedule.steps)
        self._pause = schedule.steps if train.pause_share is None else schedule.steps_to(train.pause_share)
        self._stopping = self._saves = False

    def before_step(self, number: int) -> None:
        """Publish what all ranks have written. Raises Paused where the run is to pause."""
        self._writer.advance()
        if number >= self._pause:
            self._raise_paused()

    def rests_after(self, number: int) -> bool:
        """Return whether a checkpoint is due, or the run was asked to stop."""
        done, attempt = number + 1, self._attempt
        # The request reaches the ranks one after the other, perhaps at different steps; they stop at the same one.
        self._stopping = attempt.ranks.any(attempt.channel.stop_requested) and done < attempt.schedule.steps
        due = done % attempt.run.train.checkpoint_steps == 0 or done in self._lasting
        self._saves = due or self._stopping or done == self._pause
        return self._saves

    def after_step(self, step: Step) -> None:
        """Write a checkpoint where one is due. Raises Infra, after writing one, where the run was asked to stop."""
        attempt = self._attempt
        if self._saves:
            self._save(step)
        if self._stopping:
            attempt.channel.between_steps()
            self._writer.finish()
            raise Infra(f"asked to stop after step {step.number + 1}; a checkpoint was written, run again to go on")

    def _save(self, step: Step) -> None:
        done, attempt = step.number + 1, self._attempt
        attempt.channel.between_steps()
        self._guard.saved(done)
        state: CheckpointState = {
            **self._record,
            "step": done,
            "tokens": step.total_tokens,
            "loss_scale": self._scale.state,
            "guard": self._guard.state,
        }
        kept = {*self._guard.to_keep, *self._lasting}
        self._writer.save(done, attempt.engine, attempt.log, state, attempt.run.train.keep_checkpoints, kept)
        attempt.channel.beat(done)

    def _raise_paused(self) -> NoReturn:
        attempt = self._attempt
        attempt.channel.between_steps()
        self._writer.finish()
        loss, steps = recent_loss(attempt.log, self._pause), attempt.schedule.steps
        attempt.channel.send({"kind": "paused", "step": self._pause, "steps": steps, "loss": loss})
        raise Paused(self._pause, steps, loss)
