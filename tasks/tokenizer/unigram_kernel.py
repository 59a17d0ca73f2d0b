"""The best segmentation under a Unigram model, with SentencePiece's rounding (`unigram_model.cc`, `EncodeOptimized`).

SentencePiece sums scores in single precision from the beginning of a text, so that near-ties are decided differently a
million characters later: 2^16 has a spacing of 1/128. Every path passes the borders of spans, so a span only depends on
the sum at its beginning, and the same algorithm, run on the span from that sum, makes the same choices.

A cached segmentation can replace the algorithm where rounding cannot change its choice. The sum of a path of k tokens
whose partial sums stay below 2^e has an error of at most k 2^(e-25), so the best path, m ahead of the second in exact
arithmetic, is chosen if m > 2 k 2^(e-25); k is at most the number of bytes of the span. The check adds a factor of two.

The pieces form a trie over characters, in a double array (Aoe, 1989). Characters are numbered from 1, the most frequent
in the pieces first. From node n, character c leads to unit base[n] + c if that unit's parent is n. A unit is four
adjacent numbers: base, parent, the id of the piece that ends there (-1: none), and padding, so that a step touches one
cache line. In Cyrillic, steps by characters are half as many as by bytes.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from model.kernels import kernel
from tasks.common.utf8 import decode
from tasks.tokenizer.pieces import CODE_POINTS, Pieces, spell

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]

UNIT = 4
"""Numbers in a unit of the trie."""

_BASE, _PARENT, _ID = 0, 1, 2

RESET = np.float32(100_000.0)
"""A sum beyond this is reset to 0 (`kScoreResetThreshold`)."""

_LARGEST_EXPONENT = 17
"""2^17 is above RESET, so no larger sum occurs."""

_FAR = -1e300
_NO_PATH = np.float32(-np.inf)


class Lattice(NamedTuple):
    """A Unigram vocabulary as arrays."""

    units: I32
    """The trie, as made by `build_trie`."""
    numbers: I32
    """Code point -> number of the character in the trie."""
    singles: I32
    """Code point -> id of the piece of this single character, -1 if there is none; int32 [0x110000]."""
    scores: F32
    """By id; NaN for byte pieces, which encode characters that have the unknown score."""
    unknown_score: np.float32
    largest: np.float64
    """The largest absolute score of one token."""
    byte_ids: I32


def build_lattice(pieces: Pieces) -> Lattice:
    """Return the arrays of a Unigram vocabulary."""
    singles = np.full(CODE_POINTS, -1, np.int32)
    for piece, number in pieces.ids.items():
        if len(piece) == 1:
            singles[ord(piece)] = number
    largest = max(abs(float(pieces.unknown_score)), float(np.abs(pieces.scores[list(pieces.ids.values())]).max()))
    scores = pieces.scores.copy()
    scores[pieces.byte_ids] = np.nan
    return Lattice(*build_trie(pieces.ids), singles, scores, pieces.unknown_score, np.float64(largest), pieces.byte_ids)


@kernel
def safe_exponent(margin, size):
    """Return the largest e, at most 17, for which a margin excludes another choice below 2^e; 0 if there is none."""
    power = 2.0**_LARGEST_EXPONENT
    exponent = _LARGEST_EXPONENT
    while exponent > 0 and margin <= 4.0 * size * power / 33554432.0:
        power *= 0.5
        exponent -= 1
    return exponent


@kernel
def is_safe(largest, exponent, total, size):
    """Return whether the sums of a span of `size` bytes from `total` stay below 2^exponent and are not reset in it."""
    reach = abs(np.float64(total)) + size * largest
    return reach < np.float64(np.int64(1) << exponent) and reach < 100_000.0 and exponent > 0


class Paths(NamedTuple):
    """The best path to each border between characters of a span; arrays of length characters + 1."""

    sums: F32
    """Sum of the path, with SentencePiece's rounding."""
    starts: I32
    """Where the last token begins, -1 if there is no path."""
    ids: I32
    """Id of the last token, -1 for a character without a piece."""
    exact: F64
    """The best sum from the beginning of the span, in double precision."""
    second: F64
    """The second best sum, in double precision."""
    places: I32
    """Where the character after the border begins, in bytes from the beginning of the span."""
    letters: I32
    """Number of that character in the trie."""


@kernel
def segment(lattice, data, start, end, total, paths):
    """Write the best path through data[start:end] from the sum `total` into `paths`.

    Returns (characters, the sum at the path's end, its lead over the second best path in exact arithmetic).
    """
    units, scores, unknown_score = lattice.units, lattice.scores, lattice.unknown_score
    sums, begins, ids, exact, second = paths.sums, paths.starts, paths.ids, paths.exact, paths.second
    places, letters, numbers = paths.places, paths.letters, lattice.numbers
    size = 0
    position = start
    while position < end:
        code_point, following = decode(data, position)
        places[size] = position - start
        letters[size] = numbers[code_point]
        position = following
        size += 1
    for place in range(size + 1):
        sums[place] = _NO_PATH
        begins[place] = -1
        exact[place] = _FAR
        second[place] = _FAR
    sums[0] = total
    exact[0] = 0.0
    frontier = 0
    for place in range(size):
        here = sums[place]
        if here < -RESET or here > RESET:
            for index in range(place, frontier + 1):
                if index == place or begins[index] != -1:
                    sums[index] -= here
            here = np.float32(0.0)
        node = np.int64(0)
        reach = place
        alone = False
        while True:
            # Steps of the trie; after the last one, a character without a piece of its own.
            if reach < size and node >= 0:
                base = np.int64(units[node * UNIT])
                child = base + letters[reach]
                node = child if base >= 0 and units[child * UNIT + 1] == node else -1
            else:
                node = -1
            if node >= 0:
                reach += 1
                number = units[node * UNIT + 2]
                if number < 0:
                    continue
                alone = alone or reach == place + 1
                score = scores[number]
            elif alone:
                break
            else:
                reach, number, score, alone = place + 1, np.int32(-1), unknown_score, True
            frontier = max(frontier, reach)
            candidate = np.float32(score + here)
            # Selected without branches, since which of two paths is better is unpredictable.
            better = candidate > sums[reach]
            sums[reach] = candidate if better else sums[reach]
            begins[reach] = place if better else begins[reach]
            ids[reach] = number if better else ids[reach]
            measured, rival = exact[place] + np.float64(score), second[place] + np.float64(score)
            second[reach] = max(min(exact[reach], measured), max(second[reach], rival))
            exact[reach] = max(exact[reach], measured)
    return size, sums[size], exact[size] - second[size]


