"""The objective of T5: the cross entropy of the decoder's targets, sentinels and end-of-text included."""

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
    """All targets of the decoder."""

    terms: tuple[str, ...] = ("span",)
    counts_correct = False

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def loader(self, data: SequenceReader) -> SpanLoader:
        """Return a loader of these rows."""
        return SpanLoader(data, self._seed)

    def tokens_per_row(self, row_length: int) -> int:
        """Return all tokens of a row, before spans are removed."""
        return row_length

    def text_tokens(self, data: SequenceReader, begin: int, end: int) -> int:
        """Return all tokens except padding, before spans are removed."""
        return int(text_lengths(data.rows(begin, end).tokens_BL, padding_id(data)).sum())

    def counts(self, batch: SpanBatch) -> tuple[int, ...]:
        """Return the number of the decoder's targets."""
        return (int((batch.targets_BU != NO_LOSS).sum()),)

    def sums(self, network: T5, batch: SpanBatch) -> Sums:
        """Sum the nats of the decoder's targets."""
        nats, ranges = span_nats(network, batch)
        return Sums((nats,), (), ranges)

    def inputs(self, network: T5, batch: SpanBatch) -> dict[str, Any]:
        """Return the tokens of encoder and decoder, and which of the encoder's are not padding."""
        del network
        return {
            "inputs_BT": batch.inputs_BT,
            "is_token_BT": batch.is_token_BT,
            "decoder_inputs_BU": batch.decoder_inputs_BU,
        }

    def sums_from_hidden(self, network: T5, hidden: Tensor, ranges: list[Tensor], batch: SpanBatch) -> Sums:
        """Compute the sums from the decoder's stream f32[B, U, D]."""
        nats, all_ranges = _nats_from_hidden(network, hidden, ranges, batch)
        return Sums((nats,), (), all_ranges)

    def without_loss(self, batch: SpanBatch) -> SpanBatch:
        """Return the same rows without targets."""
        return replace(batch, targets_BU=torch.full_like(batch.targets_BU, NO_LOSS))


def span_nats(network: T5, batch: SpanBatch) -> tuple[Tensor, Tensor]:
    """Return the sum of -ln p over the decoder's targets (f32[], differentiable), and the activation ranges f32[P, 2].

    The ranges are in the order of `t5.activation_range_names`. A z-loss is in the gradient of the sum and not in its
    value.
    """
    ranges: list[Tensor] = []
    encoded_BTD = network.encode(batch.inputs_BT, batch.is_token_BT, ranges)
    hidden_BUD = network.decode(batch.decoder_inputs_BU, encoded_BTD, batch.is_token_BT, ranges)
    return _nats_from_hidden(network, hidden_BUD, ranges, batch)


def _nats_from_hidden(network: T5, hidden_BUD: Tensor, ranges: list[Tensor], batch: SpanBatch) -> tuple[Tensor, Tensor]:
    hidden_ND, targets_N = hidden_BUD.flatten(0, 1), batch.targets_BU.flatten()
    nats, logit_range = chunked_nats(network, hidden_ND, targets_N)
    return nats, torch.stack([*ranges, logit_range])
