"""What a step adds up over micro-batches and ranks."""

import torch
from torch import Tensor

from model.objectives.interface import Sums
from model.ranks import Ranks
from model.thermometers import lows_and_highs, without_nan


class Totals:
    """Nats and right answers by term, and the extremes of thermometers, so far."""

    def __init__(self) -> None:
        self._nats: list[float] = []
        self._right: list[float] = []
        self._heat: Tensor | None = None

    def add(self, sums: Sums) -> list[float]:
        """Take in a micro-batch; returns its nats by term."""
        nats = [float(term.detach()) for term in sums.nats]
        right = [float(term) for term in sums.right]
        self._nats = [a + b for a, b in zip(self._nats or [0.0] * len(nats), nats, strict=True)]
        self._right = [a + b for a, b in zip(self._right or [0.0] * len(right), right, strict=True)]
        # A fixed number of elements on the device; they leave it once a step.
        heat = sums.thermometers.detach()
        self._heat = heat if self._heat is None else torch.maximum(self._heat, heat)
        return nats

    def over_all_ranks(
        self, ranks: Ranks, counted: tuple[int, ...]
    ) -> tuple[list[float], list[float], list[float], list[float]]:
        """Mean nats and share of right answers by term, and what thermometers read at least and at most, the same on
        every rank."""
        assert self._heat is not None, "a step needs rows"
        summed = ranks.sum_(torch.tensor([*self._nats, *self._right], dtype=torch.float64)).tolist()
        terms = len(counted)
        losses = [total / count for total, count in zip(summed[:terms], counted, strict=True)]
        accuracies = [total / count for total, count in zip(summed[terms:], counted, strict=False)]
        return losses, accuracies, *lows_and_highs(ranks.max_(without_nan(self._heat).cpu()))


def minimised(sums: Sums, counted: tuple[int, ...], loss_scale: float = 1.0) -> Tensor:
    """What a micro-batch adds to the loss of the whole batch times its scale, f32[], differentiable."""
    terms = [nats / count for nats, count in zip(sums.nats, counted, strict=True)]
    return torch.stack(terms).sum() * loss_scale
