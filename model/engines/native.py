"""The native engine: plain PyTorch. Every rank holds the whole model; gradients are added up over the ranks."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from model.config.network import times_as_wide
from model.config.train import TrainerRun
from model.distributed.process_group import Ranks
from model.engines.base import Admits, StepResult, Totals, all_admitted, minimised
from model.engines.runtime import computing_in, moved
from model.nn.factory import Network
from model.objectives import objective_of
from model.objectives.base import RankBatch, share_of
from model.optim.optimizers import add_penalty, grouped, make_optimizer, remembered, set_rate
from model.optim.schedules import Pace


class NativeEngine:
    """Deterministic for a fixed number of threads and ranks.

    Gradients travel as one flat vector, in the order of the network's parameters. DistributedDataParallel would hide
    some of that time behind the backward pass, but forms its buckets anew after the first step it sees: with three
    ranks a resumed run then sums in another order than an undisturbed one.
    """

    optimizer_shards = 1

    def __init__(self, run: TrainerRun, network: Network, ranks: Ranks) -> None:
        self._config = run.train
        self._objective = objective_of(run)
        self._ranks = ranks
        self._readers = ranks
        """Those that share the rows of a batch."""
        self._device = next(network.parameters()).device
        self.network = network
        self.optimizer = make_optimizer(network, run.train.optimizer, times_as_wide(run.model))
        self._matrices = grouped(network).matrices

    def step(self, batch: Any, pace: Pace, loss_scale: float = 1.0, admits: Admits = all_admitted) -> StepResult:
        """One optimizer step on a batch, in micro-batches whose gradients add up to the batch's mean."""
        share = share_of(self._readers, batch, self._objective, self._config.rows_at_once * pace.row_pieces)
        totals = self._pass_through(share, loss_scale)
        losses, accuracies, lows, highs = totals.over_all_ranks(self._ranks, share.counted)
        loss = sum(losses)
        self._sum_gradients()
        if loss_scale != 1.0:
            for parameter in self.network.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(loss_scale)
        if self._config.optimizer.l1 or self._config.optimizer.l2:
            add_penalty(self._matrices, self._config.optimizer)
        grad_norm = self._gradient_norm()
        applied = math.isfinite(loss) and math.isfinite(grad_norm) and admits(loss, grad_norm)
        if applied:
            if grad_norm > pace.max_norm:
                torch.nn.utils.clip_grads_with_norm_(self.network.parameters(), pace.max_norm, torch.tensor(grad_norm))
            set_rate(self.optimizer.param_groups, pace.lr)
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return StepResult(loss, losses, accuracies, grad_norm, lows, highs, applied)

    def _pass_through(self, share: RankBatch, loss_scale: float) -> Totals:
        """Forward and backward passes of all micro-batches; their gradients add up."""
        totals = Totals()
        for micro_batch in share.micro_batches:
            with computing_in(self._config.dtype, self._device):
                sums = self._objective.sums(self.network, moved(micro_batch, self._device))
            minimised(sums, share.counted, loss_scale).backward()
            totals.add(sums)
        return totals

    def held_out(self, batch: Any) -> tuple[float, int]:
        """Each rank its rows, as in a step."""
        share = share_of(self._readers, batch, self._objective, self._config.rows_at_once)
        nats = torch.zeros((), dtype=torch.float64)
        was_training = self.network.training
        self.network.eval()
        try:
            with torch.no_grad():
                for micro_batch in share.micro_batches:
                    with computing_in(self._config.dtype, self._device):
                        sums = self._objective.sums(self.network, moved(micro_batch, self._device))
                    nats += sums.nats[0].double().cpu()
        finally:
            self.network.train(was_training)
        summed = self._readers.sum_(nats.reshape(1)) if self._readers.size > 1 else nats.reshape(1)
        return float(summed[0]), self._objective.counts(batch)[0]

    def _gradient_norm(self) -> float:
        """Of the whole network, the same on every rank."""
        return float(torch.nn.utils.get_total_norm([p.grad for p in self.network.parameters() if p.grad is not None]))

    def _sum_gradients(self) -> None:
        """Leave every rank the sum over those that read other rows."""
        if self._readers.size == 1:
            return
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        flat = self._readers.sum_(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))

    def weights(self) -> dict[str, Tensor]:
        """The parameters themselves, not a copy."""
        return {name: parameter.detach() for name, parameter in self.network.named_parameters()}

    def optimizer_state(self) -> dict[str, Tensor]:
        """The optimizer's moments, as `parameter|moment`; the same on every rank."""
        return {
            f"{name}|{moment}": value.detach().contiguous()
            for name, parameter in self.network.named_parameters()
            for moment, value in remembered(self.optimizer, parameter).items()
        }

    def restore_optimizer(self, state: dict[str, Tensor]) -> None:
        """Take back the moments."""
        parameters = dict(self.network.named_parameters())
        for key, value in state.items():
            name, _, moment = key.rpartition("|")
            self.optimizer.state[parameters[name]][moment] = value.to(self._device)

    def restore_recut(self, states: Sequence[dict[str, Tensor]]) -> None:
        """Never asked for: every rank has the whole state, however many there are."""
        raise AssertionError(f"a state in {len(states)} parts is no state of this engine")
