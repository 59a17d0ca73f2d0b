"""How likely a T5 finds what it is to write: targets of its objective token by token, and answers to a text.

Shapes: B rows, T encoder inputs, U decoder targets, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from model.loader import SpanBatch
from model.t5 import T5
from model.targets import NO_LOSS


@torch.inference_mode()
def target_nats(network: T5, batch: SpanBatch) -> Tensor:
    """-ln p of every target, f64[B, U], each given those before it; 0 where there is none."""
    encoded_BTD = network.encode(batch.inputs_BT, batch.is_token_BT)
    hidden_BUD = network.decode(batch.decoder_inputs_BU, encoded_BTD, batch.is_token_BT)
    counted_BU = batch.targets_BU != NO_LOSS
    nats_BU = torch.zeros(batch.targets_BU.shape, dtype=torch.float64)
    # The head alone is most of a small network's arithmetic, so it runs where a target counts.
    logits_NV = network.logits(hidden_BUD[counted_BU])
    nats_BU[counted_BU] = F.cross_entropy(logits_NV, batch.targets_BU[counted_BU], reduction="none").double()
    return nats_BU


@torch.inference_mode()
def answers_log_probabilities(
    network: T5, inputs: Sequence[int], start: int, opening: Sequence[int], answers: Sequence[Sequence[int]]
) -> list[tuple[float, bool]]:
    """Of each answer the sum of ln p of its tokens, and whether each of them is the likeliest in its place.

    The encoder reads `inputs` once; the decoder begins with `start` and `opening` (a sentinel, or nothing), which are
    given and not scored. Nothing but `opening` may be empty.
    """
    inputs_1T = torch.tensor([list(inputs)])
    encoded_1TD = network.encode(inputs_1T, torch.ones_like(inputs_1T, dtype=torch.bool))
    longest = max(map(len, answers))
    given = len(opening)
    decoder_BU = torch.full((len(answers), given + longest), start)
    targets_BA = torch.full((len(answers), longest), NO_LOSS)
    for row, answer in enumerate(answers):
        written = torch.tensor([start, *opening, *answer[:-1]])
        decoder_BU[row, : len(written)] = written
        targets_BA[row, : len(answer)] = torch.tensor(list(answer))
    encoded_BTD = encoded_1TD.expand(len(answers), -1, -1)
    everywhere_BT = torch.ones(len(answers), len(inputs), dtype=torch.bool)
    hidden_BAD = network.decode(decoder_BU, encoded_BTD, everywhere_BT)[:, given:]
    logits_BAV = network.logits(hidden_BAD)
    nats_N = F.cross_entropy(logits_BAV.flatten(0, 1), targets_BA.flatten(), ignore_index=NO_LOSS, reduction="none")
    nats_BA = nats_N.double().view_as(targets_BA)
    spelled_B = ((logits_BAV.argmax(-1) == targets_BA) | (targets_BA == NO_LOSS)).all(-1)
    return list(zip((-nats_BA.sum(-1)).tolist(), spelled_B.tolist(), strict=True))
