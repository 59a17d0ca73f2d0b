"""The native engine where one copy of the model takes several ranks: data x tensor x pipeline parallelism.

Matrices are sharded over tensor ranks, layers over pipeline stages, and groups of them share the batch (Narayanan et
al. 2021, section 3.1). Ranks that shard the same matrices communicate most, four times a block, and have neighbouring
numbers; ranks of successive stages communicate least, and are farthest apart.

It differs from the native engine in how micro-batches are computed, which gradients are summed where, and how weights
are gathered; norm, clipping and the handling of non-finite numbers are those of the native engine.
"""

from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from model.config.train import TrainConfig, TrainerRun
from model.distributed.process_group import Ranks
from model.engines.base import Totals, batch_loss
from model.engines.native import NativeEngine
from model.engines.pipeline_parallel import (
    ActivationRanges,
    PipelineRunner,
    all_ranges,
    keep_stage_weights,
    make_stage,
    stages_holding,
)
from model.engines.runtime import autocast
from model.engines.tensor_parallel import shard_network, sharding_of
from model.nn.factory import Network, activation_range_names
from model.objectives.base import RankBatch, Sums


class ParallelEngine(NativeEngine):
    """Data x tensor x pipeline parallelism over gloo. Every rank gets the whole network and keeps its part."""

    def __init__(self, run: TrainerRun, network: Network, ranks: Ranks) -> None:
        self._layout = make_layout(run.train, "cpu")
        tensor, stage, stages = self._layout.tensor, self._layout.pipeline.rank, self._layout.pipeline.size
        self._placements = [WeightPlacement(name, p.shape, run) for name, p in network.named_parameters()]
        if stages > 1:
            keep_stage_weights(network, run.model, stage, stages)
        if tensor.size > 1:
            shard_network(network, tensor)
        super().__init__(run, network, ranks)
        self._data_ranks = self._layout.data
        self.optimizer_shards = ranks.size
        computing = partial(autocast, run.train.dtype, torch.device("cpu"))
        self._pipeline = PipelineRunner(
            make_stage(network, stage, stages), self._layout.pipeline, self._rank_of_stage, computing
        )
        self._range_names = activation_range_names(run.model)
        # The head has one range for the logits of each term.
        self._names_before_head = self._range_names[: -len(self._objective.terms)]

    def _rank_of_stage(self, stage: int) -> int:
        """Return the world rank in another stage with the same data and tensor rank."""
        return world_rank(self._config, stage, self._layout.data.rank, self._layout.tensor.rank)

    def _forward_backward(self, share: RankBatch, loss_scale: float) -> Totals:
        totals = Totals()

        def loss(number: int, hidden: Tensor, ranges: ActivationRanges) -> Tensor:
            before_head = all_ranges(ranges, self._names_before_head)
            sums = self._objective.sums_from_hidden(self.network, hidden, before_head, share.micro_batches[number])
            # Tensor ranks have the same loss, which counts once.
            totals.add(sums if self._layout.tensor.is_first else self._zero_sums(sums.activation_ranges))
            return batch_loss(sums, share.counted, loss_scale)

        def without_loss(ranges: ActivationRanges) -> None:
            totals.add(self._zero_sums(torch.stack(all_ranges(ranges, self._range_names))))

        inputs = [self._objective.inputs(self.network, batch) for batch in share.micro_batches]
        self._pipeline.run(inputs, loss, without_loss)
        return totals

    def _zero_sums(self, ranges: Tensor) -> Sums:
        zeros = (ranges.new_zeros(()),) * len(self._objective.terms)
        return Sums(zeros, zeros if self._objective.counts_correct else (), ranges)

    def _sum_gradients(self) -> None:
        own = dict(self.network.named_parameters())
        for placement in self._placements:
            if placement.sharding.partial_gradient and placement.name in own:
                self._layout.tensor.sum_(_gradient(own[placement.name]))
            if len(placement.stages) > 1 and placement.name in own:
                self._sum_over_stages(_gradient(own[placement.name]), placement.stages)
        super()._sum_gradients()

    def _sum_over_stages(self, gradient: Tensor, stages: list[int]) -> None:
        """Sum a gradient over the stages that hold its weight: the first one adds, and sends the sum to the others."""
        first, *others = (self._rank_of_stage(stage) for stage in stages)
        if self._ranks.rank != first:
            torch.distributed.send(gradient, first)
            torch.distributed.recv(gradient, first)
            return
        buffer = torch.empty_like(gradient)
        for other in others:
            torch.distributed.recv(buffer, other)
            gradient.add_(buffer)
        for other in others:
            torch.distributed.send(gradient, other)

    def _gradient_norm(self) -> float:
        own = dict(self.network.named_parameters())
        counted = [
            _gradient(own[placement.name])
            for placement in self._placements
            if placement.name in own and self._counts(placement)
        ]
        square = torch.nn.utils.get_total_norm(counted).double().square()
        return float(self._layout.pipeline.sum_(self._layout.tensor.sum_(square)).sqrt())

    def _counts(self, placement: "WeightPlacement") -> bool:
        """Return whether this rank's part of a weight enters the norm: replicated weights enter once."""
        is_writer = placement.stages[0] == self._layout.pipeline.rank
        return is_writer and (self._layout.tensor.is_first or not placement.sharding.is_whole)

    def weights(self) -> dict[str, Tensor]:
        """Gather the weights from the ranks of the first copy, one weight at a time, onto the first rank."""
        if not self._layout.data.is_first:
            return {}
        own = {name: parameter.detach() for name, parameter in self.network.named_parameters()}
        found = {placement.name: self._whole(placement, own.get(placement.name)) for placement in self._placements}
        return {name: weight for name, weight in found.items() if weight is not None}

    def _whole(self, placement: "WeightPlacement", own: Tensor | None) -> Tensor | None:
        """Return the whole weight on the first rank, to which its writers send their parts; None on the others."""
        size, parts = self._layout.tensor.size, []
        for tensor in range(size if placement.sharding.dimension is not None else 1):
            writer = world_rank(self._config, placement.stages[0], 0, tensor)
            if writer == self._ranks.rank:
                assert own is not None, "the writer of a weight holds it"
                if self._ranks.is_first:
                    parts.append(own)
                else:
                    torch.distributed.send(own.contiguous(), 0)
            elif self._ranks.is_first:
                parts.append(torch.empty(placement.shape_of_part(tensor, size)))
                torch.distributed.recv(parts[-1], writer)
        return placement.sharding.join(parts) if parts else None


