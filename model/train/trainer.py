"""A training run: attempts of it, until one reaches the end.

A step is a function of (weights, position in ORDER), so the whole state of a run is what a checkpoint holds. Killed
at any instant and started again, the run ends with bit-identical weights, METRICS and STEPS. Every rank does the same;
the first one writes and speaks.

The steps of one attempt: each reads its rows, is computed where the guard lets it, and is written down.
"""

import math
import os
import shutil
import time
from pathlib import Path
from typing import Any, NoReturn, TextIO

import torch

from model.checkpoint.checkpoint import Checkpoint, newest_checkpoint, set_damaged_aside
from model.checkpoint.complete_marker import complete, why_damaged
from model.checkpoint.metrics import Journal, recent_loss
from model.checkpoint.run_folder import CHECKPOINTS, HEARTBEAT, RESULT, RUN_FILE
from model.checkpoint.weights import save_model
from model.checkpoint.writer import CheckpointWriter
from model.config.train import TrainerRun
from model.data.dataset import SequenceReader
from model.data.row_format import RowFormat
from model.distributed.process_group import SINGLE_PROCESS, Ranks
from model.distributed.protocol import LauncherChannel
from model.engines import make_engine
from model.engines.base import Engine, StepResult
from model.engines.runtime import LossScale, seed_dropout, training_device
from model.errors import Infra, Paused
from model.files import sync_directory
from model.guard.decisions import Decision, formerly, in_force, read_decisions
from model.guard.detection import Divergence
from model.guard.guard import Guard, drop_abandoned, go_back, journal_so_far
from model.guard.policy import check_ladder
from model.launch.failures import FEWER_RANKS, take_over
from model.nn.factory import activation_range_names, flops_per_token, parameter_count
from model.nn.vocab_layers import merge_new_rows
from model.objectives import make_objective
from model.optim.schedules import StepSchedule, TrainingSchedule
from model.train.initial_weights import starting_network
from model.train.micro_batch import peak_flops, resident_bytes, with_decided_rows
from model.train.reproduction import write_reproduction
from model.train.resume import RUNTIME_SETTINGS, check_rows, must_agree, optimizer_layout
from model.train.validation import Validation


def train(run: TrainerRun, ranks: Ranks = SINGLE_PROCESS, messages: TextIO | None = None) -> Path:
    """Train to the end of ORDER, going on from the newest whole checkpoint; returns the folder of the result.

    `messages` gets what the first rank tells the launcher, where it listens. Raises InputError for sequences that do
    not fit the model, Numerics after too many non-finite steps in a row, Infra when asked to stop and Paused
    where the run asks for a pause (both after a checkpoint was written).
    """
    result = run.out / RESULT
    if why_damaged(result) is None:
        return result
    run.out.mkdir(parents=True, exist_ok=True)
    with LauncherChannel(run.out / HEARTBEAT, messages if ranks.is_first else None, ranks.heartbeat) as link:
        prepare_process(run)
        data = SequenceReader(run.sequences, run.order, run.model.vocab_size)
        check_rows(data, run)
        run = with_decided_rows(run, data, ranks, link)
        check_ladder(run)
        while not _attempt(run, data, ranks, result, link):
            pass
    return result


def prepare_process(run: TrainerRun) -> None:
    """Settings of this process that decide bits."""
    torch.set_num_threads(run.train.threads)
    torch.use_deterministic_algorithms(True)
    # Filling fresh memory costs 6% and hides nothing here: no kernel of ours reads before it writes.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]