@kernel
def allocate_paths(size):
    """Allocate the paths of a span of up to `size` characters."""
    length = size + 1
    return Paths(
        np.empty(length, np.float32),
        np.empty(length, np.int32),
        np.empty(length, np.int32),
        np.empty(length, np.float64),
        np.empty(length, np.float64),
        np.empty(length, np.int32),
        np.empty(length, np.int32),
    )


@kernel
def write_path(lattice, data, start, characters, paths, target, filled):
    """Write the path that `segment` found as ids into target[filled:]; return how far it is filled then."""
    starts, ids = paths.starts, paths.ids
    # The path is traversed from its end, and its tokens are linked forwards in place.
    place = np.int64(characters)
    following = place
    while place > 0:
        begin = np.int64(starts[place])
        starts[place] = following
        following, place = place, begin
    begin = np.int64(0)
    place = following
    while begin < characters:
        if ids[place] >= 0:
            target[filled] = ids[place]
            filled += 1
        else:
            filled = spell(lattice, data, start + paths.places[begin], target, filled)
        begin, place = place, np.int64(starts[place])
    return filled


def build_trie(ids: dict[str, int]) -> tuple[I32, I32]:
    """Return (units int32 [units * 4], number of each code point int32 [0x110000]) of the keys of `ids`, none empty.

    A character that is in no key has the number 0, from which no edge leads on.
    """
    ranked = [letter for letter, _ in Counter("".join(ids)).most_common()]
    places = {ord(letter): place for place, letter in enumerate(ranked)}
    numbers = np.zeros(CODE_POINTS, np.int32)
    numbers[list(places)] = np.arange(1, len(ranked) + 1)
    keys = sorted(ids, key=lambda key: key.translate(places))
    data = numbers[np.frombuffer("".join(keys).encode("utf-32-le"), np.uint32)]
    offsets = np.zeros(len(keys) + 1, np.int64)
    np.cumsum([len(key) for key in keys], out=offsets[1:])
    values = np.array([ids[key] for key in keys], np.int32)
    capacity = 1024 + 2 * (data.size + len(ranked))
    while True:
        units = np.full(capacity * UNIT, -1, np.int32)
        used = _build(units, data, offsets, values, len(ranked) + 1)
        if used:
            # From the last unit, an edge of the last character must still be inside of the array.
            return units[: (used + len(ranked) + 1) * UNIT].copy(), numbers
        capacity *= 2


@kernel
def _build(units, data, offsets, values, alphabet):
    """Fill `units`; return the number of units in use, 0 if the array is too small."""
    # A pending node: its unit, the range of keys that pass through it, and its depth.
    count = offsets.size - 1
    todo = np.empty((data.size + 1, 4), np.int64)
    todo[0, 0], todo[0, 1], todo[0, 2], todo[0, 3] = 0, 0, count, 0
    waiting = 1
    units[_PARENT] = 0
    free = 1
    used = 1
    labels = np.empty(alphabet, np.int64)
    firsts = np.empty(alphabet + 1, np.int64)
    while waiting > 0:
        waiting -= 1
        node, first, last, depth = todo[waiting, 0], todo[waiting, 1], todo[waiting, 2], todo[waiting, 3]
        if offsets[first] + depth == offsets[first + 1]:
            units[node * UNIT + _ID] = values[first]
            first += 1
        children = 0
        for key in range(first, last):
            label = np.int64(data[offsets[key] + depth])
            if children == 0 or labels[children - 1] != label:
                labels[children], firsts[children] = label, key
                children += 1
        if children == 0:
            continue
        firsts[children] = last
        while free * UNIT < units.size and units[free * UNIT + _PARENT] >= 0:
            free += 1
        base = max(1, free - labels[0])
        while True:
            if (base + 2 * alphabet) * UNIT >= units.size:
                return 0
            fits = True
            for index in range(children):
                if units[(base + labels[index]) * UNIT + _PARENT] >= 0:
                    fits = False
                    break
            if fits:
                break
            base += 1
        units[node * UNIT + _BASE] = base
        for index in range(children):
            child = base + labels[index]
            units[child * UNIT + _PARENT] = node
            used = max(used, child + 1)
            todo[waiting, 0], todo[waiting, 1] = child, firsts[index]
            todo[waiting, 2], todo[waiting, 3] = firsts[index + 1], depth + 1
            waiting += 1
        used = max(used, base + 1)
    return used
