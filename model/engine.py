"""The native engine: one optimizer step on one device, and nothing else."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from model.config import TrainerRun
from model.objective import NO_LOSS, loss_targets, next_token_nats
from model.optimizer import make_optimizer
from model.transformer import GPT


@dataclass(frozen=True)
class StepResult:
    """Mean loss in nats per counted token, gradient norm before clipping, thermometers; `applied` is False where the
    loss or the gradient was not finite and the weights stayed as they were."""

    loss: float
    grad_norm: float
    thermometers: list[float]
    applied: bool


class NativeEngine:
    """Network and optimizer of one process. Deterministic for a fixed number of threads."""

    def __init__(self, run: TrainerRun) -> None:
        self._config = run.train
        self._pad = run.pad
        self.network = GPT(run.model).initialise(run.train.seed)
        self.optimizer = make_optimizer(self.network, run.train.optimizer)

    def step(self, tokens_BL: Tensor, loss_start_B: Tensor, lr: float) -> StepResult:
        """One optimizer step on rows of token ids, in micro-batches whose gradients add up to the batch's mean."""
        targets_BT = loss_targets(tokens_BL, loss_start_B, self._pad)
        counted = int((targets_BT != NO_LOSS).sum())
        loss_sum = 0.0
        heat: Tensor | None = None
        micro_batch = self._config.micro_batch_rows
        for inputs, targets in zip(tokens_BL[:, :-1].split(micro_batch), targets_BT.split(micro_batch), strict=True):
            nats, segments = next_token_nats(self.network, inputs, targets)
            (nats / max(counted, 1)).backward()
            loss_sum += float(nats.detach())
            heat = segments if heat is None else torch.maximum(heat, segments)
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        grad_norm = float(torch.nn.utils.get_total_norm(gradients))
        mean_loss = loss_sum / max(counted, 1)
        applied = math.isfinite(mean_loss) and math.isfinite(grad_norm)
        if applied:
            if grad_norm > self._config.optimizer.clip_norm:
                torch.nn.utils.clip_grads_with_norm_(
                    self.network.parameters(), self._config.optimizer.clip_norm, torch.tensor(grad_norm)
                )
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        assert heat is not None, "a step needs rows"
        return StepResult(mean_loss, grad_norm, heat.tolist(), applied)
