"""What the training loop asks of an engine. `model/engines/` holds those that exist.

What a step adds up over micro-batches and ranks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from model.distributed.process_group import Ranks
from model.nn.activation_stats import nan_to_infinity, split_ranges
from model.objectives.base import Sums
from model.optim.schedules import StepSchedule


@dataclass(frozen=True)
class StepResult:
    """What a step found. The same on every rank."""

    loss: float
    """What was minimised: the sum of `losses`."""
    losses: list[float]
    """Of each term of the objective, nats per prediction that counts."""
    accuracies: list[float]
    """Of each term, share of the predictions that were right; empty where the objective does not look."""
    grad_norm: float
    """Before clipping."""
    lows: list[float]
    """Smallest value of each segment of the network, as `networks.thermometer_names` has them; infinite where any value
    is no number or infinite."""
    highs: list[float]
    """Largest values; infinite as `lows`."""
    applied: bool
    """False where the loss or the gradient was not finite, or was not admitted, and the weights stayed as they were."""

    @property
    def finite(self) -> bool:
        """Whether loss and gradient were numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)

    @property
    def largest_activations(self) -> list[float]:
        """Largest absolute value of each segment; infinite where any value is no number or infinite."""
        return [max(-low, high) for low, high in zip(self.lows, self.highs, strict=True)]


Admits = Callable[[float, float], bool]
"""Whether the weights may move by a step with this loss and gradient norm."""


def admit_all(loss: float, grad_norm: float) -> bool:
    """Every step whose numbers are finite."""
    del loss, grad_norm
    return True


class Engine(Protocol):
    """Network and optimizer, spread over the ranks as the engine likes. All ranks call each method together."""

    optimizer_shards: int
    """Ranks that hold a part of the optimizer's state of their own: 1 where all hold the same, else all of them."""

    def step(
        self, batch: Any, schedule: StepSchedule, loss_scale: float = 1.0, admits: Admits = admit_all
    ) -> StepResult:
        """One optimizer step on the whole batch (of the objective's kind), of which each rank computes its share.

        `loss_scale` is what the loss is multiplied by in the backward pass, and gradients divided by after it. `admits`
        is asked on every rank, with the same finite numbers, before the weights move.
        """
        ...

    def held_out(self, batch: Any) -> tuple[float, int]:
        """Sum of nats of the first of the objective's terms over a batch, and how much it counts; the same on every
        rank. The network is asked as it is used, without dropout, and nothing of it changes."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """All weights by their names in the network; complete on the first rank, on others perhaps empty."""
        ...

    def optimizer_state(self) -> dict[str, Tensor]:
        """This rank's part of the optimizer's state; empty before the first step."""
        ...

    def restore_optimizer(self, state: dict[str, Tensor]) -> None:
        """Take back what `optimizer_state` gave on the same rank. Hyper-parameters stay those of the configuration."""
        ...

    def restore_resharded(self, states: Sequence[dict[str, Tensor]]) -> None:
        """Take back what `optimizer_state` gave on all ranks, in their order, when there were more or fewer of them."""
        ...


class Totals:
    """Nats and right answers by term, and the extremes of thermometers, so far."""

    def __init__(self) -> None:
        self._nats: list[float] = []
        self._right: list[float] = []
        self._ranges: Tensor | None = None

    def add(self, sums: Sums) -> list[float]:
        """Take in a micro-batch; returns its nats by term."""
        nats = [float(term.detach()) for term in sums.nats]
        right = [float(term) for term in sums.correct]
        self._nats = [a + b for a, b in zip(self._nats or [0.0] * len(nats), nats, strict=True)]
        self._right = [a + b for a, b in zip(self._right or [0.0] * len(right), right, strict=True)]
        # A fixed number of elements on the device; they leave it once a step.
        ranges = sums.activation_ranges.detach()
        self._ranges = ranges if self._ranges is None else torch.maximum(self._ranges, ranges)
        return nats

    def reduce_over_ranks(
        self, ranks: Ranks, counted: tuple[int, ...]
    ) -> tuple[list[float], list[float], list[float], list[float]]:
        """Mean nats and share of right answers by term, and what thermometers read at least and at most, the same on
        every rank."""
        assert self._ranges is not None, "a step needs rows"
        summed = ranks.sum_(torch.tensor([*self._nats, *self._right], dtype=torch.float64)).tolist()
        terms = len(counted)
        losses = [total / count for total, count in zip(summed[:terms], counted, strict=True)]
        accuracies = [total / count for total, count in zip(summed[terms:], counted, strict=False)]
        return losses, accuracies, *split_ranges(ranks.max_(nan_to_infinity(self._ranges).cpu()))


def batch_loss(sums: Sums, counted: tuple[int, ...], loss_scale: float = 1.0) -> Tensor:
    """What a micro-batch adds to the loss of the whole batch times its scale, f32[], differentiable."""
    terms = [nats / count for nats, count in zip(sums.nats, counted, strict=True)]
    return torch.stack(terms).sum() * loss_scale
