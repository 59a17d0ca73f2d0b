"""T5's objectives: a text is corrupted, an encoder reads what is left, and a decoder writes what is missing.

Raffel et al. 2020, sections 3.1.4, 3.2.4 and 3.3; table 3 has an example of each. By default (`random_spans`) 15% of
the tokens go, in spans of three on average: what remains, with a sentinel in place of each span, is the encoder's
input, and each sentinel followed by its span is the decoder's target. What goes is a function of (seed, row, epoch)
alone.

Shapes: B rows, R raw tokens a row, T encoder inputs, U decoder targets.

What becomes of noise tokens: the encoder's input and the decoder's target, without the token that closes both.

Raffel et al. 2020, sections 3.2.4 and 3.3.2, and the functions `noise_span_to_unique_sentinel`, `drop_noise_tokens`,
`noise_token_to_sentinel`, `noise_token_to_random_token_or_sentinel` and `permute_noise_tokens` of their program.

Every writer reads texts of `length_B` tokens out of i64[B, R] and bool[B, R], and writes i64[B, T], i64[B, U] and in
i64[2, B] how many tokens of each are written. What is drawn comes from the stream (key, row, epoch, 1).

Which tokens of a text are noise: the laws of T5's comparison, each a mark for every token.

Raffel et al. 2020, sections 3.1.4 and 3.3, and the functions `random_spans_noise_mask`, `iid_noise_mask` and
`random_prefix_noise_mask` of their program. How many tokens are noise, and in how many spans, follows from the length,
so that rows become inputs and targets of known length; given these, every outcome is as likely as any other.

Every law marks bool[B, R], all False before, for texts of `length_B` tokens, from the stream (key, row, epoch, 0);
`count_of` and `spans_of` say of each length how many tokens are noise, in how many spans. Of a text of fewer than two
tokens nothing is marked.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np

from model.data.dataset import text_lengths
from model.data.rng import below, fill, philox_key
from model.data.row_format import NO_LOSS, RowFormat
from model.data.span_lengths import Denoising, corrupted_lengths
from model.errors import InputError


@numba.njit(nogil=True)
def drop_noise(
    tokens: np.ndarray,
    length: np.ndarray,
    noise: np.ndarray,
    inputs: np.ndarray,
    targets: np.ndarray,
    ends: np.ndarray,
    _sentinels: np.ndarray,
    _ordinary: np.ndarray,
    _key: np.ndarray,
    _row: np.ndarray,
    _epoch: np.ndarray,
) -> None:
    """What stays is the input, and noise the target: nothing tells where it stood."""
    for b in range(len(tokens)):
        t = u = 0
        for at in range(length[b]):
            if noise[b, at]:
                targets[b, u] = tokens[b, at]
                u += 1
            else:
                inputs[b, t] = tokens[b, at]
                t += 1
        ends[0, b], ends[1, b] = t, u


@numba.njit(nogil=True)
def noise_after_prefix(
    noise: np.ndarray,
    length: np.ndarray,
    _count_of: np.ndarray,
    _spans_of: np.ndarray,
    key: np.ndarray,
    row: np.ndarray,
    epoch: np.ndarray,
) -> None:
    """All behind a prefix of one token to all but one, each length as likely as any other."""
    prefix = prefix_lengths(length, key, row, epoch)
    for b in range(len(noise)):
        noise[b, prefix[b] : length[b]] = True


@numba.njit(nogil=True)
def replace_spans_with_sentinels(
    tokens: np.ndarray,
    length: np.ndarray,
    noise: np.ndarray,
    inputs: np.ndarray,
    targets: np.ndarray,
    ends: np.ndarray,
    sentinels: np.ndarray,
    _ordinary: np.ndarray,
    _key: np.ndarray,
    _row: np.ndarray,
    _epoch: np.ndarray,
) -> None:
    """Each span of noise becomes a sentinel of the input, and stands behind it in the target."""
    for b in range(len(tokens)):
        t = u = span = 0
        for at in range(length[b]):
            if not noise[b, at]:
                inputs[b, t] = tokens[b, at]
                t += 1
                continue
            if at == 0 or not noise[b, at - 1]:
                inputs[b, t] = targets[b, u] = sentinels[span]
                t, u, span = t + 1, u + 1, span + 1
            targets[b, u] = tokens[b, at]
            u += 1
        ends[0, b], ends[1, b] = t, u


@numba.njit(nogil=True)
def independent_spans(
    noise: np.ndarray,
    length: np.ndarray,
    count_of: np.ndarray,
    spans_of: np.ndarray,
    key: np.ndarray,
    row: np.ndarray,
    epoch: np.ndarray,
) -> None:
    """Noise tokens drawn independently of each other, given how many they are and into how many runs they fall.

    A run stands in any of the gaps before, between and behind the tokens that stay.
    """
    has_run = np.empty(noise.shape[1] + 2, dtype=np.bool_)
    noise_begins = np.empty(noise.shape[1] + 1, dtype=np.bool_)
    numbers = np.empty(2 * spans_of.max() + 2, dtype=np.uint64)
    for b in range(len(noise)):
        if length[b] < 2:
            continue
        count, spans = int(count_of[length[b]]), int(spans_of[length[b]])
        kept = int(length[b]) - count
        fill(numbers[: 2 * spans - 1], key, row[b], epoch[b], 0)
        _subset(has_run, kept + 1, spans, numbers)
        _subset(noise_begins, count - 1, spans - 1, numbers[spans:])
        at = noise_at = 0
        for gap in range(kept + 1):
            if has_run[gap + 1]:
                while True:
                    noise[b, at] = True
                    at, noise_at = at + 1, noise_at + 1
                    if noise_at >= count or noise_begins[noise_at]:
                        break
            at += 1


NoiseLaw = Callable[..., None]
"""noise_BR, length_B, count_of, spans_of, key, row_B, epoch_B."""


@numba.njit(nogil=True)
def mask_or_replace_noise(
    tokens: np.ndarray,
    length: np.ndarray,
    noise: np.ndarray,
    inputs: np.ndarray,
    targets: np.ndarray,
    ends: np.ndarray,
    sentinels: np.ndarray,
    ordinary: np.ndarray,
    key: np.ndarray,
    row: np.ndarray,
    epoch: np.ndarray,
) -> None:
    """As `mask_noise`, but for one noise token in ten, which becomes a random one that stands for text."""
    numbers = np.empty(2 * tokens.shape[1], dtype=np.uint64)
    for b in range(len(tokens)):
        fill(numbers[: 2 * noise[b].sum()], key, row[b], epoch[b], 1)
        nth = 0
        for at in range(length[b]):
            targets[b, at] = inputs[b, at] = tokens[b, at]
            if noise[b, at]:
                random = below(numbers[2 * nth], _RANDOM_ONE_IN) == 0
                other = ordinary[below(numbers[2 * nth + 1], len(ordinary))]
                inputs[b, at] = other if random else sentinels[0]
                nth += 1
        ends[0, b] = ends[1, b] = length[b]


@numba.njit(nogil=True)
def mask_noise(
    tokens: np.ndarray,
    length: np.ndarray,
    noise: np.ndarray,
    inputs: np.ndarray,
    targets: np.ndarray,
    ends: np.ndarray,
    sentinels: np.ndarray,
    _ordinary: np.ndarray,
    _key: np.ndarray,
    _row: np.ndarray,
    _epoch: np.ndarray,
) -> None:
    """Noise becomes the first sentinel, and the target is the whole text (Song et al. 2019, MASS)."""
    for b in range(len(tokens)):
        for at in range(length[b]):
            targets[b, at] = tokens[b, at]
            inputs[b, at] = sentinels[0] if noise[b, at] else tokens[b, at]
        ends[0, b] = ends[1, b] = length[b]


@numba.njit(nogil=True)
def independent_tokens(
    noise: np.ndarray,
    length: np.ndarray,
    count_of: np.ndarray,
    _spans_of: np.ndarray,
    key: np.ndarray,
    row: np.ndarray,
    epoch: np.ndarray,
) -> None:
    """Noise tokens drawn independently of each other, given how many they are."""
    marks = np.empty(noise.shape[1] + 1, dtype=np.bool_)
    numbers = np.empty(count_of.max(), dtype=np.uint64)
    for b in range(len(noise)):
        count = int(count_of[length[b]])
        fill(numbers[:count], key, row[b], epoch[b], 0)
        _subset(marks, length[b], count, numbers)
        noise[b, : length[b]] = marks[1 : length[b] + 1]


Writer = Callable[..., None]
"""tokens_BR, length_B, noise_BR, inputs_BT, targets_BU, ends, sentinels, ordinary ids, key, row_B, epoch_B."""


@numba.njit(nogil=True)
def shuffle_tokens(
    tokens: np.ndarray,
    length: np.ndarray,
    _noise: np.ndarray,
    inputs: np.ndarray,
    targets: np.ndarray,
    ends: np.ndarray,
    _sentinels: np.ndarray,
    _ordinary: np.ndarray,
    key: np.ndarray,
    row: np.ndarray,
    epoch: np.ndarray,
) -> None:
    """All tokens in any order, each as likely as any other (Fisher and Yates); the target is the text."""
    numbers = np.empty(tokens.shape[1], dtype=np.uint64)
    for b in range(len(tokens)):
        fill(numbers[: length[b]], key, row[b], epoch[b], 1)
        for at in range(length[b]):
            targets[b, at] = inputs[b, at] = tokens[b, at]
        for at in range(length[b] - 1):
            other = at + below(numbers[at], length[b] - at)
            inputs[b, at], inputs[b, other] = inputs[b, other], inputs[b, at]
        ends[0, b] = ends[1, b] = length[b]


@numba.njit(nogil=True)
def random_spans(
    noise: np.ndarray,
    length: np.ndarray,
    count_of: np.ndarray,
    spans_of: np.ndarray,
    key: np.ndarray,
    row: np.ndarray,
    epoch: np.ndarray,
) -> None:
    """Noise in spans, the first behind a token that stays and the last at the end: noise and what stays are each parted
    into as many non-empty parts, every way as likely as any other."""
    kept_begins = np.empty(noise.shape[1] + 1, dtype=np.bool_)
    noise_begins = np.empty(noise.shape[1] + 1, dtype=np.bool_)
    numbers = np.empty(2 * spans_of.max() + 2, dtype=np.uint64)
    for b in range(len(noise)):
        if length[b] < 2:
            continue
        count, spans = int(count_of[length[b]]), int(spans_of[length[b]])
        kept = int(length[b]) - count
        fill(numbers[: 2 * (spans - 1)], key, row[b], epoch[b], 0)
        _subset(kept_begins, kept - 1, spans - 1, numbers)
        _subset(noise_begins, count - 1, spans - 1, numbers[spans - 1 :])
        at = kept_at = noise_at = 0
        for _ in range(spans):
            while True:
                at, kept_at = at + 1, kept_at + 1
                if kept_at >= kept or kept_begins[kept_at]:
                    break
            while True:
                noise[b, at] = True
                at, noise_at = at + 1, noise_at + 1
                if noise_at >= count or noise_begins[noise_at]:
                    break


_WAYS: dict[Denoising, tuple[NoiseLaw | None, Writer]] = {
    "random_spans": (random_spans, replace_spans_with_sentinels),
    "iid_spans": (independent_spans, replace_spans_with_sentinels),
    "iid_drop": (independent_tokens, drop_noise),
    "bert_style": (independent_tokens, mask_or_replace_noise),
    "mass_style": (independent_tokens, mask_noise),
    "deshuffling": (None, shuffle_tokens),
    "prefix_lm": (noise_after_prefix, drop_noise),
    "language_model": (None, drop_noise),
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
        if self._write is mask_or_replace_noise and not len(self._ordinary):
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


_RANDOM_ONE_IN = 10
"""Of the noise tokens of `bert_style`, one in ten becomes another token, the others masks (section 3.2.4)."""


@numba.njit(nogil=True)
def _subset(marks: np.ndarray, places: int, count: int, numbers: np.ndarray) -> None:
    """Mark `count` of the places 1 .. `places` in bool[places + 1], every subset as likely as any other (Floyd's
    algorithm); takes `count` numbers. Place 0 stays as it is."""
    marks[1 : places + 1] = False
    for nth in range(count):
        last = places - count + 1 + nth
        place = 1 + below(numbers[nth], last)
        marks[last if marks[place] else place] = True


@numba.njit(nogil=True)
def prefix_lengths(length: np.ndarray, key: np.ndarray, row: np.ndarray, epoch: np.ndarray) -> np.ndarray:
    """Tokens of a random prefix of each text, i64[B]: 1 to all but one; all of a text of fewer than two."""
    prefix = length.copy()
    numbers = np.empty(1, dtype=np.uint64)
    for b in range(len(length)):
        if length[b] > 1:
            fill(numbers, key, row[b], epoch[b], 0)
            prefix[b] = 1 + below(numbers[0], length[b] - 1)
    return prefix
