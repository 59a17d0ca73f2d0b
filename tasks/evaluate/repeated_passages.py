"""Held-out text that training read too, apart from text that is new.

Near-duplicates are gone, and still a held-out document repeats passages of others: the terms of a licence, a table of
names, a quotation. To predict them shows memory, not knowledge of the language, and a 5-gram remembers best. Bits per
byte are therefore given for both parts of the text: `new_` and `repeated_`.

A token is repeated where it belongs to a passage of PASSAGE_TOKENS tokens that a row which training read holds too; of
more than `ngram_tokens` tokens only the rows that are read first are searched, on which the 5-gram is counted.
Passages are compared by 64-bit hashes: of a million held-out and a billion read ones, about 5e-5 agree by chance.

Shapes: D tokens of a document, R rows, L tokens a row.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from tasks.common.groups import find_sorted
from tasks.common.utf8 import GOLDEN
from tasks.evaluate.scores import HeldoutRows

PASSAGE_TOKENS = 16
"""About eight words, the passage by which PaLM was searched for benchmark text (Chowdhery et al. 2022, section 8)."""

NEW, REPEATED = "new_bits_per_byte", "repeated_bits_per_byte"


def repeated_tokens(documents: Sequence[np.ndarray], rows: Iterable[np.ndarray]) -> list[np.ndarray]:
    """Return for each document, ids [D], which of its tokens belong to a passage that some row holds, bool[D].

    `rows` are arrays of ids [R, L]; a passage ends with its row.
    """
    hashes = [passage_hashes(ids) for ids in documents]
    held = np.unique(np.concatenate([np.zeros(0, dtype=np.uint64), *hashes]))
    is_read = np.zeros(len(held), dtype=np.bool_)
    for tokens in rows:
        places, is_held = find_sorted(held, passage_hashes(tokens).reshape(-1))
        is_read[places[is_held]] = True
    return [
        _covered(is_read[np.searchsorted(held, mine)], len(ids)) for ids, mine in zip(documents, hashes, strict=True)
    ]


def passage_hashes(tokens: np.ndarray) -> np.ndarray:
    """Return a hash of each PASSAGE_TOKENS tokens in a row along the last axis, u64[..., L - PASSAGE_TOKENS + 1]."""
    passages = max(0, tokens.shape[-1] - PASSAGE_TOKENS + 1)
    mixed = (tokens.astype(np.uint64) + np.uint64(1)) * GOLDEN
    mixed ^= mixed >> np.uint64(29)
    hashes = np.zeros((*tokens.shape[:-1], passages), dtype=np.uint64)
    for offset in range(PASSAGE_TOKENS):
        hashes *= GOLDEN
        hashes += mixed[..., offset : offset + passages]
    return hashes


def _covered(begins: np.ndarray, length: int) -> np.ndarray:
    """Return which of `length` tokens lie in one of the passages that begin where `begins` is true, bool[length]."""
    change = np.zeros(length + 1, dtype=np.int64)
    change[np.flatnonzero(begins)] += 1
    change[np.flatnonzero(begins) + PASSAGE_TOKENS] -= 1
    return np.cumsum(change[:-1]) > 0


def add_parts(
    scores: HeldoutRows,
    source: str,
    prefix: str,
    bits: Sequence[np.ndarray],
    lengths: Sequence[np.ndarray],
    repeated: Sequence[np.ndarray],
) -> None:
    """Add bits per byte of the new and of the repeated text of a source; a part without text has no row.

    `bits`, `lengths` (bytes) and `repeated` are those of each document's tokens.
    """
    every = sum(int(mine.sum()) for mine in lengths)
    for metric, wanted in ((NEW, False), (REPEATED, True)):
        above = np.array([mine[part == wanted].sum() for mine, part in zip(bits, repeated, strict=True)])
        below = np.array([mine[part == wanted].sum() for mine, part in zip(lengths, repeated, strict=True)])
        if total := int(below.sum()):
            passages = f"passages of {PASSAGE_TOKENS} tokens or more that training read"
            note = f"{total} of {every} bytes, {'within' if wanted else 'outside of'} {passages}"
            measured = scores.ratio(source, above, below)
            scores.add(source, f"{prefix}{metric}", measured, int((below > 0).sum()), note)
