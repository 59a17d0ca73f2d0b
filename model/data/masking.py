"""Masking for BERT's objective: some tokens are hidden, and the model predicts them.

Devlin et al. 2019, section 3.1 and appendix A.1: of the chosen tokens 80% become [MASK], 10% another token, 10% stay.
The choice differs between epochs (dynamic masking, Liu et al. 2019) and is a function of (seed, row, epoch) alone. Two
things differ from the authors' program: special tokens are neither chosen nor drawn as another token (it may draw
them), and the 15% are of the tokens that may be chosen ([CLS] and [SEP] do not count).

Where the row format has word borders, whole words are masked (BERT's whole-word models of 2019): words are taken in
random order, and one that is longer than what is still to be masked is skipped. Each token of a word is replaced
independently.

Shapes: B rows, T tokens a row, M masked tokens a row at most.
"""

from dataclasses import dataclass

import numpy as np

from model.data.philox import philox_key
from model.data.rng import below, fill
from model.data.row_format import NO_LOSS, RowFormat, WordBorders
from model.errors import InputError
from model.kernels import kernel

_TENTHS_MASK, _TENTHS_KEEP = 8, 1


@dataclass(frozen=True)
class MaskedRows:
    """Rows with masked tokens, their positions in ascending order, then 0, and their targets, then NO_LOSS."""

    inputs_BT: np.ndarray
    positions_BM: np.ndarray
    targets_BM: np.ndarray


class Masking:
    """Masks `share` of a row's tokens, at least one and at most `max_predictions` (BERT: 20 of 128, 77 of 512).

    With whole words they may be fewer: none where every word of a row is longer than the share. Raises InputError where
    the vocabulary has no [MASK], or only special tokens.
    """

    def __init__(self, rows: RowFormat, seed: int, max_predictions: int, share: float = 0.15) -> None:
        if rows.mask < 0:
            raise InputError(
                "the vocabulary of these sequences has no mask token, which masked_lm needs. Build vocabulary and"
                " sequences for this objective, from vocab on."
            )
        self._key = philox_key(seed, "masking")
        self._share = share
        self._max_predictions = max_predictions
        self._mask = rows.mask
        self._words = WordBorders.unpacked(rows.word_borders, rows.vocab_size) if rows.word_borders else None
        self._is_special = np.zeros(rows.vocab_size, dtype=np.bool_)
        self._is_special[list(rows.special)] = True
        self._ordinary = np.flatnonzero(~self._is_special)
        if not len(self._ordinary):
            raise InputError(f"masked_lm: all {rows.vocab_size} ids of the vocabulary are special; none is text")

    def __call__(self, tokens_BT: np.ndarray, row_B: np.ndarray, epoch_B: np.ndarray) -> MaskedRows:
        """Mask tokens of a copy of rows i64[B, T]; `row_B` and `epoch_B` select each row's random numbers."""
        inputs = tokens_BT.copy()
        positions = np.zeros((len(inputs), self._max_predictions), dtype=np.int64)
        targets = np.full_like(positions, NO_LOSS)
        row, epoch = row_B.astype(np.uint64), epoch_B.astype(np.uint64)
        hidden = (inputs, positions, targets, row, epoch, self._key, self._is_special, self._ordinary, self._mask)
        if self._words is None:
            _mask_rows(*hidden, self._share)
        else:
            _mask_words(*hidden, self._share, self._words.continues_word_V, self._words.leaves_word_open_V)
        return MaskedRows(inputs, positions, targets)


@kernel
def _mask_rows(
    inputs: np.ndarray,
    positions: np.ndarray,
    targets: np.ndarray,
    row: np.ndarray,
    epoch: np.ndarray,
    key: np.ndarray,
    is_special: np.ndarray,
    ordinary: np.ndarray,
    mask: int,
    share: float,
) -> None:
    length, most = inputs.shape[1], positions.shape[1]
    candidates = np.empty(length, dtype=np.int64)
    chosen = np.empty(length, dtype=np.bool_)
    numbers = np.empty(3 * most, dtype=np.uint64)
    for b in range(len(inputs)):
        count = 0
        for t in range(length):
            chosen[t] = False
            if not is_special[inputs[b, t]]:
                candidates[count] = t
                count += 1
        masked = min(count, most, max(1, int(np.rint(share * count))))
        fill(numbers[: 3 * masked], key, row[b], epoch[b], 0)
        for m in range(masked):
            # Only the first places of a Fisher-Yates shuffle are needed.
            other = m + below(numbers[m], count - m)
            candidates[m], candidates[other] = candidates[other], candidates[m]
            chosen[candidates[m]] = True
        _hide(inputs[b], positions[b], targets[b], chosen, numbers[masked:], ordinary, mask)


@kernel
def _mask_words(
    inputs: np.ndarray,
    positions: np.ndarray,
    targets: np.ndarray,
    row: np.ndarray,
    epoch: np.ndarray,
    key: np.ndarray,
    is_special: np.ndarray,
    ordinary: np.ndarray,
    mask: int,
    share: float,
    continues_word: np.ndarray,
    word_open: np.ndarray,
) -> None:
    length, most = inputs.shape[1], positions.shape[1]
    words = np.empty((length, 2), dtype=np.int64)
    chosen = np.empty(length, dtype=np.bool_)
    order = np.empty(length, dtype=np.uint64)
    numbers = np.empty(2 * most, dtype=np.uint64)
    for b in range(len(inputs)):
        count = candidates = 0
        for t in range(length):
            chosen[t] = False
            token = inputs[b, t]
            if is_special[token]:
                continue
            candidates += 1
            # After a special token a new word begins.
            if t and continues_word[token] and word_open[inputs[b, t - 1]]:
                words[count - 1, 1] = t + 1
            else:
                words[count] = t, t + 1
                count += 1
        left = min(candidates, most, max(1, int(np.rint(share * candidates))))
        fill(order[:count], key, row[b], epoch[b], 0)
        fill(numbers[: 2 * left], key, row[b], epoch[b], 1)
        for nth in range(count):
            if left == 0:
                break
            other = nth + below(order[nth], count - nth)
            begin, end = words[other]
            words[other] = words[nth]
            if end - begin <= left:
                chosen[begin:end] = True
                left -= end - begin
        _hide(inputs[b], positions[b], targets[b], chosen, numbers, ordinary, mask)


@kernel
def _hide(
    inputs: np.ndarray,
    positions: np.ndarray,
    targets: np.ndarray,
    chosen: np.ndarray,
    numbers: np.ndarray,
    ordinary: np.ndarray,
    mask: int,
) -> None:
    """Mask the chosen tokens of one row and write positions and targets; uses two random numbers for each."""
    masked = 0
    for t in range(len(inputs)):
        masked += chosen[t]
    m = 0
    for t in range(len(inputs)):
        if not chosen[t]:
            continue
        positions[m] = t
        targets[m] = inputs[t]
        tenth = below(numbers[m], 10)
        if tenth < _TENTHS_MASK:
            inputs[t] = mask
        elif tenth >= _TENTHS_MASK + _TENTHS_KEEP:
            inputs[t] = ordinary[below(numbers[masked + m], len(ordinary))]
        m += 1
