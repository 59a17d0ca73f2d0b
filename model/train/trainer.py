"""Train one run: attempts, and the steps of each, until an attempt reaches the end of ORDER.

A step is a function of (weights, position in ORDER), so a checkpoint holds the whole state of a run. Killed at any
instant and started again, a run ends with bit-identical weights, METRICS and STEPS. Every rank executes this code; the
first rank alone writes files and sends messages.

`train` repeats `_attempt` until the guard no longer rolls back. An attempt runs steps (`model/train/loop.py`), which
callbacks watch (`model/train/callbacks.py`); `_write_result` publishes the trained model.
"""

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import torch

from model.checkpoint.checkpoint import Checkpoint, newest_checkpoint, quarantine_damaged
from model.checkpoint.complete_marker import complete, find_damage
from model.checkpoint.run_folder import CHECKPOINTS, HEARTBEAT, RESULT, WEIGHTS
from model.checkpoint.state import AttemptState
from model.checkpoint.weights import save_model
from model.checkpoint.writer import CheckpointWriter, write_parts
from model.config.train import TrainerRun
from model.data.dataset import SequenceReader
from model.distributed.messages import BaseWeights
from model.distributed.process_group import SINGLE_PROCESS, Ranks
from model.distributed.protocol import LauncherChannel
from model.engines import make_engine
from model.engines.base import Engine
from model.engines.runtime import LossScale, peak_flops, require_deterministic_kernels, training_device
from model.files import remove
from model.guard.decisions import Decision, effective_config, previous_versions, read_decisions
from model.guard.detection import Divergence
from model.guard.guard import Guard, delete_abandoned, load_metrics_log, roll_back
from model.guard.policy import check_policy
from model.launch.failures import FEWER_RANKS, import_restarts
from model.nn.factory import activation_range_names, flops_per_token, make_shapes, parameter_count
from model.nn.vocab_layers import merge_new_rows
from model.objectives import make_objective
from model.optim.schedules import TrainingSchedule
from model.train.callbacks import Checkpoints, Diverged, Guarding, Metrics, Validating
from model.train.initial_weights import initial_network
from model.train.loop import Attempt, Callback, StepLoop
from model.train.micro_batch import resolve_micro_batch_rows
from model.train.replay import adopt_checkpoints
from model.train.reproduction import write_reproduction
from model.train.resume import (
    check_rows,
    describe_layout,
    optimizer_layout,
    resume_requirements,
    settings_left_out,
)


def train(
    run: TrainerRun,
    ranks: Ranks = SINGLE_PROCESS,
    messages: TextIO | None = None,
    callbacks: Sequence[Callback] = (),
) -> Path:
    """Train to the end of ORDER, from the newest intact checkpoint if there is one; return the folder of the result.

    The first rank writes its messages to the launcher into `messages`. `callbacks` are called after the trainer's own.
    Raises InputError for sequences that do not fit the model, Numerics after too many non-finite steps in a row, and,
    both after writing a checkpoint, Infra when asked to stop and Paused where the run asks for a pause.
    """
    result = run.out / RESULT
    if find_damage(result) is None:
        return result
    run.out.mkdir(parents=True, exist_ok=True)
    with LauncherChannel(run.out / HEARTBEAT, messages if ranks.is_first else None, ranks.heartbeat) as channel:
        prepare_process(effective_config(run, read_decisions(run.out)))
        data = SequenceReader(run.sequences, run.order, run.model.vocab_size)
        check_rows(data, run)
        run = resolve_micro_batch_rows(run, data, ranks, channel)
        check_policy(run)
        if ranks.is_first and (adopted := adopt_checkpoints(run, data)):
            channel.send_event("replay", from_step=adopted)
        ranks.barrier()
        while not _attempt(run, data, ranks, channel, callbacks):
            # Wrapped blocks refer to themselves, and the next attempt needs the memory of their network.
            gc.collect()
    return result


def prepare_process(run: TrainerRun) -> None:
    """Set the options of this process that decide bits of the result."""
    torch.set_num_threads(1 if run.train.numerics == "portable" else run.train.threads)
    if run.train.deterministic:
        require_deterministic_kernels()
    # Filling fresh memory costs 6% and hides nothing here: no kernel of ours reads before it writes.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]


