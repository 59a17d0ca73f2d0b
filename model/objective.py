"""The objective of GPT: how surprised the network is by each next token.

Shapes: B rows, L tokens a row, T = L - 1 predictions a row, N = B T, D width, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from model.blocks import largest_magnitude
from model.documents import documents_of, visible_within_documents
from model.targets import NO_LOSS
from model.transformer import GPT

LOGIT_ROWS = 512
"""Predictions whose logits exist at once. With 4096 pieces that is 8 MiB, which stays in the cache of a core: a tenth
of the step faster than all logits at once, and the memory does not grow with the batch."""


def loss_targets(tokens_BL: Tensor, loss_start_B: Tensor, pad: int) -> Tensor:
    """The token after each position, i64[B, T]; NO_LOSS where it is padding or lies before `loss_start`."""
    targets = tokens_BL[:, 1:].clone()
    position = torch.arange(1, tokens_BL.shape[1])
    targets[(targets == pad) | (position < loss_start_B[:, None])] = NO_LOSS
    return targets


def next_token_nats(
    network: GPT, inputs_BT: Tensor, targets_BT: Tensor, eos: int | None = None
) -> tuple[Tensor, Tensor]:
    """Sum of -ln p over the targets that count (f32[], differentiable), and the thermometers.

    A z-loss is in the gradient of that sum and not in its value, so that losses of runs with and without compare.
    `eos` closes documents; it decides only where the network attends within them. The thermometers are
    `transformer.thermometer_names` in order, f32[layers + 2].
    """
    heat: list[Tensor] = []
    visible = None
    if network.config.attend_within_documents:
        assert eos is not None, "borders of documents are found by the token that closes them"
        visible = visible_within_documents(documents_of(inputs_BT, eos))
    hidden_ND = network.hidden(inputs_BT, heat=heat, visible_B1TT=visible).flatten(0, 1)
    nats, logit_heat = nats_in_pieces(network.logits, hidden_ND, targets_BT.flatten(), network.config.z_loss)
    return nats, torch.stack([*heat, logit_heat])


def nats_in_pieces(
    logits_of: Callable[[Tensor], Tensor], hidden_ND: Tensor, targets_N: Tensor, z_loss: float
) -> tuple[Tensor, Tensor]:
    """Sum of -ln p over the targets that count, f32[], and the largest absolute logit, f32[].

    `logits_of` gives the logits f32[n, V] of some of the rows. The z-loss is in the gradient alone.
    """
    nats = hidden_ND.new_zeros(())
    drift = hidden_ND.new_zeros(())
    heat = hidden_ND.new_zeros(())
    for hidden, targets in zip(hidden_ND.split(LOGIT_ROWS), targets_N.split(LOGIT_ROWS), strict=True):
        logits = logits_of(hidden)
        heat = torch.maximum(heat, largest_magnitude(logits))
        nats = nats + F.cross_entropy(logits, targets, ignore_index=NO_LOSS, reduction="sum")
        if z_loss:
            drift = drift + logits[targets != NO_LOSS].logsumexp(-1).square().sum()
    if z_loss:
        nats = nats + z_loss * (drift - drift.detach())
    return nats, heat
