"""The objective of T5: the cross entropy of the decoder's targets, sentinels and end-of-text included."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from model.data.dataset import Rows, SequenceReader, padding_id, text_lengths
from model.data.loader import SpanBatch, SpanLoader
from model.data.row_format import NO_LOSS
from model.nn.t5 import T5
from model.objectives.base import Objective, Sums
from model.objectives.cross_entropy import row_sums


class SpanObjective(Objective):
    """All targets of the decoder."""

    terms: tuple[str, ...] = ("span",)

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def loader(self, data: SequenceReader) -> SpanLoader:
        return SpanLoader(data, self._seed)

    def text_tokens(self, data: SequenceReader, rows: Rows) -> int:
        """Return all tokens except padding, before spans are removed."""
        return int(text_lengths(rows.tokens_BL, padding_id(data)).sum())

    def counts(self, batch: SpanBatch) -> tuple[int, ...]:
        return (int((batch.targets_BU != NO_LOSS).sum()),)

    def sums(self, network: T5, batch: SpanBatch) -> Sums:
        """Sum the nats of the decoder's targets; a z-loss is in their gradient alone."""
        ranges: list[Tensor] = []
        encoded_BTD = network.encode(batch.inputs_BT, batch.is_token_BT, ranges)
        hidden_BUD = network.decode(batch.decoder_inputs_BU, encoded_BTD, batch.is_token_BT, ranges)
        return row_sums(network, hidden_BUD, ranges, batch.targets_BU)

    def inputs(self, network: T5, batch: SpanBatch) -> dict[str, Any]:
        del network
        return {
            "inputs_BT": batch.inputs_BT,
            "is_token_BT": batch.is_token_BT,
            "decoder_inputs_BU": batch.decoder_inputs_BU,
        }

    def sums_from_hidden(self, network: T5, hidden: Tensor, ranges: list[Tensor], batch: SpanBatch) -> Sums:
        """Compute the sums from the decoder's stream f32[B, U, D]."""
        return row_sums(network, hidden, ranges, batch.targets_BU)

    def without_loss(self, batch: SpanBatch) -> SpanBatch:
        return replace(batch, targets_BU=torch.full_like(batch.targets_BU, NO_LOSS))
