"""The objective of T5: how surprised the network is by the spans that were taken out, sentinels and end included."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from model.data.dataset import SequenceReader, padding_id, text_lengths
from model.data.loader import SpanBatch, SpanLoader
from model.data.row_format import NO_LOSS
from model.nn.t5 import T5
from model.objectives.base import Sums
from model.objectives.cross_entropy import chunked_nats


class SpanObjective:
    """All that the decoder is to write."""

    terms: tuple[str, ...] = ("span",)
    counts_correct = False

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def loader(self, data: SequenceReader) -> SpanLoader:
        """Batches of these rows."""
        return SpanLoader(data, self._seed)

    def tokens_per_row(self, row_length: int) -> int:
        """All of a row, before spans are taken out."""
        return row_length

    def text_tokens(self, data: SequenceReader, begin: int, end: int) -> int:
        """All of the rows but padding, before spans are taken out."""
        return int(text_lengths(data.rows(begin, end).tokens_BL, padding_id(data)).sum())

    def counts(self, batch: SpanBatch) -> tuple[int, ...]:
        """Targets of the decoder."""
        return (int((batch.targets_BU != NO_LOSS).sum()),)

    def sums(self, network: T5, batch: SpanBatch) -> Sums:
        """Nats of the decoder's targets."""
        nats, ranges = span_nats(network, batch)
        return Sums((nats,), (), ranges)

    def inputs(self, network: T5, batch: SpanBatch) -> dict[str, Any]:
        """Both sides' tokens, and which of the encoder's are no padding."""
        del network
        return {
            "inputs_BT": batch.inputs_BT,
            "is_token_BT": batch.is_token_BT,
            "decoder_inputs_BU": batch.decoder_inputs_BU,
        }

    def sums_from_hidden(self, network: T5, hidden: Tensor, ranges: list[Tensor], batch: SpanBatch) -> Sums:
        """From the decoder's stream f32[B, U, D]."""
        nats, segments = _nats_behind(network, hidden, ranges, batch)
        return Sums((nats,), (), segments)

    def without_loss(self, batch: SpanBatch) -> SpanBatch:
        """The same rows, of which nothing is asked."""
        return replace(batch, targets_BU=torch.full_like(batch.targets_BU, NO_LOSS))


def span_nats(network: T5, batch: SpanBatch) -> tuple[Tensor, Tensor]:
    """Sum of -ln p over the decoder's targets (f32[], differentiable), and the thermometers.

    These are `t5.thermometer_names` in order, f32[P, 2]. A z-loss is in the gradient of the sum and not in its value.
    """
    ranges: list[Tensor] = []
    encoded_BTD = network.encode(batch.inputs_BT, batch.is_token_BT, ranges)
    hidden_BUD = network.decode(batch.decoder_inputs_BU, encoded_BTD, batch.is_token_BT, ranges)
    return _nats_behind(network, hidden_BUD, ranges, batch)


def _nats_behind(network: T5, hidden_BUD: Tensor, ranges: list[Tensor], batch: SpanBatch) -> tuple[Tensor, Tensor]:
    hidden_ND, targets_N = hidden_BUD.flatten(0, 1), batch.targets_BU.flatten()
    nats, logit_range = chunked_nats(network, hidden_ND, targets_N)
    return nats, torch.stack([*ranges, logit_range])
