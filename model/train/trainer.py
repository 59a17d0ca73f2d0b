"""Train one run: attempts, and the steps of each, until an attempt reaches the end of ORDER.

A step is a function of (weights, position in ORDER), so a checkpoint holds the whole state of a run. Killed at any
instant and started again, a run ends with bit-identical weights, METRICS and STEPS. Every rank executes this code; the
first rank alone writes files and sends messages.

`train` repeats `_attempt` until the guard no longer rolls back, `StepLoop` runs the steps of one attempt, and
`_write_result` publishes the trained model.
"""

import math
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TextIO

import torch

from model.checkpoint.checkpoint import Checkpoint, newest_checkpoint, quarantine_damaged
from model.checkpoint.complete_marker import complete, find_damage
from model.checkpoint.metrics import MetricsLog, recent_loss
from model.checkpoint.run_folder import CHECKPOINTS, HEARTBEAT, RESULT, RUN_FILE, WEIGHTS, lasting_steps
from model.checkpoint.state import AttemptState, CheckpointState
from model.checkpoint.weights import save_model
from model.checkpoint.writer import CheckpointWriter, write_parts
from model.config.train import TrainerRun
from model.data.dataset import SequenceReader
from model.data.row_format import RowFormat
from model.distributed.process_group import SINGLE_PROCESS, Ranks
from model.distributed.protocol import LauncherChannel
from model.engines import make_engine
from model.engines.base import Engine, StepResult
from model.engines.runtime import LossScale, require_deterministic_kernels, seed_dropout, training_device
from model.errors import Infra, Paused
from model.files import sync_directory
from model.guard.decisions import Decision, effective_config, previous_versions, read_decisions
from model.guard.detection import Divergence
from model.guard.guard import Guard, delete_abandoned, load_metrics_log, roll_back
from model.guard.policy import check_policy
from model.launch.failures import FEWER_RANKS, import_restarts
from model.nn.factory import activation_range_names, flops_per_token, make_shapes, parameter_count
from model.nn.vocab_layers import merge_new_rows
from model.objectives import make_objective
from model.optim.schedules import StepSchedule, TrainingSchedule
from model.train.initial_weights import initial_network
from model.train.live_sample import LiveSample
from model.train.micro_batch import peak_flops, resident_bytes, resolve_micro_batch_rows
from model.train.replay import adopt_checkpoints
from model.train.reproduction import write_reproduction
from model.train.resume import (
    check_rows,
    describe_layout,
    optimizer_layout,
    resume_requirements,
    settings_left_out,
)
from model.train.step_rows import StepReader
from model.train.validation import Validation, validation_interval


def train(run: TrainerRun, ranks: Ranks = SINGLE_PROCESS, messages: TextIO | None = None) -> Path:
    """Train to the end of ORDER, from the newest intact checkpoint if there is one; return the folder of the result.

    The first rank writes its messages to the launcher into `messages`. Raises InputError for sequences that do not fit
    the model, Numerics after too many non-finite steps in a row, and, both after writing a checkpoint, Infra when asked
    to stop and Paused where the run asks for a pause.
    """
    result = run.out / RESULT
    if find_damage(result) is None:
        return result
    run.out.mkdir(parents=True, exist_ok=True)
    with LauncherChannel(run.out / HEARTBEAT, messages if ranks.is_first else None, ranks.heartbeat) as channel:
        prepare_process(run)
        data = SequenceReader(run.sequences, run.order, run.model.vocab_size)
        check_rows(data, run)
        run = resolve_micro_batch_rows(run, data, ranks, channel)
        check_policy(run)
        if ranks.is_first and (adopted := adopt_checkpoints(run, data)):
            channel.send("event", event="replay", from_step=adopted)
        ranks.barrier()
        while not _attempt(run, data, ranks, result, channel):
            pass
    return result


