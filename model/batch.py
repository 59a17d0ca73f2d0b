"""What one rank computes of a batch.

Shapes: B rows, L tokens a row, T = L - 1 predictions a row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from model.objective import loss_targets
from model.ranks import Ranks
from model.targets import NO_LOSS


@dataclass(frozen=True)
class RankBatch:
    """Micro-batches of one rank, as many on every rank, and what the whole batch counts."""

    micro_batches: list[tuple[Tensor, Tensor]]
    """Inputs i64[B, T] and targets i64[B, T] of each."""
    counted: int
    """Predictions that carry loss in the batch of all ranks; at least 1."""


def share_of(ranks: Ranks, tokens_BL: Tensor, loss_start_B: Tensor, pad: int, micro_batch_rows: int) -> RankBatch:
    """The share of a rank: consecutive rows, so that the order of the data does not depend on the number of ranks.

    Every rank reads the whole batch (a memory map) and counts its predictions, which saves a message. Where the rows of
    a last, short batch do not go round, its last row is read again without loss: each rank then takes part in as many
    exchanges as the others, and thermometers see no values that the batch does not hold.
    """
    targets_BT = loss_targets(tokens_BL, loss_start_B, pad)
    counted = int((targets_BT != NO_LOSS).sum())
    rows = -(-len(tokens_BL) // ranks.size)
    missing = rows * ranks.size - len(tokens_BL)
    if missing:
        tokens_BL = torch.cat([tokens_BL, tokens_BL[-1:].expand(missing, -1)])
        targets_BT = torch.cat([targets_BT, torch.full_like(targets_BT[-1:], NO_LOSS).expand(missing, -1)])
    own = slice(ranks.rank * rows, (ranks.rank + 1) * rows)
    inputs = tokens_BL[own, :-1].split(micro_batch_rows)
    targets = targets_BT[own].split(micro_batch_rows)
    return RankBatch(list(zip(inputs, targets, strict=True)), max(counted, 1))
