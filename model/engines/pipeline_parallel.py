"""Pipeline parallelism by torch's `distributed.pipelining`: what a stage computes, and the schedule of micro-batches.

Micro-batches follow the schedule 1F1B, one forward, one backward (PipeDream-Flush: Narayanan et al. 2021,
https://arxiv.org/abs/2104.04473, section 2.2): a stage never holds more micro-batches than there are stages from it to
the last, where GPipe holds all, which is no more where they are fewer than stages. Stages are idle for (stages - 1) of
(micro-batches + stages - 1) turns.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from model.config.fields import Dtype
from model.config.train import TrainerRun
from model.engines.base import Totals, batch_loss
from model.engines.runtime import autocast, move_batch
from model.nn.activation_stats import empty_range
from model.nn.dropout import drop_by_row
from model.nn.factory import Network, activation_range_names
from model.nn.stages import block_count, ranges_before, received_streams, run_stage, stage_blocks
from model.objectives import make_objective
from model.objectives.base import RankBatch, Sums, row_count

if TYPE_CHECKING:
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle


class Stage(nn.Module):
    """Consecutive blocks of a network, with the embedding before the first and the loss after the last, as one module.

    `start` gives it micro-batches, which every stage reads by itself. Each call takes the next one and the tensors of
    the previous stage, and returns those for the next stage; the last stage returns the loss f32[].
    """

    def __init__(self, run: TrainerRun, network: Network, stage: int, *, counts: bool) -> None:
        """Take the blocks of `stage`. `counts`: whether this rank adds its sums, which other tensor ranks also have."""
        super().__init__()
        self.network = network
        self.blocks = stage_blocks(stage, run.train.pipeline_parallel, block_count(run.model))
        self._objective = make_objective(run)
        self._counts = counts
        self._dtype: Dtype = run.train.dtype
        self._segments = len(activation_range_names(run.model))
        self._left: Iterator[Any] = iter(())

    def start(self, share: RankBatch, loss_scale: float, device: torch.device) -> Totals:
        """Take micro-batches; return the totals to which each of them will be added."""
        self._left, self._counted = iter(share.micro_batches), share.counted
        self._loss_scale, self._device, self._row = loss_scale, device, share.begin
        self._totals = Totals()
        return self._totals

    def forward(self, *received: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Compute the next micro-batch."""
        batch, objective = move_batch(next(self._left), self._device), self._objective
        rows = row_count(batch)
        drop_by_row(self.network, self._row, rows, self._device)
        self._row += rows
        ranges: list[Tensor] = []
        with autocast(self._dtype, self._device):
            inputs = objective.inputs(self.network, batch)
            sent = run_stage(self.network, self.blocks, received, inputs, ranges)
            before = [empty_range(sent[0])] * ranges_before(self.network.config, self.blocks.start)
            if self.blocks.stop < block_count(self.network.config):
                self._totals.add(self._zero_sums([*before, *ranges]))
                return tuple(tensor.contiguous() for tensor in sent)
            sums = objective.sums_from_hidden(self.network, sent[0], [*before, *ranges], batch)
            self._totals.add(sums if self._counts else self._zero_sums(list(sums.activation_ranges)))
            return batch_loss(sums, self._counted, self._loss_scale)

    def _zero_sums(self, ranges: list[Tensor]) -> Sums:
        """Return no nats, and ranges that are followed by empty ones."""
        all_ranges = torch.stack([*ranges, *[empty_range(ranges[0])] * (self._segments - len(ranges))])
        zeros = (all_ranges.new_zeros(()),) * len(self._objective.terms)
        return Sums(zeros, zeros if self._objective.counts_correct else (), all_ranges)

    def shapes(self, block: int, micro_batch: Any) -> list[tuple[int, ...]]:
        """Return the shapes of what the stage that begins with this block receives."""
        config, inputs = self.network.config, self._objective.inputs(self.network, micro_batch)
        return [(*inputs[name].shape, config.width) for name in received_streams(config, block)]


class Pipeline:
    """Passes micro-batches through the stages, each of which is a rank of `group`."""

    def __init__(self, stage: Stage, group: ProcessGroup, device: torch.device) -> None:
        self._stage, self._group, self._device = stage, group, device
        self._schedules: dict[bool, tuple[Any, PipelineScheduleSingle]] = {}

    def run(self, share: RankBatch, loss_scale: float, *, trains: bool) -> Totals:
        """Run forward passes of all micro-batches, and backward passes where it `trains`; gradients add up in `grad`.

        With several stages all micro-batches must have as many rows.
        """
        totals = self._stage.start(share, loss_scale, self._device)
        first, count, blocks = share.micro_batches[0], len(share.micro_batches), self._stage.blocks
        if self._group.size() == 1:
            for _ in range(count):
                loss = self._stage()
                if trains:
                    loss.backward()
            return totals
        shapes = (count, self._stage.shapes(blocks.start, first), self._stage.shapes(blocks.stop, first))
        if trains not in self._schedules or self._schedules[trains][0] != shapes:
            self._schedules[trains] = (shapes, self._schedule(*shapes, trains=trains))
        # The last stage computes the loss itself, and needs no target.
        self._schedules[trains][1].step(target=torch.zeros(count), return_outputs=False)
        return totals

    def _schedule(
        self, count: int, received: list[tuple[int, ...]], sent: list[tuple[int, ...]], *, trains: bool
    ) -> "PipelineScheduleSingle":
        """Return a schedule, which has fixed shapes and buffers for them."""
        # Imported here, since it imports the compiler, in most of a second.
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

        index, stages, dtype = self._group.rank(), self._group.size(), next(self._stage.parameters()).dtype
        inputs, outputs = (
            tuple(torch.empty(shape, dtype=dtype, device="meta", requires_grad=True) for shape in shapes)
            for shapes in (received, sent if index < stages - 1 else [()])
        )
        stage = PipelineStage(
            self._stage, index, stages, self._device, input_args=inputs, output_args=outputs, group=self._group
        )
        schedule = Schedule1F1B if count >= stages else ScheduleGPipe
        return schedule(stage, count, (lambda loss, _: loss) if trains else None, scale_grads=False)
