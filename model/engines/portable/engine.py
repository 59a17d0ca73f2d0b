"""The portable engine: the native one with units of rows in place of micro-batches, and a tree in place of sums.

A unit, two rows of the batch, passes through the network alone. The gradients of units are added in a binary tree over
their numbers: a node adds its left half to its right half, and a node without a right half is its left half. A rank
computes the leaves of one aligned subtree, and the ranks' nodes are added as the tree goes on above them, so the bits
are those of one process for any number of ranks. Losses and what is counted are leaves of the same tree.
"""

from typing import Any

import torch
from torch import Tensor

from model.config.train import TrainerRun
from model.distributed.process_group import Ranks
from model.engines.base import NO_LIMITS, Found, Limits, Reading, batch_loss, found_of
from model.engines.native import NativeEngine
from model.engines.portable.operations import PortableOperations, PortableVocabulary
from model.engines.runtime import evaluating
from model.errors import RecipeError
from model.nn.activation_stats import nan_to_infinity
from model.nn.dropout import drop_by_row
from model.nn.factory import Network, activation_range_names
from model.objectives.base import row_count, slice_batch
from model.optim.schedules import StepSchedule

UNIT_ROWS = 2
"""Rows of a unit. One takes a fifth more time, and more than two would leave ranks without work."""

CAPABILITY = "AVX2"
"""The kernels of PyTorch that compute what no library does, chosen by `model.config.fields.PORTABLE_ENVIRONMENT`."""


class PortableEngine(NativeEngine):
    """Deterministic over processors, ranks and micro-batches; on one thread."""

    def __init__(self, run: TrainerRun, network: Network, ranks: Ranks) -> None:
        found = torch.backends.cpu.get_cpu_capability()
        if found != CAPABILITY:
            raise RecipeError(
                f"train.numerics is portable, which computes with PyTorch's kernels for {CAPABILITY}, and this process"
                f" has those for {found}. Train on an x86 processor with {CAPABILITY}, started by `bessemer` or"
                f" with ATEN_CPU_CAPABILITY=avx2 in its environment, or set train.numerics = native"
            )
        super().__init__(run, network, ranks)
        network.vocabulary = PortableVocabulary()
        self._operations = PortableOperations()
        self._trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self._range_count = len(activation_range_names(run.model))

    def _pass_batch(self, batch: Any, schedule: StepSchedule, loss_scale: float) -> Found:
        """Leave the gradient of a batch in the parameters, added in the tree."""
        counted = tuple(max(count, 1) for count in self._objective.counts(batch))
        tree = TreeSum()
        ranges = torch.full((self._range_count, 2), -torch.inf)
        spans, holders = units_of_rank(row_count(batch), UNIT_ROWS * schedule.row_pieces, self._ranks)
        for begin, end in spans:
            drop_by_row(self.network, begin, end - begin, self._device)
            with self._operations.entered():
                sums = self._objective.sums(self.network, slice_batch(batch, begin, end))
                batch_loss(sums, counted, loss_scale).backward()
            ranges = torch.maximum(ranges, sums.activation_ranges.detach())
            totals = torch.stack([total.detach().double() for total in (*sums.nats, *sums.correct)])
            tree.add([*self._take_gradients(), totals])
        if not spans:
            totals = len(counted) * (2 if self._objective.counts_correct else 1)
            tree.add([*self._take_gradients(), torch.zeros(totals, dtype=torch.float64)])
        *gradients, totals = tree.total()
        if self._ranks.size > 1:
            totals = self._ranks.tree_sum(totals, holders)
            flat = self._ranks.tree_sum(torch.cat([gradient.flatten() for gradient in gradients]), holders)
            parts = flat.split([gradient.numel() for gradient in gradients])
            gradients = [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)]
        for parameter, gradient in zip(self._trained, gradients, strict=True):
            parameter.grad = gradient
        return found_of(totals, counted, self._ranks.max_(nan_to_infinity(ranges)))

    def finish(self, limits: Limits = NO_LIMITS) -> Reading:
        """Clip and apply the gradient; products of the optimizer are portable too."""
        with self._operations.entered():
            return super().finish(limits)

    def _take_gradients(self) -> list[Tensor]:
        """Return the gradients of a unit, zeros where there are none, and clear them."""
        taken = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._trained]
        self.optimizer.zero_grad(set_to_none=True)
        return taken

    def held_out(self, batch: Any) -> tuple[float, int]:
        """Evaluate the units of each rank."""
        tree = TreeSum()
        spans, holders = units_of_rank(row_count(batch), UNIT_ROWS, self._ranks)
        with evaluating(self.network):
            for begin, end in spans:
                with self._operations.entered():
                    sums = self._objective.sums(self.network, slice_batch(batch, begin, end))
                tree.add([sums.nats[0].double().reshape(1)])
        (nats,) = tree.total() if spans else [torch.zeros(1, dtype=torch.float64)]
        if self._ranks.size > 1:
            nats = self._ranks.tree_sum(nats, holders)
        return float(nats), self._objective.counts(batch)[0]


class TreeSum:
    """Adds lists of tensors, the leaves of a binary tree in their order, and keeps one list of each finished level."""

    def __init__(self) -> None:
        self._nodes: list[tuple[int, list[Tensor]]] = []
        """(level, sum), from the first leaf on."""

    def add(self, leaf: list[Tensor]) -> None:
        """Add the next leaf, whose tensors may be changed."""
        level = 0
        while self._nodes and self._nodes[-1][0] == level:
            leaf, level = self._joined(leaf), level + 1
        self._nodes.append((level, leaf))

    def total(self) -> list[Tensor]:
        """Return the sum of all leaves, of which there must be one."""
        _, node = self._nodes.pop()
        while self._nodes:
            node = self._joined(node)
        return node

    def _joined(self, right: list[Tensor]) -> list[Tensor]:
        _, left = self._nodes.pop()
        for one, other in zip(left, right, strict=True):
            one.add_(other)
        return left


def units_of_rank(rows: int, unit_rows: int, ranks: Ranks) -> tuple[list[tuple[int, int]], int]:
    """Return the rows [begin, end) of each unit of this rank, and how many ranks have units.

    Each has the leaves of a subtree of equal depth, the last one perhaps fewer: with two units for each rank or one, or
    four and so on, all have as many.
    """
    units, leaves = -(-rows // unit_rows), 1
    while leaves * ranks.size < units:
        leaves *= 2
    begins = range(ranks.rank * leaves * unit_rows, min((ranks.rank + 1) * leaves * unit_rows, rows), unit_rows)
    return [(begin, min(begin + unit_rows, rows)) for begin in begins], -(-units // leaves)
