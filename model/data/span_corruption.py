"""T5's objectives: a text is corrupted, an encoder reads what is left, and a decoder writes what is missing.

Raffel et al. 2020, sections 3.1.4, 3.2.4 and 3.3; table 3 has an example of each. By default (`random_spans`) 15% of
the tokens are removed, in spans of three on average: the rest, with a sentinel in place of each span, is the encoder's
input, and each sentinel followed by its span is the decoder's target.

An objective is a noise law, which marks the tokens to corrupt, and a writer, which makes inputs and targets of them.
How many tokens are noise, and in how many spans, follows from the length, so that rows of one length give inputs and
targets of one length; given these, every outcome is equally likely. What is drawn is a function of (seed, row, epoch)
alone. The laws follow `random_spans_noise_mask`, `iid_noise_mask` and `random_prefix_noise_mask` of the authors'
program, the writers `noise_span_to_unique_sentinel`, `drop_noise_tokens`, `noise_token_to_sentinel`,
`noise_token_to_random_token_or_sentinel` and `permute_noise_tokens`.

Shapes: B rows, R raw tokens a row, T encoder inputs, U decoder targets.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from model.data.dataset import text_lengths
from model.data.philox import philox_key
from model.data.rng import below, fill
from model.data.row_format import NO_LOSS, RowFormat
from model.data.span_lengths import Denoising, corrupted_lengths
from model.errors import InputError
from model.kernels import kernel


class Rows(NamedTuple):
    """Rows to corrupt, and where what becomes of them is written."""

    tokens: np.ndarray
    """i64[B, R]."""
    length: np.ndarray
    """Tokens of each text, i64[B]."""
    noise: np.ndarray
    """bool[B, R]."""
    count_of: np.ndarray
    """For each length, how many tokens are noise."""
    spans_of: np.ndarray
    """In how many spans."""
    inputs: np.ndarray
    """i64[B, T], without end-of-text tokens, as the targets i64[B, U]."""
    targets: np.ndarray
    ends: np.ndarray
    """Lengths of inputs and targets, i64[2, B]."""
    sentinels: np.ndarray
    ordinary: np.ndarray
    """Ids of text tokens."""
    key: np.ndarray
    row: np.ndarray
    epoch: np.ndarray
    """Of the random streams: laws draw from (key, row, epoch, 0), writers from (key, row, epoch, 1)."""


NoiseLaw = Callable[[Rows], None]
"""Marks noise, all being False before; of texts of fewer than two tokens none is marked."""

Writer = Callable[[Rows], None]
"""Writes inputs, targets and their ends."""

_RANDOM_ONE_IN = 10
"""`bert_style`: one noise token in ten becomes a random token, the others masks (section 3.2.4)."""


@dataclass(frozen=True)
class CorruptedRows:
    """Encoder inputs i64[B, T], padded after `input_lengths_B`, and targets i64[B, U], filled up with NO_LOSS.

    `decoder_inputs_BU` are the targets shifted right by one, with a padding token first (T5's start).
    """

    inputs_BT: np.ndarray
    input_lengths_B: np.ndarray
    decoder_inputs_BU: np.ndarray
    targets_BU: np.ndarray


class Denoiser:
    """Corrupts rows of up to `raw` tokens; a row with padding at its end gives shorter inputs and targets.

    Raises InputError where the vocabulary has fewer sentinels than a full row needs, or no text token to draw.
    """

    def __init__(self, rows: RowFormat, seed: int, raw: int) -> None:
        lengths_of = [
            corrupted_lengths(length, rows.noise_density, rows.mean_noise_span, rows.denoising)
            for length in range(raw + 1)
        ]
        self._noise = np.array([lengths.noise for lengths in lengths_of])
        self._spans = np.array([lengths.sentinels for lengths in lengths_of])
        self._longest_input = max(lengths.inputs for lengths in lengths_of)
        self._longest_target = max(lengths.targets for lengths in lengths_of)
        _check_sentinels(int(self._spans.max()), rows, raw)
        self._law, self._write = _OBJECTIVES[rows.denoising]
        self._key = philox_key(seed, _STREAM_NAMES.get(rows.denoising, rows.denoising))
        self._pad, self._eos = rows.pad, rows.eos
        self._sentinels = np.array(rows.sentinels, dtype=np.int64)
        self._ordinary = np.setdiff1d(np.arange(rows.vocab_size), rows.special)
        if self._write is mask_or_replace_noise and not len(self._ordinary):
            raise InputError(f"bert_style: all {rows.vocab_size} ids of the vocabulary are special; none is text")

    def __call__(self, tokens_BR: np.ndarray, row_B: np.ndarray, epoch_B: np.ndarray) -> CorruptedRows:
        """Corrupt rows i64[B, R]; `row_B` and `epoch_B` select each row's random numbers."""
        rows = np.arange(len(tokens_BR))
        inputs = np.full((len(rows), self._longest_input), self._pad, dtype=np.int64)
        targets = np.full((len(rows), self._longest_target), NO_LOSS, dtype=np.int64)
        ends = np.zeros((2, len(rows)), dtype=np.int64)
        corrupted = Rows(
            tokens=tokens_BR,
            length=text_lengths(tokens_BR, self._pad),
            noise=np.full(tokens_BR.shape, self._law is None),
            count_of=self._noise,
            spans_of=self._spans,
            inputs=inputs,
            targets=targets,
            ends=ends,
            sentinels=self._sentinels,
            ordinary=self._ordinary,
            key=self._key,
            row=row_B.astype(np.uint64),
            epoch=epoch_B.astype(np.uint64),
        )
        if self._law is not None:
            self._law(corrupted)
        self._write(corrupted)
        inputs[rows, ends[0]] = targets[rows, ends[1]] = self._eos
        decoder_inputs = np.full_like(targets, self._pad)
        decoder_inputs[:, 1:] = np.where(targets[:, :-1] == NO_LOSS, self._pad, targets[:, :-1])
        return CorruptedRows(inputs, ends[0] + 1, decoder_inputs, targets)


def _check_sentinels(needed: int, rows: RowFormat, raw: int) -> None:
    if needed <= len(rows.sentinels):
        return
    if needed == 1:
        raise InputError(
            f"span_corruption ({rows.denoising}) replaces corrupted tokens by the first sentinel, and the vocabulary"
            f" has none. Take a vocabulary with vocab.sentinels = 1 or more."
        )
    raise InputError(
        f"span_corruption ({rows.denoising}) removes {needed} spans from rows of {raw} tokens, and the vocabulary has"
        f" only {len(rows.sentinels)} sentinels. Shorten chunk's rows, or build the vocabulary with more sentinels."
    )


@kernel
def random_spans(rows: Rows) -> None:
    """Mark spans, the first after a kept token and the last at the end of the text.

    Noise and kept tokens are each split into as many non-empty parts, every split being equally likely.
    """
    length, noise, count_of, spans_of = rows.length, rows.noise, rows.count_of, rows.spans_of
    kept_begins = np.empty(noise.shape[1] + 1, dtype=np.bool_)
    noise_begins = np.empty(noise.shape[1] + 1, dtype=np.bool_)
    numbers = np.empty(2 * spans_of.max() + 2, dtype=np.uint64)
    for b in range(len(noise)):
        if length[b] < 2:
            continue
        count, spans = int(count_of[length[b]]), int(spans_of[length[b]])
        kept = int(length[b]) - count
        fill(numbers[: 2 * (spans - 1)], rows.key, rows.row[b], rows.epoch[b], 0)
        _subset(kept_begins, kept - 1, spans - 1, numbers)
        _subset(noise_begins, count - 1, spans - 1, numbers[spans - 1 :])
        at = kept_at = noise_at = 0
        for _ in range(spans):
            while True:
                at, kept_at = at + 1, kept_at + 1
                if kept_at >= kept or kept_begins[kept_at]:
                    break
            at, noise_at = _mark_span(noise[b], at, noise_begins, noise_at, count)


@kernel
def independent_spans(rows: Rows) -> None:
    """Mark independently drawn tokens, given their number and the number of runs that they form.

    Runs fall into the gaps before, between and after the kept tokens.
    """
    length, noise, count_of, spans_of = rows.length, rows.noise, rows.count_of, rows.spans_of
    has_run = np.empty(noise.shape[1] + 2, dtype=np.bool_)
    noise_begins = np.empty(noise.shape[1] + 1, dtype=np.bool_)
    numbers = np.empty(2 * spans_of.max() + 2, dtype=np.uint64)
    for b in range(len(noise)):
        if length[b] < 2:
            continue
        count, spans = int(count_of[length[b]]), int(spans_of[length[b]])
        kept = int(length[b]) - count
        fill(numbers[: 2 * spans - 1], rows.key, rows.row[b], rows.epoch[b], 0)
        _subset(has_run, kept + 1, spans, numbers)
        _subset(noise_begins, count - 1, spans - 1, numbers[spans:])
        at = noise_at = 0
        for gap in range(kept + 1):
            if has_run[gap + 1]:
                at, noise_at = _mark_span(noise[b], at, noise_begins, noise_at, count)
            at += 1


@kernel
def _mark_span(noise: np.ndarray, at: int, begins: np.ndarray, nth: int, count: int) -> tuple[int, int]:
    """Mark a span of noise tokens, which are numbered through all spans: from the `nth` of `count` to the next that
    begins a span. Return the place and the number after it."""
    while True:
        noise[at] = True
        at, nth = at + 1, nth + 1
        if nth >= count or begins[nth]:
            return at, nth


@kernel
def independent_tokens(rows: Rows) -> None:
    """Mark independently drawn tokens, given their number."""
    length, noise, count_of = rows.length, rows.noise, rows.count_of
    marks = np.empty(noise.shape[1] + 1, dtype=np.bool_)
    numbers = np.empty(count_of.max(), dtype=np.uint64)
    for b in range(len(noise)):
        count = int(count_of[length[b]])
        fill(numbers[:count], rows.key, rows.row[b], rows.epoch[b], 0)
        _subset(marks, length[b], count, numbers)
        noise[b, : length[b]] = marks[1 : length[b] + 1]


@kernel
def noise_after_prefix(rows: Rows) -> None:
    """Mark all tokens after a prefix of one token to all but one, each length being equally likely."""
    length, noise = rows.length, rows.noise
    prefix = prefix_lengths(rows.length, rows.key, rows.row, rows.epoch)
    for b in range(len(noise)):
        noise[b, prefix[b] : length[b]] = True


@kernel
def prefix_lengths(length: np.ndarray, key: np.ndarray, row: np.ndarray, epoch: np.ndarray) -> np.ndarray:
    """Return the length of a random prefix of each text, i64[B]: 1 to all but one; the whole of a text of fewer than
    two."""
    prefix = length.copy()
    numbers = np.empty(1, dtype=np.uint64)
    for b in range(len(length)):
        if length[b] > 1:
            fill(numbers, key, row[b], epoch[b], 0)
            prefix[b] = 1 + below(numbers[0], length[b] - 1)
    return prefix


@kernel
def _subset(marks: np.ndarray, places: int, count: int, numbers: np.ndarray) -> None:
    """Mark `count` of the places 1 .. `places` in bool[places + 1], every subset being equally likely (Floyd's
    algorithm).

    Uses `count` random numbers; place 0 stays as it is.
    """
    marks[1 : places + 1] = False
    for nth in range(count):
        last = places - count + 1 + nth
        place = 1 + below(numbers[nth], last)
        marks[last if marks[place] else place] = True


@kernel
def replace_spans_with_sentinels(rows: Rows) -> None:
    """Replace each noise span by a sentinel in the input; in the target the span follows its sentinel."""
    tokens, length, noise, inputs = rows.tokens, rows.length, rows.noise, rows.inputs
    targets, ends, sentinels = rows.targets, rows.ends, rows.sentinels
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


@kernel
def drop_noise(rows: Rows) -> None:
    """Write kept tokens as input and noise as target, without a mark of where it was."""
    tokens, length, noise = rows.tokens, rows.length, rows.noise
    inputs, targets, ends = rows.inputs, rows.targets, rows.ends
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


@kernel
def mask_noise(rows: Rows) -> None:
    """Replace each noise token by the first sentinel; the target is the whole text (Song et al. 2019, MASS)."""
    tokens, length, noise, inputs = rows.tokens, rows.length, rows.noise, rows.inputs
    targets, ends, sentinels = rows.targets, rows.ends, rows.sentinels
    for b in range(len(tokens)):
        for at in range(length[b]):
            targets[b, at] = tokens[b, at]
            inputs[b, at] = sentinels[0] if noise[b, at] else tokens[b, at]
        ends[0, b] = ends[1, b] = length[b]


@kernel
def mask_or_replace_noise(rows: Rows) -> None:
    """Do as `mask_noise`, but replace one noise token in ten by a random text token."""
    tokens, length, noise, inputs = rows.tokens, rows.length, rows.noise, rows.inputs
    targets, ends, sentinels, ordinary = rows.targets, rows.ends, rows.sentinels, rows.ordinary
    numbers = np.empty(2 * tokens.shape[1], dtype=np.uint64)
    for b in range(len(tokens)):
        fill(numbers[: 2 * noise[b].sum()], rows.key, rows.row[b], rows.epoch[b], 1)
        nth = 0
        for at in range(length[b]):
            targets[b, at] = inputs[b, at] = tokens[b, at]
            if noise[b, at]:
                random = below(numbers[2 * nth], _RANDOM_ONE_IN) == 0
                other = ordinary[below(numbers[2 * nth + 1], len(ordinary))]
                inputs[b, at] = other if random else sentinels[0]
                nth += 1
        ends[0, b] = ends[1, b] = length[b]


@kernel
def shuffle_tokens(rows: Rows) -> None:
    """Shuffle all tokens, every order being equally likely (Fisher and Yates); the target is the text."""
    tokens, length, inputs, targets, ends = rows.tokens, rows.length, rows.inputs, rows.targets, rows.ends
    numbers = np.empty(tokens.shape[1], dtype=np.uint64)
    for b in range(len(tokens)):
        fill(numbers[: length[b]], rows.key, rows.row[b], rows.epoch[b], 1)
        for at in range(length[b]):
            targets[b, at] = inputs[b, at] = tokens[b, at]
        for at in range(length[b] - 1):
            other = at + below(numbers[at], length[b] - at)
            inputs[b, at], inputs[b, other] = inputs[b, other], inputs[b, at]
        ends[0, b] = ends[1, b] = length[b]


_OBJECTIVES: dict[Denoising, tuple[NoiseLaw | None, Writer]] = {
    "random_spans": (random_spans, replace_spans_with_sentinels),
    "iid_spans": (independent_spans, replace_spans_with_sentinels),
    "iid_drop": (independent_tokens, drop_noise),
    "bert_style": (independent_tokens, mask_or_replace_noise),
    "mass_style": (independent_tokens, mask_noise),
    "deshuffling": (None, shuffle_tokens),
    "prefix_lm": (noise_after_prefix, drop_noise),
    "language_model": (None, drop_noise),
}
"""Noise law, all tokens being noise without one, and writer of each objective."""

_STREAM_NAMES: dict[Denoising, str] = {"random_spans": "span corruption"}
"""Names of random streams that are not the objective's own name."""
