"""Batches of each objective, made from rows as they are read.

A loader has no state: a batch is a function of its positions in ORDER, so that a batch of any size is a slice and the
progress of a run is one integer. Masks and spans depend on (seed, row, epoch) alone.

Shapes: B rows, L tokens a row, T inputs, U decoder targets, M masked tokens a row at most.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from model.config.network import Objective
from model.data.dataset import Rows, SequenceReader, text_lengths
from model.data.philox import philox_key
from model.data.row_format import RowFormat
from model.errors import InputError

if TYPE_CHECKING:
    from model.data.masking import Masking
    from model.data.span_corruption import CorruptedRows


@dataclass(frozen=True)
class CausalBatch:
    """Rows of the next-token objective (GPT)."""

    tokens_BL: Tensor
    """i64; inputs are all but the last, targets all but the first: T = L - 1."""
    loss_start_B: Tensor
    """i64; the first token whose prediction carries loss."""

    def shortened(self, length: int) -> "CausalBatch":
        """Return the same predictions in rows of `length` inputs, [B, T] -> [B T / length, length]: length warm-up.

        No prediction is lost: each short row ends with the token that the next one begins with. Raises InputError where
        `length` does not divide T.
        """
        inputs = self.tokens_BL.shape[1] - 1
        if length < 1 or inputs % length:
            raise InputError(f"rows of {inputs} predictions cannot be cut into rows of {length}; choose a divisor")
        starts = torch.arange(0, inputs, length)
        return CausalBatch(
            self.tokens_BL.unfold(1, length + 1, length).reshape(-1, length + 1),
            (self.loss_start_B[:, None] - starts).clamp(min=0).flatten(),
        )


@dataclass(frozen=True)
class PrefixBatch(CausalBatch):
    """Rows of the next-token objective with a bidirectional prefix; the loss starts after it."""

    prefix_B: Tensor
    """i64; length of the prefix of each row."""

    def shortened(self, length: int) -> "PrefixBatch":
        """Do as `CausalBatch.shortened`; the first pieces of a row hold its prefix, whole or in part."""
        pieces = super().shortened(length)
        starts = torch.arange(0, self.tokens_BL.shape[1] - 1, length)
        prefix = (self.prefix_B[:, None] - starts).clamp(min=0, max=length)
        return PrefixBatch(pieces.tokens_BL, pieces.loss_start_B, prefix.flatten())


@dataclass(frozen=True)
class MaskedBatch:
    """Sentence pairs with masked tokens (BERT)."""

    inputs_BT: Tensor
    """i64."""
    token_types_BT: Tensor
    """i64; 1 in sentence B, 0 before it and in padding."""
    is_token_BT: Tensor | None
    """bool; False in the padding at the end. None where all are tokens."""
    positions_BM: Tensor
    """i64; positions of masked tokens, ascending, then 0."""
    targets_BM: Tensor
    """i64; the tokens at these positions, then NO_LOSS."""
    is_next_B: Tensor
    """i64; 1 where B follows A, 0 where it does not, NO_LOSS where there is no B."""


@dataclass(frozen=True)
class SpanBatch:
    """Corrupted texts, and what is missing from them (T5)."""

    inputs_BT: Tensor
    """i64; the encoder's."""
    is_token_BT: Tensor | None
    """bool; False in the padding at the end of the encoder's inputs. None where all are tokens."""
    decoder_inputs_BU: Tensor
    """i64; the targets shifted right by one, with padding first."""
    targets_BU: Tensor
    """i64; NO_LOSS after the end of a shorter row."""


class Loader:
    """Batches as a function of their positions in ORDER, or of rows that were read there."""

    def __init__(self, reader: SequenceReader) -> None:
        self._reader = reader

    def batch(self, begin: int, end: int) -> Any:
        """Return the batch of positions [begin, end) of ORDER."""
        return self.batch_of(self._reader.rows(begin, end))

    def batch_of(self, rows: Rows) -> Any:
        """Return the batch of rows of the reader."""
        raise NotImplementedError


