"""FSDP2 as an engine: weights, gradients and optimizer state divided over the ranks by rows (torch's `fully_shard`).

Zhao et al. 2023, https://arxiv.org/abs/2304.11277. Each block is a group, all else another: a group's weights are
gathered before it is computed, forward and backward, and its gradients are summed and divided again right after its
backward pass. No rank ever has the whole network: it is created without memory, and each rank fills its own rows.

Ranks and micro-batches, clipping, the loss scale and the decisions of the guard are those of the native engine.
Weights are gathered in float32 and rounded where they are used, as there: a gathered bfloat16 weight would also be the
one that norms and the residual stream read.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from model.config.train import TrainerRun
from model.distributed.process_group import Ranks, rank_rows
from model.engines.base import Rows
from model.engines.native import NativeEngine
from model.engines.runtime import NetworkWithLoss, sums_of, training_device
from model.nn.block import Block
from model.nn.factory import Network
from model.nn.gpt import GPT
from model.nn.init import fill_elements
from model.objectives import make_objective
from model.objectives.base import Sums
from model.optim.optimizers import optimizer_tensors


class FSDPEngine(NativeEngine):
    """The native engine over divided weights. Needs a process group, even of one rank."""

    def __init__(self, run: TrainerRun, network: Network, ranks: Ranks, weights: Rows | None = None) -> None:
        """`network` is on the meta device. Weights are read from `weights`; by default they are the initial ones of the
        run's seed."""
        device = training_device(run.train, ranks.rank)
        mesh = init_device_mesh(device.type, (ranks.size,))
        self._root = NetworkWithLoss(network, make_objective(run), run.train.dtype)
        for module in [*(module for module in network.modules() if isinstance(module, Block)), self._root]:
            fully_shard(module, mesh=mesh)
        for module in self._root.modules():
            if isinstance(module, FSDPModule):
                # Losses are divided by the targets of the whole batch, so gradients add up.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        self._root.to_empty(device=device)
        if isinstance(network, GPT):
            network.make_tables()
            for name, table in list(network.named_buffers(recurse=False)):
                setattr(network, name, table.to(device))
        super().__init__(run, network, ranks)
        self.optimizer_shards = self.weight_shards = ranks.size
        self._fill(run.train.seed, weights)

    @torch.no_grad()
    def _fill(self, seed: int, weights: Rows | None) -> None:
        for name, parameter in self.network.named_parameters():
            begin, end = rank_rows(parameter.shape[0], self._ranks.rank, self._ranks.size)
            own = _local(parameter)
            assert len(own) == end - begin, "rows are divided as torch.chunk divides them"
            if weights is not None:
                own.copy_(weights(name, begin, end))
                continue
            row = parameter[0].numel() if parameter.dim() > 1 else 1
            fill_elements(own, self.network.initial_law(name, parameter.shape), seed, name, begin * row)

    def _sums(self, micro_batch: Any) -> Sums:
        return sums_of(self._root, micro_batch, self._device)

    def held_out(self, batch: Any) -> tuple[float, int]:
        """Evaluate each rank's share of the rows."""
        try:
            return super().held_out(batch)
        finally:
            # Without a backward pass the weights outside of blocks would stay gathered.
            self._root.reshard()  # pyright: ignore[reportCallIssue]

    def _sum_gradients(self) -> None:
        """Do nothing: gradients were summed in the backward pass."""

    def _gradient_norm(self) -> float:
        squares = [
            torch.linalg.vector_norm(gradient, dtype=torch.float64).square() for gradient in self._local_gradients()
        ]
        return float(self._ranks.sum_(torch.stack(squares).sum()).sqrt())

    def _clip_gradients(self, max_norm: float, grad_norm: float) -> None:
        # The factor of torch's clip_grads_with_norm_, in its type.
        factor = (max_norm / (torch.tensor(grad_norm) + 1e-6)).clamp(max=1.0)
        for gradient in self._local_gradients():
            gradient.mul_(factor)

    def _local_gradients(self) -> list[Tensor]:
        return [_local(p.grad) for p in self.network.parameters() if p.grad is not None]

    def weights(self) -> dict[str, Tensor]:
        """Return this rank's rows of each weight, not a copy."""
        return {name: _local(parameter.detach()) for name, parameter in self.network.named_parameters()}

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the moments of this rank's rows as `parameter|moment`."""
        return {
            f"{name}|{moment}": _local(value.detach()).contiguous()
            for name, parameter in self.network.named_parameters()
            for moment, value in optimizer_tensors(self.optimizer, parameter).items()
        }

    @torch.no_grad()
    def restore_rows(self, moments: Rows, names: Sequence[str]) -> None:
        """Restore this rank's rows of the moments of these names, whatever ranks wrote them."""
        parameters = dict(self.network.named_parameters())
        for key in names:
            name, _, moment = key.rpartition("|")
            parameter = parameters[name]
            found = moments(key, *rank_rows(parameter.shape[0], self._ranks.rank, self._ranks.size))
            if found.dim() == 0:
                self.optimizer.state[parameter][moment] = found.to(self._device)
                continue
            kept = torch.zeros_like(parameter)
            _local(kept).copy_(found)
            self.optimizer.state[parameter][moment] = kept


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's rows of a tensor that is divided; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
