"""T5's objective: spans of text are taken out, and the model writes them.

Raffel et al. 2020, section 3.1.4, as in their `random_spans_helper` and `random_spans_noise_mask`: 15% of the tokens
go, in spans of three on average. What remains, with a sentinel in place of each span, is the encoder's input; each
sentinel followed by its span is the decoder's target. Which spans is a function of (seed, row, epoch) alone.

Shapes: B rows, R raw tokens a row, T encoder inputs, U decoder targets.
"""

from dataclasses import dataclass

import numba
import numpy as np

from model.errors import InputError
from model.philox import below, fill, philox_key
from model.row_format import RowFormat
from model.span_lengths import corrupted_lengths
from model.targets import NO_LOSS


@dataclass(frozen=True)
class CorruptedRows:
    """Encoder inputs i64[B, T], filled up with padding behind `input_lengths_B`, and targets i64[B, U], filled up with
    NO_LOSS; `decoder_inputs_BU` are the targets one place later, behind a padding token (T5's start)."""

    inputs_BT: np.ndarray
    input_lengths_B: np.ndarray
    decoder_inputs_BU: np.ndarray
    targets_BU: np.ndarray


class SpanCorruption:
    """Corrupts rows of up to `raw` tokens; a row with padding at its end gives shorter inputs and targets.

    Raises InputError where the vocabulary has fewer sentinels than a full row has spans.
    """

    def __init__(self, rows: RowFormat, seed: int, raw: int) -> None:
        of_length = [corrupted_lengths(length, rows.noise_density, rows.mean_noise_span) for length in range(raw + 1)]
        self._noise = np.array([lengths.noise for lengths in of_length])
        self._spans = np.array([lengths.spans for lengths in of_length])
        self._longest_input = max(lengths.inputs for lengths in of_length)
        self._longest_target = max(lengths.targets for lengths in of_length)
        if self._spans.max() > len(rows.sentinels):
            raise InputError(
                f"span_corruption: rows of {raw} tokens lose {self._spans.max()} spans, and the vocabulary has"
                f" {len(rows.sentinels)} sentinels to stand in their places. Make chunk's rows shorter, or the"
                f" vocabulary with more sentinels."
            )
        self._key = philox_key(seed, "span corruption")
        self._pad, self._eos = rows.pad, rows.eos
        self._sentinels = np.array(rows.sentinels, dtype=np.int64)

    def __call__(self, tokens_BR: np.ndarray, row_B: np.ndarray, epoch_B: np.ndarray) -> CorruptedRows:
        """Corrupt rows i64[B, R]; `row_B` and `epoch_B` name each row's draw."""
        rows = len(tokens_BR)
        inputs = np.full((rows, self._longest_input), self._pad, dtype=np.int64)
        targets = np.full((rows, self._longest_target), NO_LOSS, dtype=np.int64)
        input_lengths = np.zeros(rows, dtype=np.int64)
        _corrupt_rows(
            tokens_BR,
            inputs,
            input_lengths,
            targets,
            row_B.astype(np.uint64),
            epoch_B.astype(np.uint64),
            self._key,
            self._sentinels,
            self._pad,
            self._eos,
            self._noise,
            self._spans,
        )
        decoder_inputs = np.full_like(targets, self._pad)
        decoder_inputs[:, 1:] = np.where(targets[:, :-1] == NO_LOSS, self._pad, targets[:, :-1])
        return CorruptedRows(inputs, input_lengths, decoder_inputs, targets)


@numba.njit(nogil=True)
def _compose(begins: np.ndarray, total: int, parts: int, numbers: np.ndarray) -> None:
    """Mark in bool[total] where `parts` non-empty parts begin, every composition as likely as any other.

    The parts - 1 further beginnings are a random subset of the places 1 .. total - 1 (Floyd's algorithm).
    """
    begins[:total] = False
    for nth in range(parts - 1):
        last = total - parts + 1 + nth
        place = 1 + below(numbers[nth], last)
        begins[last if begins[place] else place] = True
    begins[0] = True


@numba.njit(nogil=True)
def _corrupt_rows(
    tokens: np.ndarray,
    inputs: np.ndarray,
    input_lengths: np.ndarray,
    targets: np.ndarray,
    row: np.ndarray,
    epoch: np.ndarray,
    key: np.ndarray,
    sentinels: np.ndarray,
    pad: int,
    eos: int,
    noise_of: np.ndarray,
    spans_of: np.ndarray,
) -> None:
    longest = max(tokens.shape[1], 2)
    noise_begins = np.empty(longest, dtype=np.bool_)
    kept_begins = np.empty(longest, dtype=np.bool_)
    numbers = np.empty(2 * len(sentinels), dtype=np.uint64)
    for b in range(len(tokens)):
        length = tokens.shape[1]
        while length and tokens[b, length - 1] == pad:
            length -= 1
        noise, spans = int(noise_of[length]), int(spans_of[length])
        kept = max(length, 2) - noise
        fill(numbers[: 2 * (spans - 1)], key, row[b], epoch[b], 0)
        _compose(kept_begins, kept, spans, numbers)
        _compose(noise_begins, noise, spans, numbers[spans - 1 :])
        t = u = at = kept_at = noise_at = 0
        for span in range(spans):
            while True:
                if at < length:
                    inputs[b, t] = tokens[b, at]
                    t, at = t + 1, at + 1
                kept_at += 1
                if kept_at >= kept or kept_begins[kept_at]:
                    break
            if at < length:
                inputs[b, t] = sentinels[span]
                targets[b, u] = sentinels[span]
                t, u = t + 1, u + 1
            while True:
                if at < length:
                    targets[b, u] = tokens[b, at]
                    u, at = u + 1, at + 1
                noise_at += 1
                if noise_at >= noise or noise_begins[noise_at]:
                    break
        inputs[b, t] = eos
        targets[b, u] = eos
        input_lengths[b] = t + 1
