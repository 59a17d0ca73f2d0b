"""The best segmentation under a Unigram model, with SentencePiece's rounding (`unigram_model.cc`, `EncodeOptimized`).

It sums scores in single precision from the beginning of a text, so that near-ties fall differently a million characters
on: 2^16 has a spacing of 1/128. Every path passes a border of stretches, so the sum at the border is all that a stretch
must know of what stood before it, and the same programme, run on the stretch from that sum, makes the same choices.

A kept segmentation may stand in for the programme where rounding cannot turn its choice. A path of k tokens whose sums
stay below 2^e is off by k 2^(e-25) at most, so the best path, m ahead of the second in exact arithmetic, is chosen
where m > 2 k 2^(e-25); k is at most the stretch's number of bytes. A factor of two is on top of that.

The pieces of a Unigram vocabulary as a trie over characters, in a double array (Aoe, 1989).

Characters count from 1, the most frequent in the pieces first. From node n, character c leads to unit base[n] + c if
that unit's parent is n. A unit is four numbers side by side: base, parent, the id of the piece that ends there (-1:
none), and nothing, so that a step touches one cache line. Steps by characters are half as many as by bytes in Cyrillic.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tasks.common.kernels import kernel
from tasks.tokenizer.pieces import BLANK, CODE_POINTS, Pieces, spell

F32 = npt.NDArray[np.float32]

F64 = npt.NDArray[np.float64]

I32 = npt.NDArray[np.int32]

RESET = np.float32(100_000.0)
"""A sum beyond this is set back to 0 (`kScoreResetThreshold`)."""

_LARGEST_EXPONENT = 17
"""2^17 is above RESET, so no larger sum occurs."""

_FAR = -1e300

_NO_PATH = np.float32(-np.inf)


class Lattice(NamedTuple):
    """A Unigram vocabulary in arrays."""

    units: I32
    """The trie of `trie.py`."""
    numbers: I32
    """Code point -> the trie's number of the character."""
    singles: I32
    """Code point -> id of the piece of this character alone, -1 where there is none; int32 [0x110000]."""
    scores: F32
    """By id; not a number for bytes, which spell characters of the unknown score."""
    unknown_score: np.float32
    largest: np.float64
    """The largest absolute score of one token."""
    byte_ids: I32
    blank_bytes: I32


def build_lattice(pieces: Pieces) -> Lattice:
    """The arrays of a Unigram vocabulary."""
    singles = np.full(CODE_POINTS, -1, np.int32)
    for letter, number in pieces.characters():
        singles[ord(letter)] = number
    largest = max(abs(float(pieces.unknown_score)), float(np.abs(pieces.scores[list(pieces.ids.values())]).max()))
    scores = pieces.scores.copy()
    scores[pieces.byte_ids] = np.nan
    return Lattice(
        *build_trie(pieces.ids),
        singles,
        scores,
        pieces.unknown_score,
        np.float64(largest),
        pieces.byte_ids,
        pieces.byte_ids[list(BLANK.encode())],
    )


@kernel
def safe_exponent(margin, size):
    """The largest e, at most 17, for which a margin rules out another choice below 2^e; 0 where none is."""
    power = 2.0**_LARGEST_EXPONENT
    exponent = _LARGEST_EXPONENT
    while exponent > 0 and margin <= 4.0 * size * power / 33554432.0:
        power *= 0.5
        exponent -= 1
    return exponent


@kernel
def is_safe(largest, exponent, total, size):
    """Whether sums of a stretch of `size` bytes from `total` stay below 2^exponent, and are not reset within it."""
    reach = abs(np.float64(total)) + size * largest
    return reach < np.float64(np.int64(1) << exponent) and reach < 100_000.0 and exponent > 0


class Paths(NamedTuple):
    """Of each border between characters of a stretch what the best path there is; arrays of characters + 1."""

    sums: F32
    """Its sum, rounded as SentencePiece rounds."""
    starts: I32
    """Where its last token begins, -1 where no path arrives."""
    ids: I32
    """The id of that token, -1 for a character without a piece."""
    exact: F64
    """The best sum from the stretch's beginning, in double precision."""
    second: F64
    """The second best."""
    places: I32
    """Where the character behind the border begins, in bytes from the stretch's beginning."""
    letters: I32
    """The trie's number of that character."""


@kernel
def segment(lattice, data, start, end, total, paths):
    """The best path through data[start:end] from the sum `total`, into `paths`.

    Returns (characters, the sum at the path's end, how far it is ahead of the second best path in exact arithmetic).
    """
    units, scores, unknown_score = lattice.units, lattice.scores, lattice.unknown_score
    sums, begins, ids, exact, second = paths.sums, paths.starts, paths.ids, paths.exact, paths.second
    places, letters, numbers = paths.places, paths.letters, lattice.numbers
    size = 0
    position = start
    while position < end:
        code_point = np.int64(data[position])
        width = 1
        if code_point >= 0x80:
            width = 2 + (code_point >= 0xE0) + (code_point >= 0xF0)
            code_point &= 0x7F >> width
            for index in range(1, width):
                code_point = (code_point << 6) | (np.int64(data[position + index]) & 0x3F)
        places[size] = position - start
        letters[size] = numbers[code_point]
        position += width
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
            # A step of the trie, and behind its last one a character without a piece of its own.
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
            # Choices without branches, since nobody can foresee which of two paths is the better.
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
    """Room for the paths of a stretch of up to `size` characters."""
    room = size + 1
    return Paths(
        np.empty(room, np.float32),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.float64),
        np.empty(room, np.float64),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
    )


@kernel
def write_path(lattice, data, start, characters, paths, target, filled):
    """The path that `segment` found, as ids in target[filled:]; returns how far it is filled then."""
    starts, ids = paths.starts, paths.ids
    # Walked from its end, the path's tokens are linked forwards in place.
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


I64 = npt.NDArray[np.int64]

UNIT = 4

_BASE, _PARENT, _ID = 0, 1, 2


def build_trie(ids: dict[str, int]) -> tuple[I32, I32]:
    """(units int32 [units * 4], the number of each code point int32 [0x110000]) over the keys of `ids`, none empty.

    A character that is in no key has the number 0, which leads nowhere.
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
    room = 1024 + 2 * (data.size + len(ranked))
    while True:
        units = np.full(room * UNIT, -1, np.int32)
        used = _build(units, data, offsets, values, len(ranked) + 1)
        if used:
            # From the last unit the last character must still lead to one inside.
            return units[: (used + len(ranked) + 1) * UNIT].copy(), numbers
        room *= 2


@kernel
def _build(units, data, offsets, values, alphabet):
    """Fill `units`; returns the number of units that may hold a base, 0 where the room is too small."""
    # A node to do: its unit, the keys that pass through it, and its depth.
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
