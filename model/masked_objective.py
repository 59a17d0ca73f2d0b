"""The objective of BERT: how surprised the network is by hidden tokens, and by whether the second stretch follows.

Shapes: B rows, M hidden tokens a row at most, D width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from model.bert import BERT
from model.blocks import largest_magnitude
from model.loader import MaskedBatch
from model.objective import LOGIT_ROWS
from model.targets import NO_LOSS


@dataclass(frozen=True)
class MaskedSums:
    """Sums over the rows of a micro-batch; those of micro-batches and ranks add up.

    What is minimised is each kind of nats over what `counts` says of the whole batch, one plus the other (Devlin et al.
    2019, appendix A.2).
    """

    masked_nats: Tensor
    """f32[], differentiable: -ln p of hidden tokens."""
    next_nats: Tensor
    """f32[], differentiable: -ln p of whether the second stretch follows."""
    masked_right: Tensor
    """i64[]: hidden tokens that the network thinks likeliest."""
    next_right: Tensor
    """i64[]: pairs of which it thinks the right answer likelier."""
    thermometers: Tensor
    """f32[layers + 3]: `bert.thermometer_names` in order."""


def counts(batch: MaskedBatch) -> tuple[int, int]:
    """Hidden tokens, and rows that have a second stretch."""
    return int((batch.targets_BM != NO_LOSS).sum()), int((batch.is_next_B != NO_LOSS).sum())


def masked_sums(network: BERT, batch: MaskedBatch) -> MaskedSums:
    """What the network makes of a micro-batch."""
    heat: list[Tensor] = []
    hidden_BTD = network.hidden(batch.inputs_BT, batch.token_types_BT, batch.is_token_BT, heat)
    nats, right, masked_heat = (hidden_BTD.new_zeros(()) for _ in range(3))
    rows = max(1, LOGIT_ROWS // batch.positions_BM.shape[1])
    pieces = (part.split(rows) for part in (hidden_BTD, batch.positions_BM, batch.targets_BM))
    for hidden, positions, targets in zip(*pieces, strict=True):
        logits = network.masked_logits(hidden, positions).flatten(0, 1)
        masked_heat = torch.maximum(masked_heat, largest_magnitude(logits))
        nats = nats + F.cross_entropy(logits, targets.flatten(), ignore_index=NO_LOSS, reduction="sum")
        right = right + (logits.argmax(-1) == targets.flatten()).sum()
    answers = network.next_logits(hidden_BTD)
    return MaskedSums(
        nats,
        F.cross_entropy(answers, batch.is_next_B, ignore_index=NO_LOSS, reduction="sum"),
        right.long(),
        (answers.argmax(-1) == batch.is_next_B).sum(),
        torch.stack([*heat, masked_heat, largest_magnitude(answers)]),
    )
