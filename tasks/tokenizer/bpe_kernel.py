"""BPE merges with SentencePiece's order (`bpe_model.cc`), as compiled kernels on numbers.

A symbol is a piece, or a character that is not a piece but may be merged into one. Of all neighbours whose joined text
is a piece, the pair whose piece has the best score is merged first, of equal scores the leftmost, until none is left. A
remaining character that is not a piece is encoded as bytes.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from model.kernels import kernel
from tasks.common.utf8 import decode
from tasks.tokenizer.pieces import CODE_POINTS, Pieces, spell

I32 = npt.NDArray[np.int32]
U64 = npt.NDArray[np.uint64]

SHORT = 48
"""Bytes of a span up to which the best pair is found by scanning all pairs; longer spans use a heap."""

_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_SYMBOL_BITS = np.uint64(21)
_SYMBOL = np.uint64((1 << 21) - 1)
_TWO = np.uint64(42)
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(22)
_NEVER = np.int32(0x7FFFFFFF)


class Merges(NamedTuple):
    """A BPE vocabulary as arrays."""

    symbols: I32
    """Code point -> symbol, -1 if no piece contains the character; int32 [0x110000]."""
    ranks: I32
    """Symbol -> rank of its score, 0 for the best; equal scores have equal ranks."""
    pairs: U64
    """Hash table with open addressing: left symbol << 42 | right symbol << 21 | merged symbol."""
    byte_ids: I32
    vocab_size: np.int64
    """Symbols from here on are characters that are not pieces."""


def build_merges(pieces: Pieces) -> Merges:
    """Return the arrays of a BPE vocabulary."""
    vocab_size = len(pieces.scores)
    numbers = dict(pieces.ids)
    for piece in pieces.ids:
        for letter in piece:
            numbers.setdefault(letter, vocab_size + len(numbers) - len(pieces.ids))
    symbols = np.full(CODE_POINTS, -1, np.int32)
    for text, number in numbers.items():
        if len(text) == 1:
            symbols[ord(text)] = number
    triples: list[tuple[int, int, int]] = []
    for piece, number in pieces.ids.items():
        for cut in range(1, len(piece)):
            left, right = numbers.get(piece[:cut]), numbers.get(piece[cut:])
            if left is not None and right is not None:
                triples.append((left, right, number))
    table = np.full(1 << max(4, (4 * len(triples) - 1).bit_length()), _EMPTY, np.uint64)
    left, right, joined = np.array(triples, np.uint64).reshape(-1, 3).T.copy()
    _fill(table, left, right, joined)
    return Merges(symbols, score_ranks(pieces.scores), table, pieces.byte_ids, np.int64(vocab_size))


def score_ranks(scores: npt.NDArray[np.float32]) -> I32:
    """Return the rank of each score among the distinct ones, best first, int32 [scores].

    SentencePiece compares the bits of the scores, so that -0 is below 0.
    """
    bits = scores.view(np.int32).astype(np.int64)
    ordered = np.where(bits < 0, -(bits & 0x7FFFFFFF) - 1, bits)
    _, ranks = np.unique(-ordered, return_inverse=True)
    return ranks.astype(np.int32)


@kernel
def _home(left, right, last_place):
    mixed = ((left << _SYMBOL_BITS) | right) * _PRIME
    return np.int64(mixed >> _SHIFT) & last_place


@kernel
def _fill(pairs, left, right, joined):
    for index in range(left.size):
        place = _home(left[index], right[index], pairs.size - 1)
        while pairs[place] != _EMPTY:
            place = (place + 1) & (pairs.size - 1)
        pairs[place] = (left[index] << _TWO) | (right[index] << _SYMBOL_BITS) | joined[index]


@kernel
def join(merges, left, right):
    """Return the symbol that two symbols merge into; -1 if they do not."""
    if left < 0 or right < 0:
        return np.int32(-1)
    first, second = np.uint64(left), np.uint64(right)
    wanted = (first << _SYMBOL_BITS) | second
    place = _home(first, second, merges.pairs.size - 1)
    while True:
        entry = merges.pairs[place]
        if entry >> _SYMBOL_BITS == wanted:
            return np.int32(entry & _SYMBOL)
        if entry == _EMPTY:
            return np.int32(-1)
        place = (place + 1) & (merges.pairs.size - 1)


@kernel
def merge_short(merges, data, start, end, scratch, target, filled):
    """Write the ids of a span of at most `SHORT` bytes into target[filled:]; return how far it is filled then.

    `scratch` is int32 [4, SHORT], so that nothing is allocated per span. `join` is inlined in the loop over new pairs,
    for the same reason as in `cut`.
    """
    symbols, joined, ranks, places = scratch[0], scratch[1], scratch[2], scratch[3]
    symbol_of, rank_of, pairs = merges.symbols, merges.ranks, merges.pairs
    last_place = pairs.size - 1
    count = 0
    position = start
    while position < end:
        code_point, following = decode(data, position)
        symbols[count] = symbol_of[code_point]
        places[count] = position
        position = following
        count += 1
    first, last = 0, count - 1
    while True:
        for index in range(first, last):
            ranks[index] = _NEVER
            if symbols[index] < 0 or symbols[index + 1] < 0:
                continue
            left, right = np.uint64(symbols[index]), np.uint64(symbols[index + 1])
            wanted = (left << _SYMBOL_BITS) | right
            place = _home(left, right, last_place)
            entry = pairs[place]
            while entry >> _SYMBOL_BITS != wanted and entry != _EMPTY:
                place = (place + 1) & last_place
                entry = pairs[place]
            if entry != _EMPTY:
                joined[index] = np.int32(entry & _SYMBOL)
                ranks[index] = rank_of[joined[index]]
        best, at = _NEVER, 0
        for index in range(count - 1):
            if ranks[index] < best:
                best, at = ranks[index], index
        if best == _NEVER:
            break
        symbols[at] = joined[at]
        count -= 1
        for index in range(at + 1, count):
            symbols[index] = symbols[index + 1]
            places[index] = places[index + 1]
            joined[index - 1] = joined[index]
            ranks[index - 1] = ranks[index]
        first, last = max(at - 1, 0), min(at + 1, count - 1)
    for index in range(count):
        if 0 <= symbols[index] < merges.vocab_size:
            target[filled] = symbols[index]
            filled += 1
        else:
            filled = spell(merges, data, places[index], target, filled)
    return filled


@kernel
def _push(heap, size, key):
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if heap[above] <= key:
            break
        heap[place] = heap[above]
        place = above
    heap[place] = key
    return size + 1


@kernel
def _pop(heap, size):
    """Remove the smallest key, heap[0]; return the new size."""
    size -= 1
    key = heap[size]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and heap[below + 1] < heap[below]:
            below += 1
        if key <= heap[below]:
            break
        heap[place] = heap[below]
        place = below
    heap[place] = key
    return size


@kernel
def merge_long(merges, data, start, end, target, filled):
    """Write the ids of a span of any length, as `merge_short`, in O(n log n): pairs are in a heap, by rank, then from
    the left.

    A pair from the heap is valid only if the symbol at its place still has a right neighbour of that rank: two pairs of
    equal place and rank are taken in the same order whichever of them was meant.
    """
    characters = 0
    for position in range(start, end):
        characters += data[position] & 0xC0 != 0x80
    symbols = np.empty(characters, np.int32)
    joined = np.empty(characters, np.int32)
    ranks = np.empty(characters, np.int32)
    places = np.empty(characters, np.int64)
    before = np.empty(characters, np.int32)
    after = np.empty(characters, np.int32)
    heap = np.empty(3 * characters, np.int64)
    position = start
    for index in range(characters):
        code_point, following = decode(data, position)
        symbols[index] = merges.symbols[code_point]
        places[index] = position
        before[index], after[index] = index - 1, index + 1
        position = following
    after[characters - 1] = -1
    waiting = 0
    for index in range(characters):
        ranks[index] = _NEVER
        if index + 1 < characters:
            joined[index] = join(merges, symbols[index], symbols[index + 1])
            if joined[index] >= 0:
                ranks[index] = merges.ranks[joined[index]]
                waiting = _push(heap, waiting, (np.int64(ranks[index]) << 32) | index)
    while waiting > 0:
        key = heap[0]
        waiting = _pop(heap, waiting)
        at = key & 0xFFFFFFFF
        if ranks[at] != key >> 32:
            continue
        merged = after[at]
        symbols[at] = joined[at]
        after[at] = after[merged]
        if after[merged] >= 0:
            before[after[merged]] = at
        ranks[merged] = _NEVER
        for left in (np.int64(before[at]), at):
            if left < 0:
                continue
            ranks[left] = _NEVER
            if after[left] >= 0:
                joined[left] = join(merges, symbols[left], symbols[after[left]])
                if joined[left] >= 0:
                    ranks[left] = merges.ranks[joined[left]]
                    waiting = _push(heap, waiting, (np.int64(ranks[left]) << 32) | left)
    at = np.int64(0)
    while at >= 0:
        if 0 <= symbols[at] < merges.vocab_size:
            target[filled] = symbols[at]
            filled += 1
        else:
            filled = spell(merges, data, places[at], target, filled)
        at = np.int64(after[at])
    return filled
