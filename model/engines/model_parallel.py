"""The native engine where one copy of the model takes several ranks: matrices cut among them, layers dealt out.

It differs in how micro-batches pass through, in which gradients are added up where, and in how weights come together
again; the step itself, its norm, clipping and policy for non-finite numbers, is the native engine's.

Where a rank stands among data x tensor x pipeline (Narayanan et al. 2021, section 3.1).

Ranks that cut the same matrices talk most, four times a block, and have neighbouring numbers; ranks of following stages
talk least, and are farthest apart.

One model over several ranks: matrices cut across them (tensor parallel), layers one after the other (pipeline
parallel), each group beside copies of itself that share the batch (data parallel).
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
    """Data x tensor x pipeline parallel, over gloo. Every rank is given the whole network and keeps its part."""

    def __init__(self, run: TrainerRun, network: Network, ranks: Ranks) -> None:
        self._layout = make_layout(run.train, "cpu")
        tensor, stage, stages = self._layout.tensor, self._layout.pipeline.rank, self._layout.pipeline.size
        self._places = [WeightPlacement(name, p.shape, run) for name, p in network.named_parameters()]
        if stages > 1:
            keep_stage_weights(network, run.model, stage, stages)
        if tensor.size > 1:
            shard_network(network, tensor)
        super().__init__(run, network, ranks)
        self._readers = self._layout.data
        self.optimizer_shards = ranks.size
        computing = partial(autocast, run.train.dtype, torch.device("cpu"))
        self._pipeline = PipelineRunner(
            make_stage(network, stage, stages), self._layout.pipeline, self._rank_of_stage, computing
        )
        self._thermometers = activation_range_names(run.model)
        # The head has one for the logits of each term.
        self._thermometers_before_head = self._thermometers[: -len(self._objective.terms)]

    def _rank_of_stage(self, stage: int) -> int:
        """Number, among all processes, of the rank of our copy with our part of the matrices in another stage."""
        return world_rank(self._config, stage, self._layout.data.rank, self._layout.tensor.rank)

    def _pass_through(self, share: RankBatch, loss_scale: float) -> Totals:
        totals = Totals()

        def loss(number: int, hidden: Tensor, ranges: ActivationRanges) -> Tensor:
            before_head = all_ranges(ranges, self._thermometers_before_head)
            sums = self._objective.sums_from_hidden(self.network, hidden, before_head, share.micro_batches[number])
            # Ranks that cut the same matrices have the same loss, which counts once.
            totals.add(sums if self._layout.tensor.is_first else self._nothing(sums.activation_ranges))
            return batch_loss(sums, share.counted, loss_scale)

        def without_loss(ranges: ActivationRanges) -> None:
            totals.add(self._nothing(torch.stack(all_ranges(ranges, self._thermometers))))

        inputs = [self._objective.inputs(self.network, batch) for batch in share.micro_batches]
        self._pipeline.run(inputs, loss, without_loss)
        return totals

    def _nothing(self, thermometers: Tensor) -> Sums:
        zeros = (thermometers.new_zeros(()),) * len(self._objective.terms)
        return Sums(zeros, zeros if self._objective.counts_correct else (), thermometers)

    def _sum_gradients(self) -> None:
        own = dict(self.network.named_parameters())
        for place in self._places:
            if place.cut.partial_gradient and place.name in own:
                self._layout.tensor.sum_(_gradient(own[place.name]))
            if len(place.stages) > 1 and place.name in own:
                self._sum_over_stages(_gradient(own[place.name]), place.stages)
        super()._sum_gradients()

    def _sum_over_stages(self, gradient: Tensor, stages: list[int]) -> None:
        """Add up a gradient over the stages that hold its weight: the first of them adds, and tells the others."""
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
        counted = [_gradient(own[place.name]) for place in self._places if place.name in own and self._counts(place)]
        square = torch.nn.utils.get_total_norm(counted).double().square()
        return float(self._layout.pipeline.sum_(self._layout.tensor.sum_(square)).sqrt())

    def _counts(self, place: "WeightPlacement") -> bool:
        """Whether what this rank holds of a weight is in the norm: what several hold alike is there once."""
        is_writer = place.stages[0] == self._layout.pipeline.rank
        return is_writer and (self._layout.tensor.is_first or not place.cut.is_whole)

    def weights(self) -> dict[str, Tensor]:
        """Brought together from the ranks of the first copy, one at a time, and complete on the first rank only."""
        if not self._layout.data.is_first:
            return {}
        own = {name: parameter.detach() for name, parameter in self.network.named_parameters()}
        found = {place.name: self._whole(place, own.get(place.name)) for place in self._places}
        return {name: weight for name, weight in found.items() if weight is not None}

    def _whole(self, place: "WeightPlacement", own: Tensor | None) -> Tensor | None:
        """On the first rank the whole weight; the others send what they have of it, where they are its writers."""
        size, parts = self._layout.tensor.size, []
        for tensor in range(size if place.cut.dimension is not None else 1):
            writer = world_rank(self._config, place.stages[0], 0, tensor)
            if writer == self._ranks.rank:
                assert own is not None, "who writes a weight holds it"
                if self._ranks.is_first:
                    parts.append(own)
                else:
                    torch.distributed.send(own.contiguous(), 0)
            elif self._ranks.is_first:
                parts.append(torch.empty(place.shape_of_part(tensor, size)))
                torch.distributed.recv(parts[-1], writer)
        return place.cut.joined(parts) if parts else None


class WeightPlacement:
    """Where one weight of the whole network is."""

    def __init__(self, name: str, shape: torch.Size, run: TrainerRun) -> None:
        self.name = name
        self.cut = sharding_of(name, run.model)
        self.stages = stages_holding(name, run.model, run.train.pipeline_parallel)
        self._shape = shape

    def shape_of_part(self, rank: int, size: int) -> torch.Size:
        """Shape of what one of the ranks that cut it holds."""
        part = self.cut.part(torch.empty(self._shape, device="meta"), rank, size)
        assert part is not None, "asked of a rank that holds some"
        return part.shape


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, "every weight that a rank holds has a part in the loss"
    return parameter.grad


@dataclass(frozen=True)
class Layout:
    """One rank, seen from each of the groups that it belongs to."""

    data: Ranks
    """Ranks that hold the same part of the model and read other rows."""
    tensor: Ranks
    """Ranks that hold other parts of the same matrices and read the same rows."""
    pipeline: Ranks
    """Ranks that hold other layers and read the same rows, in the order of the layers."""


def world_rank(train: TrainConfig, stage: int, data: int, tensor: int) -> int:
    """Number of the rank with these places among all."""
    return (stage * train.data_parallel + data) * train.tensor_parallel + tensor


def make_layout(train: TrainConfig, device: str) -> Layout:
    """Make the groups; all ranks call it together, once."""
    sizes = (train.pipeline_parallel, train.data_parallel, train.tensor_parallel)
    mesh = init_device_mesh(device, sizes, mesh_dim_names=("pipeline", "data", "tensor"))
    groups = {name: mesh.get_group(name) for name in ("data", "tensor", "pipeline")}
    made = {name: partial(Ranks, mesh.get_local_rank(name), mesh[name].size()) for name in groups}
    return Layout(**{name: made[name](group=group) for name, group in groups.items()})
