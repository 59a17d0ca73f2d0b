"""The training loop.

A step is a function of (weights, position in ORDER), so the whole state of a run is what a checkpoint holds. Killed
at any instant and started again, the run ends with bit-identical weights, METRICS and STEPS. Every rank runs this loop;
the first one writes and speaks.
"""

import os
import shutil
import time
from pathlib import Path
from typing import Any, TextIO

import torch

from model.agreement import check_rows
from model.checkpoint import newest_checkpoint, set_damaged_aside
from model.checkpoint_writer import CheckpointWriter
from model.config import TrainerRun
from model.curriculum import Curriculum
from model.data import SequenceReader
from model.devices import training_device
from model.dropout import seed_dropout
from model.engine import Engine, StepResult
from model.engines import make_engine
from model.errors import Infra, Numerics
from model.journal import Journal
from model.link import Link
from model.loss_scale import LossScale
from model.micro_batch import resident_bytes, with_decided_rows
from model.networks import flops_per_token, parameter_count, thermometer_names
from model.objectives import objective_of
from model.ranks import ALONE, Ranks
from model.resumption import RUNTIME_SETTINGS, must_agree
from model.row_format import RowFormat
from model.split_tables import whole_tables
from model.start import starting_network
from model.weights import DESCRIPTION, save_model

HEARTBEAT = "heartbeat"
CHECKPOINTS = "checkpoints"
RESULT = "result"


def train(run: TrainerRun, ranks: Ranks = ALONE, messages: TextIO | None = None) -> Path:
    """Train to the end of ORDER, going on from the newest whole checkpoint; returns the folder of the result.

    `messages` gets what the first rank tells the launcher, where it listens. Raises InputError for sequences that do
    not fit the model, Numerics after too many non-finite steps in a row, Infra when asked to stop (after a checkpoint
    was written).
    """
    result = run.out / RESULT
    if (result / DESCRIPTION).exists():
        return result
    run.out.mkdir(parents=True, exist_ok=True)
    with Link(run.out / HEARTBEAT, messages if ranks.is_first else None, ranks.heartbeat) as link:
        _train(run, ranks, result, link)
    return result


def _train(run: TrainerRun, ranks: Ranks, result: Path, link: Link) -> None:
    link.between_steps()
    torch.set_num_threads(run.train.threads)
    torch.use_deterministic_algorithms(True)
    # Filling fresh memory costs 6% and hides nothing here: no kernel of ours reads before it writes.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    device = training_device(run.train, ranks.rank)
    data = SequenceReader(run.sequences, run.order, run.model.vocab_size)
    check_rows(data, run)
    run = with_decided_rows(run, data, ranks, link)
    expected = must_agree(run)
    damaged = set_damaged_aside(run.out / CHECKPOINTS) if ranks.is_first else []
    ranks.barrier()
    checkpoint = newest_checkpoint(run.out / CHECKPOINTS, expected)
    start = starting_network(run, resumes=checkpoint is not None)
    if checkpoint is not None:
        start.network.load_state_dict(checkpoint.weights())
    engine = make_engine(run, start.network.to(device), ranks)
    if checkpoint is not None:
        engine.restore_optimizer(checkpoint.optimizer_state(ranks.rank, engine.optimizer_shards))
    journal = checkpoint.journal() if checkpoint else Journal()
    step = checkpoint.state["step"] if checkpoint else 0
    journal.event(
        step, "resume" if checkpoint else "start", pid=os.getpid(), threads=run.train.threads, ranks=ranks.size
    )
    if start.facts:
        journal.event(step, "base_model", **start.facts)
        link.tell("event", event="base_model", **start.facts)
    for damage in damaged:
        journal.event(step, "damaged_checkpoint", "IntegrityError", name=damage.name, reason=damage.reason)
        link.tell("event", event="damaged_checkpoint", name=damage.name, reason=damage.reason)
    scale = LossScale(run.train, checkpoint.state["loss_scale"] if checkpoint else None)
    nonfinite = checkpoint.state["nonfinite"] if checkpoint else 0
    with CheckpointWriter(run.out / CHECKPOINTS, ranks, lambda step: link.tell("checkpoint", step=step)) as checkpoints:
        _loop(run, data, engine, ranks, journal, link, checkpoints, step, nonfinite, scale, expected)
    link.between_steps()
    _write_result(result, run, data.row_format, engine, ranks, journal)
    link.tell("done", steps=journal.count("steps"), folder=str(result))


