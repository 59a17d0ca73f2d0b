"""The objective of BERT: masked tokens and next-sentence prediction.

Shapes: B rows, M masked tokens a row at most, D width.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from model.data.dataset import Rows, SequenceReader, padding_id, text_lengths
from model.data.loader import MaskedBatch, MaskedLoader
from model.data.row_format import NO_LOSS
from model.nn.activation_stats import activation_range, empty_range
from model.nn.bert import BERT
from model.nn.logit_sums import logit_sums
from model.objectives.base import Objective, Sums
from model.objectives.cross_entropy import logit_rows


class MaskedObjective(Objective):
    """The mean loss of masked tokens plus that of next-sentence prediction (Devlin et al. 2019, appendix A.2)."""

    terms: tuple[str, ...] = ("masked", "next")
    counts_correct = True

    def __init__(self, seed: int, share: float, context: int) -> None:
        self._seed, self._share = seed, share
        self._max_predictions = math.ceil(share * context)

    def loader(self, data: SequenceReader) -> MaskedLoader:
        """Return a loader of these rows, which masks the share of a full row at most (BERT: 20 of 128, 77 of 512)."""
        return MaskedLoader(data, self._seed, self._max_predictions, self._share)

    def text_tokens(self, data: SequenceReader, rows: Rows) -> int:
        """Return the tokens of both sentences, without [CLS] and the one or two [SEP]."""
        assert rows.second_start_B is not None, "the loader refuses rows that are no pairs"
        specials_B = 2 + (rows.second_start_B < data.row_length)
        return int((text_lengths(rows.tokens_BL, padding_id(data)) - specials_B).sum())

    def counts(self, batch: MaskedBatch) -> tuple[int, ...]:
        """Return the number of masked tokens, and of rows with a sentence B."""
        return int((batch.targets_BM != NO_LOSS).sum()), int((batch.is_next_B != NO_LOSS).sum())

    def sums(self, network: BERT, batch: MaskedBatch) -> Sums:
        ranges: list[Tensor] = []
        hidden_BTD = network.hidden(**self.inputs(network, batch), ranges=ranges)
        return self.sums_from_hidden(network, hidden_BTD, ranges, batch)

    def inputs(self, network: BERT, batch: MaskedBatch) -> dict[str, Any]:
        del network
        return {
            "tokens_BT": batch.inputs_BT,
            "token_types_BT": batch.token_types_BT,
            "is_token_BT": batch.is_token_BT,
        }

    def sums_from_hidden(self, network: BERT, hidden: Tensor, ranges: list[Tensor], batch: MaskedBatch) -> Sums:
        """Compute the sums from the stream f32[B, T, D]."""
        nats, correct = (hidden.new_zeros(()) for _ in range(2))
        masked_range = empty_range(hidden)
        predictions = logit_rows(network, hidden.device, batch.positions_BM.numel())
        masked = batch.positions_BM.shape[1]
        # Equal chunks on a device; on a processor they fit its cache.
        rows = max(1, predictions // masked if hidden.device.type == "cpu" else -(-predictions // masked))
        pieces = (part.split(rows) for part in (hidden, batch.positions_BM, batch.targets_BM))
        for some, positions, targets in zip(*pieces, strict=True):
            logits = network.masked_logits(some, positions).flatten(0, 1)
            found = logit_sums(network.vocabulary, logits, targets.flatten(), correct=True)
            masked_range = torch.maximum(masked_range, found.range)
            nats, correct = nats + found.nats, correct + found.correct
        answers = network.next_logits(hidden)
        next_nats = F.cross_entropy(answers, batch.is_next_B, ignore_index=NO_LOSS, reduction="sum")
        next_correct = (answers.argmax(-1) == batch.is_next_B).sum()
        all_ranges = torch.stack([*ranges, masked_range, activation_range(answers)])
        return Sums((nats, next_nats), (correct.long(), next_correct), all_ranges)

    def without_loss(self, batch: MaskedBatch) -> MaskedBatch:
        return replace(
            batch,
            targets_BM=torch.full_like(batch.targets_BM, NO_LOSS),
            is_next_B=torch.full_like(batch.is_next_B, NO_LOSS),
        )
