"""Run a few steps of a run, timed as a whole and operation by operation.

Nothing is written; network and optimizer are discarded afterwards.
"""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from model.config.train import TrainerRun
from model.data.dataset import SequenceReader
from model.data.loader import CausalBatch, MaskedBatch, SpanBatch
from model.distributed.process_group import SINGLE_PROCESS
from model.engines import make_engine
from model.engines.runtime import AUTOCAST_TYPES
from model.errors import InputError, RecipeError
from model.nn.factory import flops_per_token
from model.objectives import make_objective
from model.optim.schedules import StepSchedule
from model.profile.cost_model import Operation, Recorder, Shape, StepProfile, costs_of, scaled
from model.profile.roofline import Machine, clock_for, measured_machine
from model.train.initial_weights import initial_network
from model.train.resume import check_rows

ELEMENT_BYTES = {"bfloat16": 2, "float16": 2}
"""Bytes of a number in a matrix product, by dtype; four for all others."""

LEARNING_RATE = 1e-5
"""So small that the measured steps do not make the network diverge, whatever the run's own."""


def profile_step(run: TrainerRun, steps: int = 3, machine: Machine | None = None) -> StepProfile:
    """Profile a training step: the fastest of `steps` untimed steps, and the median time of each operation.

    On a shared processor some operations are delayed by other processes; neither figure is affected. A run of several
    ranks or of DeepSpeed is measured as one process of the native engine with a rank's share of the rows, without
    communication between ranks. `machine` is measured here by default. Raises InputError and RecipeError as training
    does.
    """
    run = _as_single_rank(run)
    data = SequenceReader(run.sequences, run.order, run.model.vocab_size)
    check_rows(data, run)
    rows = min(run.train.batch_rows, data.positions)
    if rows == 0:
        raise InputError(f"{run.order} lists no rows, so there is no step to measure. Run again from chunk.")
    row_tokens = make_objective(run).tokens_per_row(data.row_length)
    with _as_in_training(run.train.threads):
        machine = machine or measured_machine(AUTOCAST_TYPES.get(run.train.dtype, torch.float32))
        clock = clock_for(run.train.threads)
        network = initial_network(run, resumes=False).network
        engine = make_engine(run, network, SINGLE_PROCESS)
        loader = make_objective(run).loader(data)
        padding: list[float] = []
        plain: list[tuple[float, float]] = []
        recorded: list[tuple[float, list[Operation]]] = []

        def step(index: int) -> tuple[float, float]:
            begin = index * rows % (data.positions - rows + 1)
            began = clock()
            batch = loader.batch(begin, begin + rows)
            read = clock()
            padding.append(_padding_share(batch, run.pad))
            stepping = clock()
            engine.step(batch, StepSchedule(LEARNING_RATE))
            return read - began, clock() - stepping

        step(0)
        # Plain and timed steps alternate, so that other processes disturb both alike.
        for index in range(steps):
            plain.append(step(2 * index + 1))
            recorder = Recorder(network, clock)
            with recorder.recording():
                seconds = sum(step(2 * index + 2))
            recorded.append((seconds, recorder.operations))
    loading, computing = min(plain, key=sum)
    parts = costs_of([operations for _, operations in recorded], machine)
    within = sum(cost.seconds for cost in parts)
    if within > computing:
        # Noise, or operations slowed down by their timing: their proportions are still valid.
        parts = tuple(scaled(cost, computing / within) for cost in parts)
        within = computing
    return StepProfile(
        seconds=loading + computing,
        loader_seconds=loading,
        between_seconds=computing - within,
        parts=parts,
        slowdown=min(seconds for seconds, _ in recorded) / (loading + computing),
        tokens=rows * row_tokens,
        padding_share=statistics.fmean(padding),
        model_flops=rows * row_tokens * flops_per_token(run.model, data.row_format),
        shape=_shape(run, rows, ELEMENT_BYTES.get(run.train.dtype, 4)),
        machine=machine,
    )


def _shape(run: TrainerRun, rows: int, element_bytes: int) -> Shape:
    return Shape(
        vocabulary=run.model.vocab_size,
        width=run.model.width,
        hidden=run.model.hidden,
        layers=run.model.layers,
        context=run.model.context,
        micro_batch_rows=min(run.train.rows_at_once, rows),
        batch_rows=rows,
        element_bytes=element_bytes,
    )


def _as_single_rank(run: TrainerRun) -> TrainerRun:
    """Return one rank of the run as a run of its own, on the native engine."""
    if run.train.trainable == "new_rows":
        raise RecipeError(
            "train.trainable is new_rows, and the profile measures steps that train all weights; profile a run that"
            " trains them all"
        )
    share = run.train.batch_rows // run.train.data_parallel
    settings = {
        "engine": "native",
        "ranks": 1,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "batch_rows": share,
        "micro_batch_rows": run.train.rows_at_once,
    }
    return run.model_copy(update={"train": run.train.model_copy(update=settings)})


@contextmanager
def _as_in_training(threads: int) -> Iterator[None]:
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])


def _padding_share(batch: CausalBatch | MaskedBatch | SpanBatch, pad: int) -> float:
    """Return the share of padding at the ends of rows; padding ids elsewhere are ordinary tokens."""
    if not isinstance(batch, CausalBatch):
        return float((~batch.is_token_BT).double().mean())
    at_end = (batch.tokens_BL == pad).flip(1).cumprod(1)
    return float(at_end.double().mean())
