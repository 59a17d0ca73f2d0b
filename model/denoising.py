"""T5's objectives: a text is corrupted, an encoder reads what is left, and a decoder writes what is missing.

Raffel et al. 2020, sections 3.1.4, 3.2.4 and 3.3; table 3 has an example of each. By default (`random_spans`) 15% of
the tokens go, in spans of three on average: what remains, with a sentinel in place of each span, is the encoder's
input, and each sentinel followed by its span is the decoder's target. What goes is a function of (seed, row, epoch)
alone.

Shapes: B rows, R raw tokens a row, T encoder inputs, U decoder targets.
"""

from dataclasses import dataclass

import numpy as np

from model.corruption import Writer, leave_out, mask, mask_or_replace, put_sentinels, shuffle
from model.errors import InputError
from model.noise import Law, behind_a_prefix, independent_spans, independent_tokens, random_spans
from model.padding import text_lengths
from model.philox import philox_key
from model.row_format import RowFormat
from model.span_lengths import Denoising, corrupted_lengths
from model.targets import NO_LOSS

_WAYS: dict[Denoising, tuple[Law | None, Writer]] = {
    "random_spans": (random_spans, put_sentinels),
    "iid_spans": (independent_spans, put_sentinels),
    "iid_drop": (independent_tokens, leave_out),
    "bert_style": (independent_tokens, mask_or_replace),
    "mass_style": (independent_tokens, mask),
    "deshuffling": (None, shuffle),
    "prefix_lm": (behind_a_prefix, leave_out),
    "language_model": (None, leave_out),
}
"""Which tokens are noise, all of them where no law says so, and what becomes of them."""
_PURPOSES: dict[Denoising, str] = {"random_spans": "span corruption"}
"""What the draw of a kind is named after, where not after the kind."""


@dataclass(frozen=True)
class CorruptedRows:
    """Encoder inputs i64[B, T], filled up with padding behind `input_lengths_B`, and targets i64[B, U], filled up with
    NO_LOSS; `decoder_inputs_BU` are the targets one place later, behind a padding token (T5's start)."""

    inputs_BT: np.ndarray
    input_lengths_B: np.ndarray
    decoder_inputs_BU: np.ndarray
    targets_BU: np.ndarray


class Denoiser:
    """Corrupts rows of up to `raw` tokens; a row with padding at its end gives shorter inputs and targets.

    Raises InputError where the vocabulary has fewer sentinels than a full row needs, or no token to draw.
    """

    def __init__(self, rows: RowFormat, seed: int, raw: int) -> None:
        of_length = [
            corrupted_lengths(length, rows.noise_density, rows.mean_noise_span, rows.denoising)
            for length in range(raw + 1)
        ]
        self._noise = np.array([lengths.noise for lengths in of_length])
        self._spans = np.array([lengths.sentinels for lengths in of_length])
        self._longest_input = max(lengths.inputs for lengths in of_length)
        self._longest_target = max(lengths.targets for lengths in of_length)
        _check_sentinels(int(self._spans.max()), rows, raw)
        self._law, self._write = _WAYS[rows.denoising]
        self._key = philox_key(seed, _PURPOSES.get(rows.denoising, rows.denoising))
        self._pad, self._eos = rows.pad, rows.eos
        self._sentinels = np.array(rows.sentinels, dtype=np.int64)
        self._ordinary = np.setdiff1d(np.arange(rows.vocab_size), rows.special)
        if self._write is mask_or_replace and not len(self._ordinary):
            raise InputError(f"bert_style: all {rows.vocab_size} ids of the vocabulary are special; nothing is text")

    def __call__(self, tokens_BR: np.ndarray, row_B: np.ndarray, epoch_B: np.ndarray) -> CorruptedRows:
        """Corrupt rows i64[B, R]; `row_B` and `epoch_B` name each row's draw."""
        rows = np.arange(len(tokens_BR))
        names = (self._key, row_B.astype(np.uint64), epoch_B.astype(np.uint64))
        length_B = text_lengths(tokens_BR, self._pad)
        noise_BR = np.full(tokens_BR.shape, self._law is None)
        if self._law is not None:
            self._law(noise_BR, length_B, self._noise, self._spans, *names)
        inputs = np.full((len(rows), self._longest_input), self._pad, dtype=np.int64)
        targets = np.full((len(rows), self._longest_target), NO_LOSS, dtype=np.int64)
        ends = np.zeros((2, len(rows)), dtype=np.int64)
        self._write(tokens_BR, length_B, noise_BR, inputs, targets, ends, self._sentinels, self._ordinary, *names)
        inputs[rows, ends[0]] = targets[rows, ends[1]] = self._eos
        decoder_inputs = np.full_like(targets, self._pad)
        decoder_inputs[:, 1:] = np.where(targets[:, :-1] == NO_LOSS, self._pad, targets[:, :-1])
        return CorruptedRows(inputs, ends[0] + 1, decoder_inputs, targets)


def _check_sentinels(needed: int, rows: RowFormat, raw: int) -> None:
    if needed <= len(rows.sentinels):
        return
    if needed == 1:
        raise InputError(
            f"span_corruption ({rows.denoising}): what is corrupted becomes the first sentinel, and the vocabulary has"
            f" none. Take a vocabulary with vocab.sentinels = 1 or more."
        )
    raise InputError(
        f"span_corruption ({rows.denoising}): rows of {raw} tokens lose {needed} spans, and the vocabulary has"
        f" {len(rows.sentinels)} sentinels to stand in their places. Make chunk's rows shorter, or the vocabulary with"
        f" more sentinels."
    )
