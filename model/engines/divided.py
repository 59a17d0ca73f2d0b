"""The native engine over a divided network: data x tensor x pipeline parallelism, and FSDP, by torch's own parts.

Ranks are a mesh of pipeline stages, data ranks and tensor ranks (`layout.py`). `parallelize_module` divides matrices
over tensor ranks, `distributed.pipelining` passes micro-batches through the stages, and with the engine `fsdp`
`fully_shard` divides weights, gradients and optimizer state over data ranks by rows (Zhao et al. 2023,
https://arxiv.org/abs/2304.11277): each block is a group, all else another, whose weights are gathered before it is
computed, forward and backward. With the engine `native` data ranks are copies, whose gradients are summed.

No rank ever has the whole network: it is created without memory, and each rank fills its own part. Weights are gathered
in float32 and rounded where they are used: norms and the residual stream would read a gathered bfloat16 weight too.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch._dynamo  # At their first call, hooks of FSDP and schedules of pipelines import it (PyTorch 2.13).
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from model.config.train import TrainerRun
from model.distributed.process_group import Ranks
from model.engines.base import Box, Parts, Totals
from model.engines.layout import Place
from model.engines.native import NativeEngine
from model.engines.pipeline_parallel import Pipeline, Stage
from model.engines.runtime import training_device
from model.engines.tensor_parallel import shard_network
from model.nn.block import Block
from model.nn.factory import Network
from model.nn.gpt import GPT
from model.nn.init import fill_box
from model.nn.stages import keep_stage_weights, stages_holding
from model.objectives.base import RankBatch, rank_batch


class DividedEngine(NativeEngine):
    """Needs a process group, even of one rank."""

    def __init__(self, run: TrainerRun, network: Network, ranks: Ranks, weights: Parts | None = None) -> None:
        """Build this rank's part of `network`, which is on the meta device. Weights are read from `weights`; by default
        they are the initial ones of the run's seed."""
        # Without the ranks that failed (`restarts.fewer_ranks`).
        train = run.train.model_copy(update={"ranks": ranks.size})
        device = training_device(run.train)
        self._place, self._model = Place(train, ranks.rank), run.model
        self._shapes = {name: parameter.shape for name, parameter in network.named_parameters()}
        sizes = (train.pipeline_parallel, train.data_parallel, train.tensor_parallel)
        mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("pipeline", "data", "tensor"))
        keep_stage_weights(network, run.model, self._place.stage, train.pipeline_parallel)
        if train.tensor_parallel > 1:
            shard_network(network, mesh["tensor"])
        self._stage = Stage(run, network, self._place.stage, counts=self._place.tensor == 0)
        if train.engine == "fsdp":
            _divide_rows(self._stage, mesh["data"])
        self._allocate(device)
        super().__init__(run, network, ranks)
        self._data_ranks = Ranks(self._place.data, train.data_parallel, mesh.get_group("data"), ranks.heartbeat)
        self._stages = Ranks(self._place.stage, sizes[0], mesh.get_group("pipeline"), ranks.heartbeat)
        self._pipeline = Pipeline(self._stage, mesh.get_group("pipeline"), device)
        self.optimizer_shards = self.weight_shards = ranks.size
        self._fill(train.seed, weights)

    def _allocate(self, device: torch.device) -> None:
        self._stage.to_empty(device=device)
        if isinstance(network := self._stage.network, GPT):
            network.make_tables()
            for name, table in list(network.named_buffers(recurse=False)):
                setattr(network, name, table.to(device))

    @torch.no_grad()
    def _fill(self, seed: int, weights: Parts | None) -> None:
        for name, parameter in self.network.named_parameters():
            shape, box, own = self._shapes[name], self._part(name), local(parameter)
            assert list(own.shape) == [side.stop - side.start for side in box], "parts are divided as torch divides"
            if weights is not None:
                own.copy_(weights(name, box))
            else:
                fill_box(own, self.network.initial_law(name, shape), seed, name, shape, box)

    def _part(self, name: str) -> Box:
        return self._place.part(name, self._shapes[name])

    def _share(self, batch: Any, rows: int) -> RankBatch:
        # A schedule takes micro-batches of one shape.
        return rank_batch(self._data_ranks, batch, self._objective, rows, equal=self._stages.size > 1)

    def _forward_backward(self, share: RankBatch, loss_scale: float) -> Totals:
        with loss_parallel():
            return self._pipeline.run(share, loss_scale, trains=True)

    def _forward(self, share: RankBatch) -> Totals:
        with loss_parallel():
            totals = self._pipeline.run(share, 1.0, trains=False)
        if isinstance(self._stage, FSDPModule):
            # Without a backward pass the weights outside of blocks would stay gathered.
            self._stage.reshard()
        return totals

    def _sum_gradients(self) -> None:
        own = dict(self.network.named_parameters())
        for parameter in own.values():
            if isinstance(parameter, DTensor) and isinstance(parameter.grad, DTensor):
                # Tensor ranks may hold a weight whole, and each compute its gradient with its own heads.
                parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
        for name in self._shapes:
            if len(stages_holding(name, self._model, self._stages.size)) > 1:
                gradient = own[name].grad if name in own else None
                sides = [side.stop - side.start for side in self._part(name)]
                none = torch.zeros(sides, dtype=next(iter(own.values())).dtype, device=self._device)
                self._stages.sum_(local(none if gradient is None else gradient))
        if not isinstance(self._stage, FSDPModule):
            super()._sum_gradients()

    def _gradients(self) -> list[Tensor]:
        return [local(parameter.grad) for parameter in self.network.parameters() if parameter.grad is not None]

    def _gradient_norm(self) -> Tensor:
        square = torch.zeros((), dtype=torch.float64, device=self._device)
        for name, parameter in self.network.named_parameters():
            # Copies enter once.
            if parameter.grad is not None and self._place.is_writer(name, self._model):
                square += torch.linalg.vector_norm(local(parameter.grad), dtype=torch.float64).square()
        return self._ranks.sum_(square).sqrt()

    def weights(self) -> dict[str, Tensor]:
        """Return this rank's part of each weight, not a copy; of ranks with the same part only one does."""
        return self._written(super().weights())

    def begins(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(side.start for side in self._part(name)) for name in self.weights()}

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the moments of `weights` as `parameter|moment`."""
        return self._written(super().optimizer_state())

    def _written(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            key: local(tensor).contiguous()
            for key, tensor in tensors.items()
            if self._place.is_writer(key.partition("|")[0], self._model)
        }

    @torch.no_grad()
    def restore_parts(self, moments: Parts, names: Sequence[str]) -> None:
        """Restore the moments of these names that belong to this rank's weights, whatever ranks wrote them."""
        parameters = dict(self.network.named_parameters())
        for key in names:
            name, _, moment = key.rpartition("|")
            if name in parameters:
                found = moments(key, self._part(name)).to(self._device)
                if found.dim():
                    kept = torch.zeros_like(parameters[name])
                    local(kept).copy_(found)
                    found = kept
                self.optimizer.state[parameters[name]][moment] = found


def _divide_rows(stage: nn.Module, mesh: DeviceMesh) -> None:
    blocks = [module for module in stage.modules() if isinstance(module, Block)]
    for module in [*(block for block in blocks if any(True for _ in block.parameters())), stage]:
        group = fully_shard(module, mesh=mesh)
        # Losses are divided by the targets of the whole batch, so gradients add up.
        group.set_gradient_divide_factor(1.0)
        group.set_force_sum_reduction_for_comms(True)


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor that is divided; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
