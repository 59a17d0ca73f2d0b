"""The interface between training loop and engines, and the sums that engines accumulate in a step."""

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
    """The outcome of a step, the same on every rank."""

    loss: float
    """The sum of `losses`."""
    losses: list[float]
    """Nats per target of each term of the objective."""
    accuracies: list[float]
    """Share of correct predictions of each term; empty where the objective does not count them."""
    grad_norm: float
    """Before clipping."""
    lows: list[float]
    """Smallest value of each segment of `activation_range_names`; infinite where any value is NaN or infinite."""
    highs: list[float]
    """Largest values, likewise."""
    applied: bool
    """False where loss or gradient were not finite or not admitted; the weights are then unchanged."""

    @property
    def finite(self) -> bool:
        """Whether loss and gradient norm are finite."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)

    @property
    def largest_activations(self) -> list[float]:
        """Largest absolute value of each segment; infinite where any value is NaN or infinite."""
        return [max(-low, high) for low, high in zip(self.lows, self.highs, strict=True)]


Admits = Callable[[float, float], bool]
"""Decides by loss and gradient norm whether the weights are updated."""


def admit_all(loss: float, grad_norm: float) -> bool:
    """Admit every step whose loss and gradient are finite."""
    del loss, grad_norm
    return True


Box = tuple[slice, ...]
"""A part of a tensor: a range of each dimension."""

Parts = Callable[[str, Box], Tensor]
"""Returns a part of a tensor by its name; all of a tensor without dimensions."""


class Engine(Protocol):
    """Network and optimizer, distributed over the ranks. All ranks call each method together."""

    optimizer_shards: int
    """Ranks with different optimizer states: 1 where all hold the same, else all of them."""
    weight_shards: int
    """Ranks whose `weights` are parts: 1 where the first rank returns all of them, else all ranks."""

    def step(
        self, batch: Any, schedule: StepSchedule, loss_scale: float = 1.0, admits: Admits = admit_all
    ) -> StepResult:
        """Make one optimizer step on a batch of the objective, of which each rank computes its share.

        The loss is multiplied by `loss_scale` for the backward pass, and gradients are divided by it. `admits` is
        called on every rank with the same finite numbers before the weights are updated.
        """
        ...

    def held_out(self, batch: Any) -> tuple[float, int]:
        """Return the sum of nats of the objective's first term over a batch, and its targets; the same on every rank.

        The network runs in evaluation mode, without dropout, and is not changed.
        """
        ...

    def weights(self) -> dict[str, Tensor]:
        """Return the weights by name: all of them on the first rank, perhaps none on others; or this rank's parts."""
        ...

    def begins(self) -> dict[str, tuple[int, ...]]:
        """Return where in its weight each part of `weights` begins, and of its moments; empty for whole weights."""
        ...

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return this rank's part of the optimizer's state; empty before the first step."""
        ...

    def restore_optimizer(self, state: dict[str, Tensor]) -> None:
        """Restore what `optimizer_state` returned on the same rank; hyper-parameters stay those of the
        configuration."""
        ...

    def restore_resharded(self, states: Sequence[dict[str, Tensor]]) -> None:
        """Restore what `optimizer_state` returned on all ranks, in their order, of another number of ranks."""
        ...

    def restore_parts(self, moments: Parts, names: Sequence[str]) -> None:
        """Restore this rank's parts of the optimizer's state, of which `moments` returns any; for divided weights."""
        ...


class Totals:
    """Accumulates nats and correct predictions of each term, and activation ranges, over micro-batches."""

    def __init__(self) -> None:
        # On the device until the end of the step: each number that the host reads waits for all work before it.
        self._sums: Tensor | None = None
        self._ranges: Tensor | None = None

    def add(self, sums: Sums) -> None:
        """Add a micro-batch, in float64."""
        added = torch.stack([term.detach().double() for term in (*sums.nats, *sums.correct)])
        self._sums = added if self._sums is None else self._sums + added
        ranges = sums.activation_ranges.detach()
        self._ranges = ranges if self._ranges is None else torch.maximum(self._ranges, ranges)

    def reduce_over_ranks(
        self, ranks: Ranks, counted: tuple[int, ...]
    ) -> tuple[list[float], list[float], list[float], list[float]]:
        """Return mean nats and accuracy by term, and the lows and highs of activation ranges; the same on every
        rank."""
        assert self._ranges is not None, "add a micro-batch first"
        summed = self.sum_over_ranks(ranks)
        terms = len(counted)
        losses = [total / count for total, count in zip(summed[:terms], counted, strict=True)]
        accuracies = [total / count for total, count in zip(summed[terms:], counted, strict=False)]
        return losses, accuracies, *split_ranges(ranks.max_(nan_to_infinity(self._ranges).cpu()))

    def sum_over_ranks(self, ranks: Ranks) -> list[float]:
        """Return the nats and then the correct predictions of each term; the same on every rank."""
        assert self._sums is not None, "add a micro-batch first"
        return ranks.sum_(self._sums.cpu()).tolist()


def batch_loss(sums: Sums, counted: tuple[int, ...], loss_scale: float = 1.0) -> Tensor:
    """Return what a micro-batch adds to the scaled loss of the whole batch, f32[], differentiable."""
    terms = [nats / count for nats, count in zip(sums.nats, counted, strict=True)]
    return torch.stack(terms).sum() * loss_scale