def prepare_process(run: TrainerRun) -> None:
    """Set the options of this process that decide bits of the result."""
    torch.set_num_threads(1 if run.train.numerics == "portable" else run.train.threads)
    require_deterministic_kernels()
    # Filling fresh memory costs 6% and hides nothing here: no kernel of ours reads before it writes.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]


def _attempt(original: TrainerRun, data: SequenceReader, ranks: Ranks, result: Path, channel: LauncherChannel) -> bool:
    """Train from the newest checkpoint under all decisions so far; return False where the guard rolled back.

    `original` is the run as it began, before any decision changed its settings.
    """
    channel.between_steps()
    folder, decisions = original.out / CHECKPOINTS, read_decisions(original.out)
    run, requirements = effective_config(original, decisions), resume_requirements(original)

    damaged = quarantine_damaged(folder) if ranks.is_first else []
    if ranks.is_first:
        delete_abandoned(folder, decisions)
    ranks.barrier()
    checkpoint = newest_checkpoint(folder, requirements, previous_versions(decisions))
    state = checkpoint.state if checkpoint is not None else None
    step = state["step"] if state else 0

    engine, base_facts = _start_engine(run, checkpoint, ranks)
    record: AttemptState = {
        **requirements,
        "attempt": len(decisions),
        "optimizer": optimizer_layout(run),
        "dtype": run.train.dtype,
        "layout": describe_layout(run.train),
    }
    if checkpoint is not None and checkpoint.state["optimizer"] == record["optimizer"]:
        _restore_optimizer(engine, checkpoint, ranks, is_divided=run.train.divides_weights)

    log = load_metrics_log(original.out, decisions, checkpoint)
    import_restarts(run.out, log)
    log.event(step, "resume" if checkpoint else "start", pid=os.getpid(), threads=run.train.threads, ranks=ranks.size)
    if ranks.size < run.train.ranks:
        facts = {"ranks": ranks.size, "of": run.train.ranks, "left_out": ranks.left_out}
        log.event(step, FEWER_RANKS, "Infra", **facts)
        channel.send("event", event=FEWER_RANKS, step=step, **facts)
    if state and state["layout"] != record["layout"]:
        before, now = state["layout"], record["layout"]
        log.event(step, "layout_changed", before=before, now=now)
        channel.send("event", event="layout_changed", before=before, now=now)
    if state and state["optimizer"] != record["optimizer"]:
        log.event(step, "optimizer_anew", before=state["optimizer"], now=record["optimizer"])
    if base_facts:
        log.event(step, "base_model", **base_facts)
        channel.send("event", event="base_model", **base_facts)
    for damage in damaged:
        log.event(step, "damaged_checkpoint", "IntegrityError", name=damage.name, reason=damage.reason)
        channel.send("event", event="damaged_checkpoint", name=damage.name, reason=damage.reason)

    guard = Guard(original, decisions, state["guard"] if state else None)
    scale = LossScale(run.train, state["loss_scale"] if state and state["dtype"] == run.train.dtype else None)
    with CheckpointWriter(folder, ranks, lambda step: channel.send("checkpoint", step=step)) as checkpoints:
        loop = StepLoop(
            run,
            data,
            engine,
            ranks,
            log,
            channel,
            checkpoints,
            guard,
            scale,
            record,
            tokens=state["tokens"] if state else 0,
            peak_tokens_s=_peak_tokens_s(run, data, ranks),
        )
        _send_start(run, data, loop.curriculum, step, channel)
        divergence = loop.run_from(step)
        channel.between_steps()
    if divergence is not None:
        roll_back(original, decisions, divergence, guard, loop.curriculum, log, ranks, channel)
        return False
    import_restarts(run.out, log)
    _write_result(result, original, run, decisions, data.row_format, engine, ranks, log)
    channel.send("done", steps=loop.curriculum.steps, folder=str(result))
    return True


