"""Which tokens of a text are noise: the laws of T5's comparison, each a mark for every token.

Raffel et al. 2020, sections 3.1.4 and 3.3, and the functions `random_spans_noise_mask`, `iid_noise_mask` and
`random_prefix_noise_mask` of their program. How many tokens are noise, and in how many spans, follows from the length,
so that rows become inputs and targets of known length; given these, every outcome is as likely as any other.

Every law marks bool[B, R], all False before, for texts of `length_B` tokens, from the stream (key, row, epoch, 0);
`count_of` and `spans_of` say of each length how many tokens are noise, in how many spans. Of a text of fewer than two
tokens nothing is marked.
"""

from collections.abc import Callable

import numba
import numpy as np

from model.philox import below, fill

Law = Callable[..., None]
"""noise_BR, length_B, count_of, spans_of, key, row_B, epoch_B."""


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


@numba.njit(nogil=True)
def behind_a_prefix(
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
def prefix_lengths(length: np.ndarray, key: np.ndarray, row: np.ndarray, epoch: np.ndarray) -> np.ndarray:
    """Tokens of a random prefix of each text, i64[B]: 1 to all but one; all of a text of fewer than two."""
    prefix = length.copy()
    numbers = np.empty(1, dtype=np.uint64)
    for b in range(len(length)):
        if length[b] > 1:
            fill(numbers, key, row[b], epoch[b], 0)
            prefix[b] = 1 + below(numbers[0], length[b] - 1)
    return prefix