class WeightPlacement:
    """The ranks that hold one weight of the whole network."""

    def __init__(self, name: str, shape: torch.Size, run: TrainerRun) -> None:
        self.name = name
        self.sharding = sharding_of(name, run.model)
        self.stages = stages_holding(name, run.model, run.train.pipeline_parallel)
        self._shape = shape

    def shape_of_part(self, rank: int, size: int) -> torch.Size:
        """Return the shape of the part of one of the tensor ranks."""
        part = self.sharding.part(torch.empty(self._shape, device="meta"), rank, size)
        assert part is not None, "the rank holds a part"
        return part.shape


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, "every weight that a rank holds enters the loss"
    return parameter.grad


@dataclass(frozen=True)
class Layout:
    """The groups that a rank belongs to."""

    data: Ranks
    """Ranks with the same part of the model and other rows."""
    tensor: Ranks
    """Ranks with other parts of the same matrices and the same rows."""
    pipeline: Ranks
    """Ranks with other layers and the same rows, in the order of the layers."""


def world_rank(train: TrainConfig, stage: int, data: int, tensor: int) -> int:
    """Return the world rank with this stage, data rank and tensor rank."""
    return (stage * train.data_parallel + data) * train.tensor_parallel + tensor


def make_layout(train: TrainConfig, device: str) -> Layout:
    """Create the groups; all ranks must call this together, once."""
    sizes = (train.pipeline_parallel, train.data_parallel, train.tensor_parallel)
    mesh = init_device_mesh(device, sizes, mesh_dim_names=("pipeline", "data", "tensor"))
    groups = {name: mesh.get_group(name) for name in ("data", "tensor", "pipeline")}
    ranks = {name: partial(Ranks, mesh.get_local_rank(name), mesh[name].size()) for name in groups}
    return Layout(**{name: ranks[name](group=group) for name, group in groups.items()})
