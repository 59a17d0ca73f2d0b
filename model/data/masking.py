"""BERT's objective: some tokens are hidden, and the model says what they were.

Devlin et al. 2019, section 3.1 and appendix A.1: of the chosen tokens 80% become [MASK], 10% another token, 10% stay as
they are. The choice is drawn anew in each epoch (dynamic masking, Liu et al. 2019) and is a function of (seed, row,
epoch) alone. Two things differ from BERT's own program: special tokens are neither chosen nor drawn as another token
(it may draw them), and 15% are of the tokens that may be chosen ([CLS] and [SEP] don't count).

Where the rows' format tells words apart, they are hidden as a whole (BERT's whole-word models of 2019): words come in
random order, and one that is longer than what is still to be hidden is passed over. What becomes of each of its tokens
is drawn for each.

Shapes: B rows, T tokens a row, M masked tokens a row at most.
"""

from dataclasses import dataclass

import numba
import numpy as np

from model.data.rng import below, fill, philox_key
from model.data.row_format import NO_LOSS, RowFormat, WordBorders
from model.errors import InputError

_TENTHS_MASK, _TENTHS_KEEP = 8, 1


@dataclass(frozen=True)
class MaskedRows:
    """Rows with hidden tokens, and what was hidden: positions in ascending order, then 0 and NO_LOSS."""

    inputs_BT: np.ndarray
    positions_BM: np.ndarray
    targets_BM: np.ndarray


class Masking:
    """Hides `share` of a row's tokens, at least one and at most `max_predictions` (BERT: 20 of 128, 77 of 512).

    As whole words they may be fewer: none where every word of a row is longer than the share.

    Raises InputError where the vocabulary has no [MASK] or nothing but special tokens.
    """

    def __init__(self, rows: RowFormat, seed: int, max_predictions: int, share: float = 0.15) -> None:
        if rows.mask < 0:
            raise InputError(
                "masked_lm: the vocabulary of these sequences has no mask token, so nothing can be hidden. Build it"
                " and the sequences for this objective, from vocab on."
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
            raise InputError(f"masked_lm: all {rows.vocab_size} ids of the vocabulary are special; nothing is text")

    def __call__(self, tokens_BT: np.ndarray, row_B: np.ndarray, epoch_B: np.ndarray) -> MaskedRows:
        """Hide tokens of rows i64[B, T], which are left as they are; `row_B` and `epoch_B` name each row's draw."""
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


@numba.njit(nogil=True)
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
            # The first places of a shuffle (Fisher and Yates), of which no more are needed.
            other = m + below(numbers[m], count - m)
            candidates[m], candidates[other] = candidates[other], candidates[m]
            chosen[candidates[m]] = True
        _hide(inputs[b], positions[b], targets[b], chosen, numbers[masked:], ordinary, mask)


@numba.njit(nogil=True)
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
    goes_on: np.ndarray,
    leaves_open: np.ndarray,
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
            # A special token leaves no word open.
            if t and goes_on[token] and leaves_open[inputs[b, t - 1]]:
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


@numba.njit(nogil=True)
def _hide(
    inputs: np.ndarray,
    positions: np.ndarray,
    targets: np.ndarray,
    chosen: np.ndarray,
    numbers: np.ndarray,
    ordinary: np.ndarray,
    mask: int,
) -> None:
    """Hide the chosen tokens of one row and write down what they were; takes two numbers for each."""
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
