"""The interface between training loop and engines, and the sums that engines accumulate in a step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
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


Reading = Callable[[], StepResult]
"""Waits for the numbers of a step, which the device copies meanwhile, and returns them."""


@dataclass(frozen=True)
class Limits:
    """The largest numbers with which a step changes the weights."""

    loss: float = math.inf
    grad_norm: float = math.inf

    def admit(self, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """Return whether both f64[] are finite and within the limits, bool[] on their device."""
        return loss.isfinite() & grad_norm.isfinite() & (loss <= self.loss) & (grad_norm <= self.grad_norm)


NO_LIMITS = Limits()
"""Admit every step whose loss and gradient are finite."""

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

    def begin(self, batch: Any, schedule: StepSchedule, loss_scale: float = 1.0) -> None:
        """Compute the gradient of a batch of the objective, of which each rank computes its share.

        The loss is multiplied by `loss_scale` for the backward pass, and gradients are divided by it. A device computes
        after this has returned.
        """
        ...

    def finish(self, limits: Limits = NO_LIMITS) -> Reading:
        """Update the weights by the gradient where its step is within the limits, the same on every rank; clear it."""
        ...

    def step(
        self, batch: Any, schedule: StepSchedule, loss_scale: float = 1.0, limits: Limits = NO_LIMITS
    ) -> StepResult:
        """Make one optimizer step on a batch, and wait for its numbers."""
        self.begin(batch, schedule, loss_scale)
        return self.finish(limits)()

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
        return {}

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return this rank's part of the optimizer's state; empty before the first step."""
        ...

    def restore_optimizer(self, state: dict[str, Tensor]) -> None:
        """Restore what `optimizer_state` returned on the same rank; hyper-parameters stay those of the
        configuration."""
        ...

    def restore_resharded(self, states: Sequence[dict[str, Tensor]]) -> None:
        """Restore what `optimizer_state` returned on all ranks, in their order, of another number of ranks."""
        raise AssertionError(f"this engine's state is not sharded, and {len(states)} shards were given")

    def restore_parts(self, moments: Parts, names: Sequence[str]) -> None:
        """Restore this rank's parts of the optimizer's state, of which `moments` returns any; for divided weights."""
        raise AssertionError(f"this engine's state is not divided by rows, and {len(names)} tensors were given")


@dataclass(frozen=True)
class Found:
    """What the passes of a step found, on the device and the same on every rank."""

    losses: Tensor
    """f64[terms], nats per target."""
    accuracies: Tensor
    """f64[terms], or f64[0] where the objective does not count correct predictions."""
    ranges: Tensor
    """f32[P, 2], without NaN."""

    def read_later(self, grad_norm: Tensor, applied: Tensor, ranks: Ranks) -> Reading:
        """Return what waits for these numbers and those of the update, f[] and bool[], on their way to the host."""
        parts = [self.losses, self.accuracies, grad_norm.reshape(1), applied.reshape(1), self.ranges.flatten()]
        ends = [*accumulate(part.numel() for part in parts[:-1])]
        # Into pinned memory, while the device goes on.
        copied = torch.cat(parts).to("cpu", non_blocking=True)
        arrived = None
        if self.losses.is_cuda:
            arrived = torch.cuda.Event(blocking=True)
            arrived.record()

        def read() -> StepResult:
            if arrived is not None:
                ranks.wait_for(arrived)
            losses, accuracies, norm, is_applied, ranges = copied.tensor_split(ends)
            return StepResult(
                sum(losses.tolist()),
                losses.tolist(),
                accuracies.tolist(),
                norm.item(),
                *split_ranges(ranges.view(-1, 2)),
                applied=bool(is_applied),
            )

        return read


def found_of(summed: Tensor, counted: tuple[int, ...], range_P2: Tensor) -> Found:
    """Return the means of summed nats and correct predictions, f64, of each term, and the ranges."""
    # Filled on the device, since copies from the host wait; and tensors, since CUDA multiplies by a number's inverse.
    counts = torch.stack([summed.new_full((), count) for count in (*counted, *counted)])[: len(summed)]
    losses, accuracies = (summed / counts).tensor_split([len(counted)])
    return Found(losses, accuracies, range_P2)


class Totals:
    """Accumulates nats and correct predictions of each term, and activation ranges, over micro-batches, on the
    device."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None
        self._ranges: Tensor | None = None

    def add(self, sums: Sums) -> None:
        """Add a micro-batch, in float64."""
        added = torch.stack([term.detach().double() for term in (*sums.nats, *sums.correct)])
        self._sums = added if self._sums is None else self._sums + added
        ranges = sums.activation_ranges.detach()
        self._ranges = ranges if self._ranges is None else torch.maximum(self._ranges, ranges)

    def reduce_over_ranks(self, ranks: Ranks, counted: tuple[int, ...]) -> Found:
        """Return the means over the targets of all ranks."""
        assert self._ranges is not None, "add a micro-batch first"
        return found_of(self.sum_over_ranks(ranks), counted, ranks.max_(nan_to_infinity(self._ranges)))

    def sum_over_ranks(self, ranks: Ranks) -> Tensor:
        """Return the nats and then the correct predictions of each term, f64; the same on every rank."""
        assert self._sums is not None, "add a micro-batch first"
        return ranks.sum_(self._sums)


def batch_loss(sums: Sums, counted: tuple[int, ...], loss_scale: float = 1.0) -> Tensor:
    """Return what a micro-batch adds to the scaled loss of the whole batch, f32[], differentiable."""
    terms = [nats / count for nats, count in zip(sums.nats, counted, strict=True)]
    return torch.stack(terms).sum() * loss_scale
