"""BERT's objective: some tokens are hidden, and the model says what they were.

Devlin et al. 2019, section 3.1 and appendix A.1: of the chosen tokens 80% become [MASK], 10% another token, 10% stay as
they are. The choice is drawn anew in each epoch (dynamic masking, Liu et al. 2019) and is a function of (seed, row,
epoch) alone. Two things differ from BERT's own program: special tokens are neither chosen nor drawn as another token
(it may draw them), and 15% are of the tokens that may be chosen ([CLS] and [SEP] don't count).

Shapes: B rows, T tokens a row, M masked tokens a row at most.
"""

from dataclasses import dataclass

import numba
import numpy as np

from model.errors import InputError
from model.philox import below, fill, philox_key
from model.row_format import RowFormat
from model.targets import NO_LOSS

_TENTHS_MASK, _TENTHS_KEEP = 8, 1


@dataclass(frozen=True)
class MaskedRows:
    """Rows with hidden tokens, and what was hidden: positions in ascending order, then 0 and NO_LOSS."""

    inputs_BT: np.ndarray
    positions_BM: np.ndarray
    targets_BM: np.ndarray


class Masking:
    """Hides `share` of a row's tokens, at least one and at most `max_predictions` (BERT: 20 of 128, 77 of 512).

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
        _mask_rows(
            inputs,
            positions,
            targets,
            row_B.astype(np.uint64),
            epoch_B.astype(np.uint64),
            self._key,
            self._is_special,
            self._ordinary,
            self._mask,
            self._share,
        )
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
        m = 0
        for t in range(length):
            if not chosen[t]:
                continue
            positions[b, m] = t
            targets[b, m] = inputs[b, t]
            tenth = below(numbers[masked + m], 10)
            if tenth < _TENTHS_MASK:
                inputs[b, t] = mask
            elif tenth >= _TENTHS_MASK + _TENTHS_KEEP:
                inputs[b, t] = ordinary[below(numbers[2 * masked + m], len(ordinary))]
            m += 1
