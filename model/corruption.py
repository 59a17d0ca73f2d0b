"""What becomes of noise tokens: the encoder's input and the decoder's target, without the token that closes both.

Raffel et al. 2020, sections 3.2.4 and 3.3.2, and the functions `noise_span_to_unique_sentinel`, `drop_noise_tokens`,
`noise_token_to_sentinel`, `noise_token_to_random_token_or_sentinel` and `permute_noise_tokens` of their program.

Every writer reads texts of `length_B` tokens out of i64[B, R] and bool[B, R], and writes i64[B, T], i64[B, U] and in
i64[2, B] how many tokens of each are written. What is drawn comes from the stream (key, row, epoch, 1).
"""

from collections.abc import Callable

import numba
import numpy as np

from model.philox import below, fill

Writer = Callable[..., None]
"""tokens_BR, length_B, noise_BR, inputs_BT, targets_BU, ends, sentinels, ordinary ids, key, row_B, epoch_B."""
_RANDOM_ONE_IN = 10
"""Of the noise tokens of `bert_style`, one in ten becomes another token, the others masks (section 3.2.4)."""


@numba.njit(nogil=True)
def put_sentinels(
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
def leave_out(
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
def mask(
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
def mask_or_replace(
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
    """As `mask`, but for one noise token in ten, which becomes a random one that stands for text."""
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
def shuffle(
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