def _start_engine(run: TrainerRun, checkpoint: Checkpoint | None, ranks: Ranks) -> tuple[Engine, dict[str, Any]]:
    """Return the engine with its first weights or those of a checkpoint, and the details of the event `base_model`."""
    start = initial_network(run, resumes=checkpoint is not None)
    if run.train.divides_weights:
        parts = None
        if checkpoint is not None:
            parts = checkpoint.divided_weights().part
        elif (weights := start.weights) is not None:
            parts = lambda name, box: weights[name][box]  # noqa: E731
        return make_engine(run, start.network, ranks, parts), start.facts
    if checkpoint is not None:
        start.network.load_state_dict(checkpoint.weights())
    return make_engine(run, start.network.to(training_device(run.train)), ranks), start.facts


def _restore_optimizer(engine: Engine, checkpoint: Checkpoint, ranks: Ranks, *, is_divided: bool) -> None:
    shards = checkpoint.optimizer_shards
    if is_divided:
        moments = checkpoint.divided_moments()
        engine.restore_parts(moments.part, moments.names)
    elif shards == engine.optimizer_shards:
        engine.restore_optimizer(checkpoint.optimizer_state(ranks.rank, shards))
    else:
        engine.restore_resharded([checkpoint.optimizer_state(rank, shards) for rank in range(shards)])


def _peak_tokens_s(run: TrainerRun, data: SequenceReader, ranks: Ranks) -> float | None:
    """Return the tokens a second that the devices of all ranks could process at their peak; None except on the first
    rank, which writes it, and where the peak is unknown."""
    peak = peak_flops(run.train, training_device(run.train)) if ranks.is_first else None
    return None if peak is None else peak * ranks.size / flops_per_token(run.model, data.row_format)


def _send_start(
    run: TrainerRun, data: SequenceReader, curriculum: TrainingSchedule, step: int, channel: LauncherChannel
) -> None:
    steps, flops = curriculum.steps, flops_per_token(run.model, data.row_format)
    channel.send("start", step=step, steps=steps, parameters=parameter_count(run.model), flops_per_token=flops)
    if run.train.compile and (rest := curriculum.steps_with_partial_micro_batches()):
        channel.send("event", event="compiled_in_part", steps_with_rows_that_fill_no_micro_batch=rest, of=steps)


