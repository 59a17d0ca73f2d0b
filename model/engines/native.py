"""The native engine: plain PyTorch, every rank with the whole model; gradients are summed over the ranks."""

from typing import Any

import torch
from torch import Tensor

from model.config.network import width_multiplier
from model.config.train import TrainerRun
from model.distributed.process_group import Ranks
from model.engines.base import NO_LIMITS, Engine, Found, Limits, Reading, Totals, batch_loss
from model.engines.runtime import autocast, evaluating, move_batch
from model.nn.factory import Network
from model.objectives import make_objective
from model.objectives.base import RankBatch, Sums, rank_batch
from model.optim.optimizers import (
    AdamW,
    add_penalty,
    clip_factor,
    group_parameters,
    make_optimizer,
    optimizer_tensors,
    set_learning_rate,
)
from model.optim.schedules import StepSchedule


class NativeEngine(Engine):
    """Deterministic for a fixed number of threads and ranks.

    Gradients are reduced as one flat vector, in the order of the network's parameters. DistributedDataParallel would
    overlap some of that time with the backward pass, but rebuilds its buckets after the first step: with three ranks a
    resumed run would sum in another order than an uninterrupted one.
    """

    optimizer_shards = 1
    weight_shards = 1

    def __init__(self, run: TrainerRun, network: Network, ranks: Ranks) -> None:
        self._config = run.train
        self._objective = make_objective(run)
        self._ranks = ranks
        self._data_ranks = ranks
        """The ranks that share the rows of a batch, each with the same part of the model."""
        self._device = next(network.parameters()).device
        self._waits = self._device.type != "cpu"
        """Whether the host would wait for a number that it reads."""
        self.network = network
        self._module: Any = network
        """What the rows of a batch go through: the network, or a library's module around it."""
        self.optimizer = make_optimizer(network, run.train.optimizer, width_multiplier(run.model))
        self._matrices = group_parameters(network).matrices

    def begin(self, batch: Any, schedule: StepSchedule, loss_scale: float = 1.0) -> None:
        """Leave the gradient of the batch's mean loss, to which the gradients of micro-batches add up, in the
        parameters."""
        found = self._pass_batch(batch, schedule, loss_scale)
        if loss_scale != 1.0:
            for parameter in self.network.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(loss_scale)
        if self._config.optimizer.l1 or self._config.optimizer.l2:
            add_penalty(self._matrices, self._config.optimizer)
        self._begun = schedule, found, self._gradient_norm()

    def finish(self, limits: Limits = NO_LIMITS) -> Reading:
        """Clip and apply the gradient; on a device all is decided there, but other optimizers than AdamW wait."""
        schedule, found, grad_norm = self._begun
        applied = limits.admit(found.losses.sum(), grad_norm.double())
        factor = clip_factor(grad_norm, schedule.max_norm)
        reading = found.read_later(grad_norm, applied, self._ranks)
        optimizer, is_unread = self.optimizer, False
        if self._waits and isinstance(optimizer, AdamW):
            optimizer.found_inf, is_unread = (~applied).float(), True
        if is_unread or applied:
            if is_unread or factor < 1.0:
                torch._foreach_mul_(self._gradients(), factor)  # pyright: ignore[reportPrivateImportUsage]
            set_learning_rate(optimizer.param_groups, schedule.lr)
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return reading

    def _pass_batch(self, batch: Any, schedule: StepSchedule, loss_scale: float) -> Found:
        """Leave the gradient of a batch in the parameters, summed over ranks."""
        share = self._share(batch, self._config.rows_at_once * schedule.row_pieces)
        totals = self._forward_backward(share, loss_scale)
        found = totals.reduce_over_ranks(self._ranks, share.counted)
        self._sum_gradients()
        return found

    def _share(self, batch: Any, rows: int) -> RankBatch:
        """Return this rank's micro-batches of so many rows."""
        return rank_batch(self._data_ranks, batch, self._objective, rows)

    def _forward_backward(self, share: RankBatch, loss_scale: float) -> Totals:
        """Run forward and backward passes of all micro-batches; their gradients add up."""
        totals = Totals()
        for micro_batch in share.micro_batches:
            sums = self._sums(micro_batch)
            batch_loss(sums, share.counted, loss_scale).backward()
            totals.add(sums)
        return totals

    def _sums(self, micro_batch: Any) -> Sums:
        with autocast(self._config.dtype, self._device):
            return self._objective.sums(self.network, move_batch(micro_batch, self._device))

    def held_out(self, batch: Any) -> tuple[float, int]:
        share = self._share(batch, self._config.rows_at_once)
        with evaluating(self._module):
            totals = self._forward(share)
        return totals.sum_over_ranks(self._ranks)[0].item(), self._objective.counts(batch)[0]

    def _forward(self, share: RankBatch) -> Totals:
        """Run forward passes of all micro-batches."""
        totals = Totals()
        for micro_batch in share.micro_batches:
            totals.add(self._sums(micro_batch))
        return totals

    def _gradient_norm(self) -> Tensor:
        """Return the norm over the whole network, f32[] or f64[], the same on every rank."""
        return torch.nn.utils.get_total_norm(self._gradients())

    def _sum_gradients(self) -> None:
        """Sum gradients over the ranks that read other rows."""
        if self._data_ranks.size == 1:
            return
        gradients = self._gradients()
        flat = self._data_ranks.sum_(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.network.parameters() if p.grad is not None]

    def weights(self) -> dict[str, Tensor]:
        """Return the parameters themselves, not a copy."""
        return {name: parameter.detach() for name, parameter in self.network.named_parameters()}

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the optimizer's moments as `parameter|moment`; the same on every rank."""
        return {
            f"{name}|{moment}": value.detach().contiguous()
            for name, parameter in self.network.named_parameters()
            for moment, value in optimizer_tensors(self.optimizer, parameter).items()
        }

    def restore_optimizer(self, state: dict[str, Tensor]) -> None:
        parameters = dict(self.network.named_parameters())
        for key, value in state.items():
            name, _, moment = key.rpartition("|")
            self.optimizer.state[parameters[name]][moment] = value.to(self._device)