def _attempt(
    original: TrainerRun, data: SequenceReader, ranks: Ranks, channel: LauncherChannel, more: Sequence[Callback]
) -> bool:
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

    engine, base = _start_engine(run, checkpoint, ranks)
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
        channel.send_event(FEWER_RANKS, step=step, **facts)
    if state and state["layout"] != record["layout"]:
        before, now = state["layout"], record["layout"]
        log.event(step, "layout_changed", before=before, now=now)
        channel.send_event("layout_changed", before=before, now=now)
    if state and state["optimizer"] != record["optimizer"]:
        log.event(step, "optimizer_anew", before=state["optimizer"], now=record["optimizer"])
    if base is not None:
        log.event(step, "base_model", **base)
        channel.send({"kind": "event", "event": "base_model", **base})
    for damage in damaged:
        log.event(step, "damaged_checkpoint", "IntegrityError", name=damage.name, reason=damage.reason)
        channel.send_event("damaged_checkpoint", name=damage.name, reason=damage.reason)

    objective, schedule = make_objective(run), TrainingSchedule(run.train, data.positions, run.model.context)
    attempt = Attempt(run, data, objective, schedule, engine, ranks, log, channel)
    guard = Guard(run, decisions, state["guard"] if state else None)
    scale = LossScale(run.train, state["loss_scale"] if state and state["dtype"] == run.train.dtype else None)
    divergence: Divergence | None = None
    with CheckpointWriter(folder, ranks, lambda step: channel.send({"kind": "checkpoint", "step": step})) as writer:
        # A step is logged before the guard judges it, so that the tables of a rollback have it, and judged before it is
        # validated or saved.
        callbacks = [
            Metrics(attempt, _peak_tokens_s(run, data, ranks)),
            Guarding(attempt, guard),
            Validating(attempt),
            Checkpoints(attempt, writer, guard, scale, record),
            *more,
        ]
        loop = StepLoop(attempt, scale, guard.limits, callbacks, tokens=state["tokens"] if state else 0)
        _send_start(run, data, schedule, step, channel)
        # Caught within the writer's context, so that a checkpoint under way is completed: the guard may go back to it.
        try:
            loop.run_from(step)
        except Diverged as found:
            divergence = found.divergence
        channel.between_steps()
    if divergence is not None:
        roll_back(original, decisions, divergence, guard, schedule, log, ranks, channel)
        return False
    import_restarts(run.out, log)
    result = original.out / RESULT
    _write_result(result, original, attempt, decisions)
    channel.send({"kind": "done", "steps": schedule.steps, "folder": str(result)})
    return True


def _start_engine(run: TrainerRun, checkpoint: Checkpoint | None, ranks: Ranks) -> tuple[Engine, BaseWeights | None]:
    """Return the engine with its first weights or those of a checkpoint, and which base model they are from, if any."""
    start = initial_network(run, resumes=checkpoint is not None)
    if run.train.divides_weights:
        parts = None
        if checkpoint is not None:
            parts = checkpoint.divided_weights().part
        elif (weights := start.weights) is not None:
            parts = lambda name, box: weights[name][box]  # noqa: E731
        return make_engine(run, start.network, ranks, parts), start.base
    if checkpoint is not None:
        start.network.load_state_dict(checkpoint.weights())
    return make_engine(run, start.network.to(training_device(run.train)), ranks), start.base


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
    run: TrainerRun, data: SequenceReader, schedule: TrainingSchedule, step: int, channel: LauncherChannel
) -> None:
    channel.send(
        {
            "kind": "start",
            "step": step,
            "steps": schedule.steps,
            "parameters": parameter_count(run.model),
            "flops_per_token": flops_per_token(run.model, data.row_format),
        }
    )
    if run.train.compile and (rest := schedule.steps_with_partial_micro_batches()):
        channel.send_event("compiled_in_part", steps_with_rows_that_fill_no_micro_batch=rest, of=schedule.steps)


def _write_result(result: Path, original: TrainerRun, attempt: Attempt, decisions: list[Decision]) -> None:
    """Write all files of the result, and COMPLETE last: its presence means that the run is trained to the end."""
    run, engine, ranks = attempt.run, attempt.engine, attempt.ranks
    weights = engine.weights()
    if ranks.is_first:
        # A trainer that was stopped here and replaced may still hold these files open; it cannot reach fresh ones.
        remove(result)
        result.mkdir()
    if engine.weight_shards > 1:
        ranks.barrier()
        write_parts(result / WEIGHTS, make_shapes(run.model), weights, engine.begins(), ranks)
    if not ranks.is_first:
        return
    attempt.log.write(result)
    write_reproduction(result, original, decisions)
    save_model(
        result,
        run.model,
        merge_new_rows(weights) if engine.weight_shards == 1 else None,
        {
            "architecture": run.model.architecture,
            "parameters": parameter_count(run.model),
            "flops_per_token": flops_per_token(run.model, attempt.data.row_format),
            "tokenizer_digest": run.tokenizer_digest,
            "activation_ranges": activation_range_names(run.model),
            "train": run.train.model_dump(mode="json", exclude=settings_left_out(run.train)),
            "decisions": [decision.model_dump(mode="json") for decision in decisions],
        },
    )
    complete(result)