def _attempt(begun: TrainerRun, data: SequenceReader, ranks: Ranks, result: Path, link: LauncherChannel) -> bool:
    """Train from the newest checkpoint under what was decided so far; False where the guard had to go back.

    `begun` is the run as it began.
    """
    link.between_steps()
    folder, decisions = begun.out / CHECKPOINTS, read_decisions(begun.out)
    run, record = in_force(begun, decisions), must_agree(begun)
    damaged = set_damaged_aside(folder) if ranks.is_first else []
    if ranks.is_first:
        drop_abandoned(folder, decisions)
    ranks.barrier()
    checkpoint = newest_checkpoint(folder, record, formerly(decisions))
    state = checkpoint.state if checkpoint else {}
    step = state.get("step", 0)
    start = starting_network(run, resumes=checkpoint is not None)
    if checkpoint is not None:
        start.network.load_state_dict(checkpoint.weights())
    engine = make_engine(run, start.network.to(training_device(run.train, ranks.rank)), ranks)
    layout = optimizer_layout(run)
    if checkpoint is not None and state["optimizer"] == layout:
        _restore_optimizer(engine, checkpoint, ranks)
    journal = journal_so_far(begun.out, decisions, checkpoint)
    kind = "resume" if checkpoint else "start"
    journal.event(step, kind, pid=os.getpid(), threads=run.train.threads, ranks=ranks.size)
    if ranks.size < run.train.ranks:
        journal.event(step, FEWER_RANKS, "Infra", ranks=ranks.size, of=run.train.ranks)
    take_over(run.out, journal)
    if checkpoint is not None and state["optimizer"] != layout:
        journal.event(step, "optimizer_anew", before=state["optimizer"], now=layout)
    if start.facts:
        journal.event(step, "base_model", **start.facts)
        link.send("event", event="base_model", **start.facts)
    for damage in damaged:
        journal.event(step, "damaged_checkpoint", "IntegrityError", name=damage.name, reason=damage.reason)
        link.send("event", event="damaged_checkpoint", name=damage.name, reason=damage.reason)
    guard = Guard(begun, decisions, state.get("guard"))
    scale = LossScale(run.train, state["loss_scale"] if state.get("dtype") == run.train.dtype else None)
    record = {**record, "attempt": len(decisions), "optimizer": layout, "dtype": run.train.dtype}
    with CheckpointWriter(folder, ranks, lambda step: link.send("checkpoint", step=step)) as checkpoints:
        loop = Loop(
            run,
            data,
            engine,
            ranks,
            journal,
            link,
            checkpoints,
            guard,
            scale,
            tokens=state.get("tokens", 0),
            record=record,
            peak_tokens_s=_peak_tokens_s(run, data, ranks),
        )
        _tell_start(run, data, loop.curriculum, step, link)
        divergence = loop.run(step)
        link.between_steps()
    if divergence is not None:
        go_back(begun, decisions, divergence, guard, loop.curriculum, journal, ranks, link)
        return False
    take_over(run.out, journal)
    _write_result(result, begun, run, decisions, data.row_format, engine, ranks, journal)
    link.send("done", steps=loop.curriculum.steps, folder=str(result))
    return True


def _peak_tokens_s(run: TrainerRun, data: SequenceReader, ranks: Ranks) -> float | None:
    """Tokens a second that the devices of all ranks could read at their peak; asked by the first rank, which writes."""
    peak = peak_flops(run.train, training_device(run.train, ranks.rank)) if ranks.is_first else None
    return None if peak is None else peak * ranks.size / flops_per_token(run.model, data.row_format)


def _restore_optimizer(engine: Engine, checkpoint: Checkpoint, ranks: Ranks) -> None:
    shards = checkpoint.optimizer_shards
    if shards == engine.optimizer_shards:
        engine.restore_optimizer(checkpoint.optimizer_state(ranks.rank, shards))
    else:
        engine.restore_resharded([checkpoint.optimizer_state(rank, shards) for rank in range(shards)])


def _tell_start(
    run: TrainerRun, data: SequenceReader, curriculum: TrainingSchedule, step: int, link: LauncherChannel
) -> None:
    steps, flops = curriculum.steps, flops_per_token(run.model, data.row_format)
    link.send("start", step=step, steps=steps, parameters=parameter_count(run.model), flops_per_token=flops)
    if run.train.compile and (rest := curriculum.steps_with_partial_micro_batches()):
        link.send("event", event="compiled_in_part", steps_with_rows_that_fill_no_micro_batch=rest, of=steps)


