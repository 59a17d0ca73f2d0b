"""Run a few steps of a run, timed as a whole and operation by operation.

Nothing is written; network and optimizer are discarded afterwards.
"""

import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from model.config.train import TrainerRun
from model.data.dataset import SequenceReader
from model.data.loader import CausalBatch, MaskedBatch, SpanBatch
from model.distributed.process_group import SINGLE_PROCESS
from model.engines import make_engine
from model.engines.products import fastest_products
from model.engines.runtime import AUTOCAST_TYPES, deterministic_kernels
from model.errors import RecipeError
from model.nn.factory import flops_per_token
from model.objectives import make_objective
from model.optim.schedules import StepSchedule
from model.profile.modules import PARTS, PHASES, OperationCounter, PartCost
from model.profile.roofline import Machine, clock_for, measured_machine
from model.train.initial_weights import initial_network
from model.train.resume import check_rows

LEARNING_RATE = 1e-5
"""So small that the measured steps do not make the network diverge, whatever the run's own."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the network and of one process's batch."""

    vocabulary: int
    width: int
    hidden: int
    layers: int
    context: int
    micro_batch_rows: int
    batch_rows: int
    element_bytes: int
    """Bytes of a number in a matrix product."""


@dataclass(frozen=True)
class StepProfile:
    """The seconds of a step; `parts`, `loader_seconds` and `between_seconds` add up to them."""

    seconds: float
    loader_seconds: float
    between_seconds: float
    """Seconds outside operations: Python, autograd, calls of kernels."""
    parts: tuple[PartCost, ...]
    slowdown: float
    """Ratio of the time of a step whose operations are timed to that of a plain one."""
    tokens: int
    padding_share: float
    """Share of the rows' tokens that is padding at their ends."""
    model_flops: float
    """FLOPs of a step by 6 N + 12 L D T for each token."""
    shape: Shape
    machine: Machine

    @property
    def flops(self) -> float:
        """FLOPs of all matrix products that ran."""
        return sum(part.flops for part in self.parts)

    def of_part(self, name: str) -> tuple[PartCost, ...]:
        """Return the costs of one part in all phases."""
        return tuple(cost for cost in self.parts if cost.part == name)


def profile_step(run: TrainerRun, steps: int, machine: Machine | None = None, trace: Path | None = None) -> StepProfile:
    """Profile a training step: the fastest of `steps` plain ones, and each part's least time in as many timed ones.

    On a shared processor some steps are delayed by other processes. A run of several ranks or of DeepSpeed is measured
    as one process of the native engine with a rank's share of the rows, without communication between ranks. `machine`
    is measured here by default. The operations of one more step are written to `trace`, JSON that chrome://tracing and
    Perfetto draw. Raises InputError and RecipeError as training does.
    """
    run = _as_single_rank(run)
    data = SequenceReader(run.sequences, run.order, run.model.vocab_size)
    check_rows(data, run)
    rows = min(run.train.batch_rows, data.positions)
    objective = make_objective(run)
    tokens = rows * objective.tokens_per_row(data.row_length)
    matrix_type = AUTOCAST_TYPES.get(run.train.dtype, torch.float32)
    with deterministic_kernels(run.train.threads), fastest_products(run.train.dtype):
        machine = machine or measured_machine(matrix_type)
        clock = clock_for(run.train.threads)
        network = initial_network(run, resumes=False).network
        engine = make_engine(run, network, SINGLE_PROCESS)
        loader = objective.loader(data)
        padding: list[float] = []

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
        plain: list[tuple[float, float]] = []
        timed: list[tuple[float, OperationCounter]] = []
        # Plain and timed steps alternate, so that other processes disturb both alike.
        for index in range(steps):
            plain.append(step(2 * index + 1))
            counter = OperationCounter(network, machine, clock)
            with counter:
                timed.append((sum(step(2 * index + 2)), counter))
        if trace is not None:
            with torch.profiler.profile() as recorded:
                step(2 * steps + 1)
            recorded.export_chrome_trace(str(trace))
    loading, computing = min(plain, key=sum)
    quickest = _quickest([counter for _, counter in timed])
    within = sum(cost.seconds for cost in quickest)
    # Noise, or operations slowed down by their timing: their proportions are still valid.
    factor = min(1.0, computing / within)
    return StepProfile(
        seconds=loading + computing,
        loader_seconds=loading,
        between_seconds=max(0.0, computing - within * factor),  # rounding can leave -2e-18
        parts=tuple(
            replace(cost, seconds=cost.seconds * factor, small_seconds=cost.small_seconds * factor) for cost in quickest
        ),
        slowdown=min(seconds for seconds, _ in timed) / (loading + computing),
        tokens=tokens,
        padding_share=statistics.fmean(padding),
        model_flops=tokens * flops_per_token(run.model, data.row_format),
        shape=Shape(
            vocabulary=run.model.vocab_size,
            width=run.model.width,
            hidden=run.model.hidden,
            layers=run.model.layers,
            context=run.model.context,
            micro_batch_rows=min(run.train.rows_at_once, rows),
            batch_rows=rows,
            element_bytes=matrix_type.itemsize,
        ),
        machine=machine,
    )


def _quickest(counters: list[OperationCounter]) -> list[PartCost]:
    """Return the work of each part in the first of some steps, with its least time in any of them."""
    found: list[PartCost] = []
    for place in ((part, phase) for part in PARTS for phase in PHASES):
        if place in counters[0].costs:
            costs = [counter.costs[place] for counter in counters if place in counter.costs]
            least = min(costs, key=lambda cost: cost.seconds)
            found.append(replace(costs[0], seconds=least.seconds, small_seconds=least.small_seconds))
    return found


def _as_single_rank(run: TrainerRun) -> TrainerRun:
    """Return one rank of the run as a run of its own, on the native engine."""
    if run.train.trainable == "new_rows":
        raise RecipeError(
            "train.trainable is new_rows, and the profile measures steps that train all weights; profile a run that"
            " trains them all"
        )
    if run.train.device != "cpu":
        raise RecipeError(
            f"train.device is {run.train.device}, and the profile measures processors. Set it to cpu in a copy of the"
            f" file, or use the device's own profiler"
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


def _padding_share(batch: CausalBatch | MaskedBatch | SpanBatch, pad: int) -> float:
    """Return the share of padding at the ends of rows; padding ids elsewhere are ordinary tokens."""
    if not isinstance(batch, CausalBatch):
        return 0.0 if batch.is_token_BT is None else float((~batch.is_token_BT).double().mean())
    at_end = (batch.tokens_BL == pad).flip(1).cumprod(1)
    return float(at_end.double().mean())
