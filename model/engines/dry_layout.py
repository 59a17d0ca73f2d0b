"""Start one rank of a layout without devices, other ranks or memory, and count what a step keeps and sends.

The rank joins a process group of any size that does nothing (torch's fake group), builds mesh, shards, pipeline stage
and optimizer as a rank of a training does (`DividedEngine`), and makes two steps over fake tensors, which have shapes
and no contents. Every allocation and every message of the second step is counted.

Only networks of a few blocks a stage make steps: each further block adds the same, and each further micro-batch too
once the pipeline is full. `tests/model/engines/test_dry_layout.py` compares with ranks that train. Traced with CPU
kernels; those of CUDA devices keep other tensors of attention.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from model.config.network import NetworkConfig
from model.config.train import TrainConfig, TrainerRun
from model.distributed.process_group import Ranks
from model.engines.base import Box, Parts
from model.engines.counters import Allocations, MessageCount, Messages
from model.engines.divided import DividedEngine, local
from model.engines.runtime import wrap_blocks
from model.engines.sizes import rank_sizes
from model.nn.factory import make_shapes
from model.nn.stages import block_count, stage_blocks
from model.objectives.base import map_batch
from model.objectives.synthetic import EOS, random_batch
from model.optim.optimizers import optimizer_tensors
from model.optim.schedules import StepSchedule

FEW_BLOCKS = 3
"""Blocks of a stage of the smaller of two networks that make steps: FSDP computes one group while it gathers the next
and sums gradients of the one before."""

FILLING = 2
"""Micro-batches beyond those that fill the pipeline, after which each further one adds the same."""


@dataclass(frozen=True)
class DryRank:
    """Bytes on one rank of a pipeline stage, and of its messages in a step."""

    stage: int
    weights: float
    gradients: float
    """Of its part of the weights."""
    optimizer: float
    kept: float
    """Activations that a micro-batch keeps from its forward to its backward pass."""
    in_flight: int
    """Micro-batches that are between the two at the fullest."""
    peak: float
    """At the fullest, with all of the above, gathered weights, buffers of messages and temporary tensors."""
    messages: Messages

    @property
    def activations(self) -> float:
        """Bytes of all micro-batches in flight."""
        return self.kept * self.in_flight

    def to_json(self) -> dict[str, object]:
        """Return all of it as plain values."""
        return {**dataclasses.asdict(self), "activations": self.activations}


@dataclass(frozen=True)
class DryLayout:
    """A layout that was started dry."""

    ranks: tuple[DryRank, ...]
    """One of each kind of pipeline stage: the first, one between, the last."""
    micro_batches: int
    """Of a rank in a step."""
    bubble: float
    """Share of a step in which a pipeline stage waits: (s - 1) / (m + s - 1) of s stages and m micro-batches."""

    @property
    def fullest(self) -> DryRank:
        """Return the rank with the highest peak."""
        return max(self.ranks, key=lambda rank: rank.peak)


def dry_layout(model: NetworkConfig, train: TrainConfig) -> DryLayout:
    """Start a rank of each kind of stage of a training that divides weights, and return what they need.

    No process group may be in use. Raises DynamicOutputShapeException where a pass depends on the contents of rows.
    """
    assert train.divides_weights, "other engines start each rank with the whole network"
    stages = train.pipeline_parallel
    micro_batches = micro_batch_count(train)
    return DryLayout(
        ranks=tuple(dry_rank(model, train, stage) for stage in sorted({0, min(1, stages - 1), stages - 1})),
        micro_batches=micro_batches,
        bubble=(stages - 1) / (micro_batches + stages - 1),
    )


def micro_batch_count(train: TrainConfig) -> int:
    """Return the micro-batches of a rank in a step of full size."""
    return -(-train.batch_rows // (train.data_parallel * train.rows_at_once))


def dry_rank(model: NetworkConfig, train: TrainConfig, stage: int) -> DryRank:
    """Return what the first rank of a stage holds of the whole network, and needs for steps, made with few blocks."""
    # Phases change no size, and their tables cannot be hashed. The processor can compute all types.
    train = train.model_copy(update={"phases": (), "device": "cpu", "compile": False})
    return _dry_rank(model, train, stage)  # pyright: ignore[reportArgumentType]


@lru_cache(maxsize=256)
def _dry_rank(model: NetworkConfig, train: TrainConfig, stage: int) -> DryRank:
    whole = rank_sizes(model, train, stage * train.data_parallel * train.tensor_parallel)
    weights, optimizer = whole.weights, whole.moments
    micro_batches = micro_batch_count(train)
    kept, passing, updating, *messages = _of_all_blocks(model, train, stage, micro_batches)
    return DryRank(
        stage=stage,
        weights=weights,
        gradients=weights,
        optimizer=optimizer,
        kept=kept,
        in_flight=min(train.pipeline_parallel - stage, micro_batches),
        peak=weights + optimizer + max(passing, updating),
        messages=Messages(*messages),
    )


def _of_all_blocks(model: NetworkConfig, train: TrainConfig, stage: int, micro_batches: int) -> list[float]:
    """Return `_traced` of a stage with all its blocks.

    Where stages have different numbers of blocks, `sums` is off by the ranges of activations, 16 bytes a block.
    """
    stages = train.pipeline_parallel
    # T5's blocks are those of the encoder and those of the decoder, so that each layer adds two.
    of_layer = block_count(model) // model.layers
    few, more = (-(-stages * blocks // of_layer) for blocks in (FEW_BLOCKS, FEW_BLOCKS + of_layer))
    if model.layers <= more:
        return _traced(model, train, stage, micro_batches).tolist()
    small = [model.model_copy(update={"layers": layers}) for layers in (few, more)]
    counts = [len(stage_blocks(stage, stages, block_count(one))) for one in small]
    less, greater = (_traced(one, train, stage, micro_batches) for one in small)
    further = len(stage_blocks(stage, stages, block_count(model))) - counts[0]
    return (less + further / (counts[1] - counts[0]) * (greater - less)).tolist()


def _traced(model: NetworkConfig, train: TrainConfig, stage: int, micro_batches: int) -> np.ndarray:
    """Return what a micro-batch keeps, peaks beyond weights and moments of passes and of the update, and bytes of
    messages."""
    traced = min(micro_batches, max(train.pipeline_parallel, train.pipeline_parallel - stage + FILLING))
    rows = traced * train.data_parallel * train.rows_at_once
    with _started(model, train, stage) as engine:
        # One row that is repeated, without memory for each.
        batch = map_batch(lambda one: one.expand(rows, *one.shape[1:]), random_batch(model, 1).rows)
        return engine.measure(batch, traced, micro_batches)


@contextmanager
def _started(model: NetworkConfig, train: TrainConfig, stage: int) -> "Iterator[_DryEngine]":
    rank = stage * train.data_parallel * train.tensor_parallel
    run = TrainerRun.model_construct(
        sequences=(), order=Path(), out=Path(), pad=-1, eos=EOS, tokenizer_digest="", model=model, train=train
    )
    propagate = ShardingPropagator._propagate_tensor_meta_non_cached

    def uncounted(*arguments: Any) -> Any:
        # Makes tensors as large as the whole weight to learn the shape of a result.
        with _disable_current_modes():
            return propagate(*arguments)

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=train.ranks)
    try:
        ShardingPropagator._propagate_tensor_meta_non_cached = uncounted  # pyright: ignore[reportAttributeAccessIssue]
        network = make_shapes(model)
        wrap_blocks(network, compiled=False, recomputed=train.recompute)
        yield _DryEngine(run, network.train(), Ranks(rank, train.ranks))
    finally:
        ShardingPropagator._propagate_tensor_meta_non_cached = propagate
        torch.distributed.destroy_process_group()
        # PyTorch takes a mesh of the same form for the same mesh: ranks that this process joins, or forks, afterwards
        # would sum over the groups of the fake ones, whose losses were off by up to 9% without an error.
        _clear_sharding_prop_cache()


class _DryEngine(DividedEngine):
    """Allocates and computes fake tensors; `parallelize_module` and `fully_shard` do not work on them, and run before
    on the meta device."""

    def __init__(self, run: TrainerRun, network: Any, ranks: Ranks) -> None:
        self._mode, self._allocations = FakeTensorMode(allow_non_fake_inputs=True), Allocations()
        super().__init__(run, network, ranks, _empty)

    def _allocate(self, device: torch.device) -> None:
        with self._mode, self._allocations:
            super()._allocate(device)

    def _fill(self, seed: int, weights: Parts | None) -> None:
        with self._mode:
            super()._fill(seed, weights)

    def state_bytes(self) -> int:
        """Return the bytes of this rank's weights and, after it made them, of the optimizer's moments."""
        with self._mode, self._allocations:
            for parameter in self.network.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        parameters = list(self.network.parameters())
        moments = [one for own in parameters for one in optimizer_tensors(self.optimizer, own).values() if one.dim()]
        return sum(local(one).nbytes for one in (*parameters, *moments))

    def measure(self, batch: Any, traced: int, micro_batches: int) -> np.ndarray:
        """Make a step of so many micro-batches; return `_traced` for a number of them that may be larger."""
        state = self.state_bytes()
        messages, sent = _Values(), list[np.ndarray]()
        allocations = self._allocations
        before_step = allocations.peak = allocations.now
        known: list[dict[int, int]] = []

        def before(*_: Any) -> None:
            if not sent:
                # Before their first step, neighbouring stages have greeted each other.
                messages.reset()
            sent.append(_vector(messages))
            known.append(dict(allocations.known))

        def after(*_: Any) -> None:
            known.append(dict(allocations.known))

        hooks = self._stage.register_forward_pre_hook(before, prepend=True), self._stage.register_forward_hook(after)
        with hooks[0], hooks[1], self._mode, allocations, messages:
            self.begin(batch, StepSchedule(1e-3, max_norm=0.5))
            self.finish()
        further = micro_batches - traced
        # Buffers of messages between stages: two for each micro-batch, of which none is used twice.
        added = (allocations.now - before_step) / traced * further - state
        steady = sent[-1] - sent[-2] if further else 0
        kept = {storage: size for storage, size in known[-1].items() if storage not in known[-2]}
        kept_bytes = sum(size for storage, size in kept.items() if storage not in allocations.resized)
        return np.array(
            [kept_bytes, self._passing + added, allocations.peak + added, *(_vector(messages) + further * steady)]
        )

    def _sum_gradients(self) -> None:
        self._passing, self._allocations.peak = self._allocations.peak, self._allocations.now
        super()._sum_gradients()


def _empty(name: str, box: Box) -> Tensor:
    del name
    return torch.empty([side.stop - side.start for side in box])


def _vector(messages: MessageCount) -> np.ndarray:
    return np.array(dataclasses.astuple(messages.found))


class _Values(MessageCount):
    """Returns 1 for every number that the host reads."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default):
            return 1
        return super().__torch_dispatch__(func, types, args, kwargs)
