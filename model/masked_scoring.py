"""How likely a BERT finds text: each token hidden once in turn, and hidden tokens and pairs as in training.

The sum of log p of each token, given all others, is a pseudo-log-likelihood (Salazar et al. 2020, section 2). It is no
likelihood: the tokens around tell of a token more than those before it alone, so that it compares BERTs with each other
and with nothing else.

Shapes: B rows, T tokens a row, M hidden tokens a row at most, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from model.bert import BERT
from model.loader import MaskedBatch
from model.targets import NO_LOSS


@dataclass(frozen=True)
class Frame:
    """The special ids around a text that a BERT reads, and the one that hides a token."""

    cls: int
    sep: int
    mask: int

    def around(self, tokens: Sequence[int]) -> list[int]:
        """The text as one stretch without a second."""
        return [self.cls, *tokens, self.sep]


FRAME_TOKENS = 2
"""Special tokens around a single stretch."""


@torch.inference_mode()
def hidden_nats(
    network: BERT, frame: Frame, text: Sequence[int], places: Sequence[int], batch_tokens: int = 8192
) -> list[float]:
    """-ln p of the token at each of `places` in `text` where it alone is hidden, given all the others.

    Raises ValueError for a text that does not fit into the model's context with its frame.
    """
    if len(text) + FRAME_TOKENS > network.config.context:
        raise ValueError(
            f"{len(text)} tokens and {FRAME_TOKENS} special ones do not fit into a context of {network.config.context}"
        )
    row_T = torch.tensor(frame.around(text))
    found: list[float] = []
    rows = max(1, batch_tokens // len(row_T))
    for some_B in (torch.tensor(places, dtype=torch.long) + 1).split(rows):
        inputs_BT = row_T.repeat(len(some_B), 1)
        inputs_BT[torch.arange(len(some_B)), some_B] = frame.mask
        everywhere_BT = torch.ones_like(inputs_BT, dtype=torch.bool)
        hidden_BTD = network.hidden(inputs_BT, torch.zeros_like(inputs_BT), everywhere_BT)
        logits_BV = network.masked_logits(hidden_BTD, some_B[:, None])[:, 0]
        found += F.cross_entropy(logits_BV, row_T[some_B], reduction="none").double().tolist()
    return found


def pseudo_log_probabilities(
    network: BERT, frame: Frame, context: Sequence[int], continuations: Sequence[Sequence[int]]
) -> list[float]:
    """Sum of ln p of each continuation's tokens, every one hidden in turn, given the context and the rest of it.

    No continuation may be empty. Raises ValueError where one and the context do not fit into the model's context.
    """
    begin = len(context)
    return [
        -sum(hidden_nats(network, frame, (*context, *one), range(begin, begin + len(one)))) for one in continuations
    ]


@dataclass(frozen=True)
class MaskedRowSums:
    """What a BERT makes of each row of a batch."""

    nats_BM: Tensor
    """f64: -ln p of each hidden token; 0 where there is none."""
    right_BM: Tensor
    """bool: the network thinks it the likeliest token."""
    next_right_B: Tensor
    """bool: it thinks the right answer likelier, of whether the second stretch follows; False without a second."""


@torch.inference_mode()
def masked_row_sums(network: BERT, batch: MaskedBatch) -> MaskedRowSums:
    """Hidden tokens and pairs, row by row."""
    hidden_BTD = network.hidden(batch.inputs_BT, batch.token_types_BT, batch.is_token_BT)
    logits_BMV = network.masked_logits(hidden_BTD, batch.positions_BM)
    nats_N = F.cross_entropy(
        logits_BMV.flatten(0, 1), batch.targets_BM.flatten(), ignore_index=NO_LOSS, reduction="none"
    )
    return MaskedRowSums(
        nats_N.double().view_as(batch.targets_BM),
        logits_BMV.argmax(-1) == batch.targets_BM,
        network.next_logits(hidden_BTD).argmax(-1) == batch.is_next_B,
    )