def _loop(
    run: TrainerRun,
    data: SequenceReader,
    engine: Engine,
    ranks: Ranks,
    journal: Journal,
    link: Link,
    checkpoints: CheckpointWriter,
    step: int,
    nonfinite: int,
    scale: LossScale,
    expected: dict[str, Any],
) -> None:
    objective = objective_of(run)
    loader = objective.loader(data)
    newest = journal.last("metrics")
    tokens = newest["tokens"] if newest else 0
    curriculum = Curriculum(run.train, data.positions, run.model.context)
    steps, flops = curriculum.steps, flops_per_token(run.model, data.row_format)
    link.tell("start", step=step, steps=steps, parameters=parameter_count(run.model), flops_per_token=flops)
    if run.train.compile and (rest := curriculum.steps_with_rest()):
        link.tell("event", event="compiled_in_part", steps_with_rows_that_fill_no_micro_batch=rest, of=steps)
    while step < steps:
        began = time.monotonic()
        begin, end = curriculum.positions(step)
        pace = curriculum.pace(step)
        batch = loader.batch(begin, end)
        if pace.row_pieces > 1:
            batch = batch.shortened(run.model.context // pace.row_pieces)
        if run.model.dropout:
            seed_dropout(run.train.seed, step, ranks.rank)
        used_scale = scale.value
        done = engine.step(batch, pace, used_scale)
        overflow = scale.adapt(done)
        nonfinite = 0 if done.applied else nonfinite + (not overflow)
        fresh = objective.text_tokens(data, begin, end)
        tokens += fresh
        read = {"pos_start": begin, "pos_end": end, "row_pieces": pace.row_pieces}
        journal.add("steps", step=step, **read, applied=done.applied)
        journal.add(
            "metrics",
            step=step,
            tokens=tokens,
            loss=done.loss,
            grad_norm=done.grad_norm,
            lr=pace.lr,
            max_norm=pace.max_norm,
            scale=used_scale,
            thermometers=done.thermometers,
            thermometer_lows=done.lows,
            thermometer_highs=done.highs,
            **_by_term(objective.terms, done),
        )
        if overflow:
            journal.event(step, "overflow", "Numerics", range(begin, end), scale=used_scale)
            link.tell("event", event="overflow", step=step, scale=used_scale, next_scale=scale.value)
        elif not done.applied:
            journal.event(step, "skipped_step", "Numerics", range(begin, end), loss=str(done.loss))
            link.tell("event", event="skipped_step", step=step, loss=str(done.loss), grad_norm=str(done.grad_norm))
        wall = time.monotonic() - began
        speed = fresh / wall
        journal.add("perf", step=step, wall_s=wall, tokens_s=speed, mfu=None, rss=resident_bytes())
        step += 1
        link.beat(step)
        if done.applied:
            link.step(
                step == steps, step=step, steps=steps, loss=done.loss, lr=pace.lr, tokens=tokens, tokens_s=round(speed)
            )
        checkpoints.advance()
        if nonfinite >= run.train.max_nonfinite_steps:
            checkpoints.finish()
            raise Numerics(
                f"training gave a non-finite loss or gradient in {nonfinite} steps in a row, the last at step"
                f" {step - 1} (positions {begin} to {end} of ORDER). Lower train.schedule.peak_lr, or look at these"
                f" documents with `bessemer step`."
            )
        # The request reaches the ranks one after the other, perhaps at different steps; they stop at the same one.
        stopping = ranks.any(link.stop_requested) and step < steps
        if step % run.train.checkpoint_steps == 0 or stopping:
            link.between_steps()
            record = {**expected, "nonfinite": nonfinite, "loss_scale": scale.state}
            checkpoints.save(step, engine, journal, record, run.train.keep_checkpoints)
            link.beat(step)
        if stopping:
            checkpoints.finish()
            raise Infra(f"asked to stop after step {step - 1}; a checkpoint was written, run again to go on")


def _by_term(terms: tuple[str, ...], done: StepResult) -> dict[str, float | None]:
    """Columns of METRICS for an objective of several terms."""
    if len(terms) == 1:
        return {"masked_loss": None, "masked_accuracy": None, "next_loss": None, "next_accuracy": None}
    named = {f"{term}_loss": loss for term, loss in zip(terms, done.losses, strict=True)}
    return {**named, **{f"{term}_accuracy": share for term, share in zip(terms, done.accuracies, strict=True)}}


def _write_result(
    result: Path, run: TrainerRun, rows: RowFormat | None, engine: Engine, ranks: Ranks, journal: Journal
) -> None:
    """Everything beside the description first, the description last: its existence means trained to the end."""
    weights = whole_tables(engine.weights())
    if not ranks.is_first:
        return
    # A trainer that was paused here and passed over may still hold these files open: fresh ones are out of its reach.
    shutil.rmtree(result, ignore_errors=True)
    result.mkdir()
    journal.write(result)
    save_model(
        result,
        run.model,
        weights,
        {
            "architecture": run.model.architecture,
            "parameters": parameter_count(run.model),
            "flops_per_token": flops_per_token(run.model, rows),
            "tokenizer_digest": run.tokenizer_digest,
            "thermometers": thermometer_names(run.model),
            "train": run.train.model_dump(mode="json", exclude=RUNTIME_SETTINGS),
        },
    )
