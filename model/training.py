"""A training run: attempts of it, until one reaches the end.

A step is a function of (weights, position in ORDER), so the whole state of a run is what a checkpoint holds. Killed
at any instant and started again, the run ends with bit-identical weights, METRICS and STEPS. Every rank does the same;
the first one writes and speaks.
"""

import os
import shutil
from pathlib import Path
from typing import TextIO

import torch

from model.agreement import check_rows
from model.checkpoint import Checkpoint, newest_checkpoint, set_damaged_aside
from model.checkpoint_writer import CheckpointWriter
from model.complete import complete, why_damaged
from model.config import TrainerRun
from model.curriculum import Curriculum
from model.data import SequenceReader
from model.devices import training_device
from model.durable import sync_directory
from model.engine import Engine
from model.engines import make_engine
from model.guard.attempts import drop_abandoned, journal_so_far
from model.guard.deciding import check_ladder
from model.guard.decision import Decision, formerly, in_force, read_decisions
from model.guard.going_back import go_back
from model.guard.guard import Guard
from model.journal import Journal
from model.link import Link
from model.loop import Loop
from model.loss_scale import LossScale
from model.micro_batch import with_decided_rows
from model.networks import flops_per_token, parameter_count, thermometer_names
from model.peak import peak_flops
from model.ranks import ALONE, Ranks
from model.reproduction import write_reproduction
from model.restarts import FEWER_RANKS, take_over
from model.resumption import RUNTIME_SETTINGS, must_agree, optimizer_layout
from model.row_format import RowFormat
from model.run_folder import CHECKPOINTS, HEARTBEAT, RESULT, RUN_FILE
from model.split_tables import whole_tables
from model.start import starting_network
from model.weights import save_model


def train(run: TrainerRun, ranks: Ranks = ALONE, messages: TextIO | None = None) -> Path:
    """Train to the end of ORDER, going on from the newest whole checkpoint; returns the folder of the result.

    `messages` gets what the first rank tells the launcher, where it listens. Raises InputError for sequences that do
    not fit the model, Numerics after too many non-finite steps in a row, Infra when asked to stop and Paused
    where the run asks for a pause (both after a checkpoint was written).
    """
    result = run.out / RESULT
    if why_damaged(result) is None:
        return result
    run.out.mkdir(parents=True, exist_ok=True)
    with Link(run.out / HEARTBEAT, messages if ranks.is_first else None, ranks.heartbeat) as link:
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


def _attempt(begun: TrainerRun, data: SequenceReader, ranks: Ranks, result: Path, link: Link) -> bool:
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
        link.tell("event", event="base_model", **start.facts)
    for damage in damaged:
        journal.event(step, "damaged_checkpoint", "IntegrityError", name=damage.name, reason=damage.reason)
        link.tell("event", event="damaged_checkpoint", name=damage.name, reason=damage.reason)
    guard = Guard(begun, decisions, state.get("guard"))
    scale = LossScale(run.train, state["loss_scale"] if state.get("dtype") == run.train.dtype else None)
    record = {**record, "attempt": len(decisions), "optimizer": layout, "dtype": run.train.dtype}
    with CheckpointWriter(folder, ranks, lambda step: link.tell("checkpoint", step=step)) as checkpoints:
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
    link.tell("done", steps=loop.curriculum.steps, folder=str(result))
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
        engine.restore_recut([checkpoint.optimizer_state(rank, shards) for rank in range(shards)])


def _tell_start(run: TrainerRun, data: SequenceReader, curriculum: Curriculum, step: int, link: Link) -> None:
    steps, flops = curriculum.steps, flops_per_token(run.model, data.row_format)
    link.tell("start", step=step, steps=steps, parameters=parameter_count(run.model), flops_per_token=flops)
    if run.train.compile and (rest := curriculum.steps_with_rest()):
        link.tell("event", event="compiled_in_part", steps_with_rows_that_fill_no_micro_batch=rest, of=steps)


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
    weights = whole_tables(engine.weights())
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
            "thermometers": thermometer_names(run.model),
            "train": run.train.model_dump(mode="json", exclude=RUNTIME_SETTINGS),
            "decisions": [decision.model_dump(mode="json") for decision in decisions],
        },
    )
    complete(result)
    sync_directory(result)