def _write_result(
    result: Path,
    begun: TrainerRun,
    run: TrainerRun,
    decisions: list[Decision],
    rows: RowFormat | None,
    engine: Engine,
    ranks: Ranks,
    journal: Journal,
) -> None:
    """Write all files of the result, and COMPLETE last: with it the run is trained to the end."""
    weights = merge_new_rows(engine.weights())
    if not ranks.is_first:
        return
    # A trainer that was paused here and passed over may still hold these files open: fresh ones are out of its reach.
    shutil.rmtree(result, ignore_errors=True)
    result.mkdir()
    journal.write(result)
    write_reproduction(result, begun, decisions, begun.out / RUN_FILE)
    save_model(
        result,
        run.model,
        weights,
        {
            "architecture": run.model.architecture,
            "parameters": parameter_count(run.model),
            "flops_per_token": flops_per_token(run.model, rows),
            "tokenizer_digest": run.tokenizer_digest,
            "thermometers": activation_range_names(run.model),
            "train": run.train.model_dump(mode="json", exclude=RUNTIME_SETTINGS),
            "decisions": [decision.model_dump(mode="json") for decision in decisions],
        },
    )
    complete(result)
    sync_directory(result)


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
        link: LauncherChannel,
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
        self._objective = make_objective(run)
        self._loader = self._objective.loader(data)
        self._validation = Validation(run, self._objective) if run.train.validation_steps else None
        self.curriculum = TrainingSchedule(run.train, data.positions, run.model.context)

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
        self._link.send("paused", step=step, steps=self.curriculum.steps, loss=loss)
        raise Paused(step, self.curriculum.steps, loss)

    def _step(self, step: int) -> Divergence | None:
        began = time.monotonic()
        begin, end = self.curriculum.positions(step)
        pace = self.curriculum.step_schedule(step)
        fresh = self._objective.text_tokens(self._data, begin, end)
        self._tokens += fresh
        read = {"step": step, "pos_start": begin, "pos_end": end, "row_pieces": pace.row_pieces}
        if self._guard.skips(begin, end):
            self._journal.add("steps", **read, applied=False)
            self._journal.event(step, "skipped_data", "Numerics", range(begin, end))
            if not self._skipping:
                self._link.send("event", event="skipped_data", from_step=step)
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
            self._link.send_step(made == steps, step=made, steps=steps, **told)
        diverged = self._guard.step_done(step, done, overflow=overflow, scale=used_scale)
        if diverged is None and (helped := self._guard.recovered(step)):
            facts = {"onset": helped.onset, "to_step": helped.to_step, "cause": helped.cause}
            self._journal.event(step, "recovered", **facts)
            self._link.send("event", event="recovered", step=step, **facts)
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

    def _compute(self, step: int, begin: int, end: int, pace: StepSchedule, scale: float) -> StepResult:
        batch = self._loader.batch(begin, end)
        if pace.row_pieces > 1:
            batch = batch.shortened(self._run.model.context // pace.row_pieces)
        if self._run.model.dropout:
            seed_dropout(self._run.train.seed, step, self._ranks.rank)
        return self._engine.step(batch, pace, scale, self._guard.admits)

    def _write_down(self, step: int, pace: StepSchedule, scale: float, done: StepResult) -> None:
        self._journal.add(
            "metrics",
            step=step,
            tokens=self._tokens,
            loss=done.loss,
            grad_norm=done.grad_norm,
            lr=pace.lr,
            max_norm=pace.max_norm,
            scale=scale,
            thermometers=done.largest_activations,
            thermometer_lows=done.lows,
            thermometer_highs=done.highs,
            **_by_term(self._objective.terms, done),
        )

    def _tell(self, step: int, kind: str, positions: range, **facts: Any) -> None:
        self._journal.event(step, kind, "Numerics", positions, **facts)
        self._link.send("event", event=kind, step=step, **facts)

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