@dataclass
class StepLoop:
    """The steps of one attempt, on one rank: read rows, compute, let the guard judge, log, validate, checkpoint."""

    run: TrainerRun
    data: SequenceReader
    engine: Engine
    ranks: Ranks
    log: MetricsLog
    channel: LauncherChannel
    checkpoints: CheckpointWriter
    guard: Guard
    scale: LossScale
    record: AttemptState
    """What every checkpoint records of the attempt."""
    tokens: int
    """Tokens of text read so far, by earlier processes too."""
    peak_tokens_s: float | None
    """Tokens a second at the peak of all devices."""
    _skipping: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.curriculum = TrainingSchedule(self.run.train, self.data.positions, self.run.model.context)
        self._objective = make_objective(self.run)
        train = self.run.train
        # Rows are given wherever text was held out; the setting alone asks for rows that are not there.
        wanted = train.validation_steps or (train.validation_steps is None and self.run.heldout is not None)
        self._validation = Validation(self.run, self._objective) if wanted else None
        rows = self._validation.rows if self._validation is not None else 0
        self._validation_steps = validation_interval(train, self.data.positions, self.curriculum.steps, rows)
        self._lasting = lasting_steps(train.lasting_checkpoints, self.curriculum.steps)
        self._sample = LiveSample(self.run) if self._validation and self.ranks.is_first else None

    def run_from(self, step: int) -> Divergence | None:
        """Run all steps from `step` on; return the divergence that ended them early, if any.

        Raises Infra when asked to stop, and Paused where the run asks for a pause, after writing a checkpoint.
        """
        with StepReader(
            self._objective,
            self.data,
            self.curriculum,
            self.run.model.context,
            ahead=self.run.train.device == "cuda",
        ) as reader:
            return self._run_from(step, reader)

    def _run_from(self, step: int, reader: StepReader) -> Divergence | None:
        steps, share = self.curriculum.steps, self.run.train.pause_share
        pause = steps if share is None else self.curriculum.steps_to(share)
        while step < steps:
            if step >= pause:
                self._pause(pause)
            diverged = self._step(step, reader)
            step += 1
            self.channel.beat(step)
            self.checkpoints.advance()
            if diverged is not None:
                return diverged
            self._validate(step)
            # The request reaches the ranks one after the other, perhaps at different steps; they stop at the same one.
            stopping = self.ranks.any(self.channel.stop_requested) and step < steps
            due = step % self.run.train.checkpoint_steps == 0 or step in self._lasting
            if due or stopping or step == pause:
                self._save(step)
            if stopping:
                self.channel.between_steps()
                self.checkpoints.finish()
                raise Infra(f"asked to stop after step {step - 1}; a checkpoint was written, run again to go on")
        return None

    def _step(self, step: int, reader: StepReader) -> Divergence | None:
        """Run one step, or skip it where the guard decided so; return the divergence that it completes, if any."""
        began = time.monotonic()
        begin, end = self.curriculum.positions(step)
        pace = self.curriculum.step_schedule(step)
        rows = reader.read(step)
        fresh = rows.text_tokens
        self.tokens += fresh
        row = {"step": step, "pos_start": begin, "pos_end": end, "row_pieces": pace.row_pieces}
        if self.guard.skips(begin, end):
            self.log.add("steps", **row, applied=False)
            self.log.event(step, "skipped_data", "Numerics", range(begin, end))
            if not self._skipping:
                self.channel.send("event", event="skipped_data", from_step=step)
            self._skipping = True
            return None
        self._skipping = False
        used_scale = self.scale.value
        done = self._compute(step, rows.batch, pace, used_scale)
        overflow = self.scale.adapt(done)
        self.log.add("steps", **row, applied=done.applied)
        self._log_metrics(step, pace, used_scale, done)
        if overflow:
            self._report(step, "overflow", range(begin, end), scale=used_scale, next_scale=self.scale.value)
        elif not done.applied:
            kind = "spike" if done.finite else "skipped_step"
            self._report(step, kind, range(begin, end), loss=str(done.loss), grad_norm=str(done.grad_norm))
        wall = time.monotonic() - began
        mfu = None if self.peak_tokens_s is None else fresh / wall / self.peak_tokens_s
        self.log.add("perf", step=step, wall_s=wall, tokens_s=fresh / wall, mfu=mfu, rss=resident_bytes())
        if done.applied:
            made, steps = step + 1, self.curriculum.steps
            progress = {"loss": done.loss, "lr": pace.lr, "tokens": self.tokens, "tokens_s": round(fresh / wall)}
            self.channel.send_step(made == steps, step=made, steps=steps, **progress)
        diverged = self.guard.step_done(step, done, overflow=overflow, scale=used_scale)
        if diverged is None and (decision := self.guard.recovered(step)):
            facts = {"onset": decision.onset, "to_step": decision.to_step, "cause": decision.cause}
            self.log.event(step, "recovered", **facts)
            self.channel.send("event", event="recovered", step=step, **facts)
        return diverged

    def _compute(self, step: int, batch: Any, pace: StepSchedule, scale: float) -> StepResult:
        if self.run.model.dropout:
            by_row = self.run.train.divides_weights or self.run.train.numerics == "portable"
            seed_dropout(self.run.train.seed, step, 0 if by_row else self.ranks.rank)
        return self.engine.step(batch, pace, scale, self.guard.admits)

    def _log_metrics(self, step: int, pace: StepSchedule, scale: float, done: StepResult) -> None:
        self.log.add(
            "metrics",
            step=step,
            tokens=self.tokens,
            loss=done.loss,
            grad_norm=done.grad_norm,
            lr=pace.lr,
            max_norm=pace.max_norm,
            scale=scale,
            thermometers=done.largest_activations,
            thermometer_lows=done.lows,
            thermometer_highs=done.highs,
            **_columns_by_term(self._objective.terms, done),
        )

    def _report(self, step: int, kind: str, positions: range, **facts: Any) -> None:
        self.log.event(step, kind, "Numerics", positions, **facts)
        self.channel.send("event", event=kind, step=step, **facts)

    def _validate(self, made: int) -> None:
        """Score the held-out rows after every so many steps, and after the last."""
        every = self._validation_steps
        if self._validation is None or every is None or (made % every and made != self.curriculum.steps):
            return
        self.channel.between_steps()
        rows = self._validation.measure(self.engine)
        for row in rows:
            self.log.add("validation", step=made - 1, **row)
        self.channel.send("validation", step=made, rows=rows)
        if self._sample and (text := self._sample.write(self.engine)):
            self.channel.send("sample", step=made, prompt=text[0], tokens=text[1])
        self.channel.beat(made)

    def _save(self, step: int) -> None:
        self.channel.between_steps()
        self.guard.saved(step)
        state: CheckpointState = {
            **self.record,
            "step": step,
            "tokens": self.tokens,
            "loss_scale": self.scale.state,
            "guard": self.guard.state,
        }
        keep, staying = self.run.train.keep_checkpoints, {*self.guard.to_keep, *self._lasting}
        self.checkpoints.save(step, self.engine, self.log, state, keep, staying)
        self.channel.beat(step)

    def _pause(self, step: int) -> NoReturn:
        self.channel.between_steps()
        self.checkpoints.finish()
        loss = recent_loss(self.log, step)
        # A run that diverged may have no finite loss, and JSON has no word for any other.
        loss = loss if loss is not None and math.isfinite(loss) else None
        self.channel.send("paused", step=step, steps=self.curriculum.steps, loss=loss)
        raise Paused(step, self.curriculum.steps, loss)