class CausalLoader(Loader):
    """Batches for next-token prediction."""

    def batch_of(self, rows: Rows) -> CausalBatch:
        return CausalBatch(torch.from_numpy(rows.tokens_BL), torch.from_numpy(rows.loss_start_B))


class PrefixLoader(Loader):
    """Batches for next-token prediction after a prefix, whose length is drawn from one token to all but one of a
    row."""

    def __init__(self, reader: SequenceReader, seed: int, pad: int) -> None:
        super().__init__(reader)
        self._key = philox_key(seed, "prefix")
        self._pad = pad

    def batch_of(self, rows: Rows) -> PrefixBatch:
        from model.data.span_corruption import prefix_lengths

        length_B = text_lengths(rows.tokens_BL, self._pad)
        draw = (rows.row_B.astype(np.uint64), rows.epoch_B.astype(np.uint64))
        prefix_B = prefix_lengths(length_B, self._key, *draw)
        return PrefixBatch(
            torch.from_numpy(rows.tokens_BL),
            torch.from_numpy(np.maximum(rows.loss_start_B, prefix_B)),
            torch.from_numpy(prefix_B),
        )


class MaskedLoader(Loader):
    """Batches for masked tokens and next-sentence prediction. Raises InputError for rows of another objective."""

    def __init__(self, reader: SequenceReader, seed: int, max_predictions: int, share: float = 0.15) -> None:
        from model.data.masking import Masking

        super().__init__(reader)
        self._format = _format_for("masked_lm", reader)
        self._mask = Masking(self._format, seed, max_predictions, share)

    def batch_of(self, rows: Rows) -> MaskedBatch:
        return masked_batch(rows, self._mask, self._format.pad)


def masked_batch(rows: Rows, mask: "Masking", pad: int) -> MaskedBatch:
    """Return rows of sentence pairs as BERT reads them."""
    assert rows.second_start_B is not None, "rows of masked_lm have a column second_start"
    assert rows.is_next_B is not None, "and a column is_next"
    masked = mask(rows.tokens_BL, rows.row_B, rows.epoch_B)
    place = np.arange(rows.tokens_BL.shape[1])
    is_token = place < text_lengths(rows.tokens_BL, pad)[:, None]
    of_second = (place >= rows.second_start_B[:, None]) & is_token
    return MaskedBatch(
        torch.from_numpy(masked.inputs_BT),
        torch.from_numpy(of_second.astype(np.int64)),
        torch.from_numpy(is_token),
        torch.from_numpy(masked.positions_BM),
        torch.from_numpy(masked.targets_BM),
        torch.from_numpy(rows.is_next_B),
    )


class SpanLoader(Loader):
    """Batches for T5's objectives. Raises InputError for rows of another objective or too few sentinels."""

    def __init__(self, reader: SequenceReader, seed: int) -> None:
        from model.data.span_corruption import Denoiser

        super().__init__(reader)
        row_format = _format_for("span_corruption", reader)
        self._corrupt = Denoiser(row_format, seed, reader.row_length)

    def batch_of(self, rows: Rows) -> SpanBatch:
        return span_batch(self._corrupt(rows.tokens_BL, rows.row_B, rows.epoch_B))


def span_batch(corrupted: "CorruptedRows") -> SpanBatch:
    """Return corrupted rows as T5 reads them."""
    is_token = np.arange(corrupted.inputs_BT.shape[1]) < corrupted.input_lengths_B[:, None]
    return SpanBatch(
        torch.from_numpy(corrupted.inputs_BT),
        torch.from_numpy(is_token),
        torch.from_numpy(corrupted.decoder_inputs_BU),
        torch.from_numpy(corrupted.targets_BU),
    )


def _format_for(objective: Objective, reader: SequenceReader) -> RowFormat:
    found = reader.row_format
    if found is None:
        raise InputError(
            f"the sequences have no row format, which batches of {objective} need. Build them again from chunk."
        )
    if found.objective != objective:
        raise InputError(
            f"the sequences were packed for {found.objective}, and this training needs {objective}. Set"
            f' chunk.objective = "{objective}", or train a network for {found.objective}.'
        )
    return found