def _columns_by_term(terms: tuple[str, ...], done: StepResult) -> dict[str, float | None]:
    """Return the columns of METRICS for an objective of several terms; all None for one of a single term."""
    if len(terms) == 1:
        return {"masked_loss": None, "masked_accuracy": None, "next_loss": None, "next_accuracy": None}
    losses = {f"{term}_loss": loss for term, loss in zip(terms, done.losses, strict=True)}
    return {**losses, **{f"{term}_accuracy": share for term, share in zip(terms, done.accuracies, strict=True)}}


def _write_result(
    result: Path,
    original: TrainerRun,
    run: TrainerRun,
    decisions: list[Decision],
    rows: RowFormat | None,
    engine: Engine,
    ranks: Ranks,
    log: MetricsLog,
) -> None:
    """Write all files of the result, and COMPLETE last: its presence means that the run is trained to the end."""
    weights = engine.weights()
    if ranks.is_first:
        # A trainer that was stopped here and replaced may still hold these files open; it cannot reach fresh ones.
        shutil.rmtree(result, ignore_errors=True)
        result.mkdir()
    if engine.weight_shards > 1:
        ranks.barrier()
        write_parts(result / WEIGHTS, make_shapes(run.model), weights, engine.begins(), ranks)
    if not ranks.is_first:
        return
    log.write(result)
    write_reproduction(result, original, decisions, original.out / RUN_FILE)
    save_model(
        result,
        run.model,
        merge_new_rows(weights) if engine.weight_shards == 1 else None,
        {
            "architecture": run.model.architecture,
            "parameters": parameter_count(run.model),
            "flops_per_token": flops_per_token(run.model, rows),
            "tokenizer_digest": run.tokenizer_digest,
            "thermometers": activation_range_names(run.model),
            "train": run.train.model_dump(mode="json", exclude=settings_left_out(run.train)),
            "decisions": [decision.model_dump(mode="json") for decision in decisions],
        },
    )
    complete(result)
    sync_directory(result)
