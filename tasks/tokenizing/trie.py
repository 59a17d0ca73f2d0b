"""The pieces of a Unigram vocabulary as a trie over characters, in a double array (Aoe, 1989).

Characters count from 1, the most frequent in the pieces first. From node n, character c leads to unit base[n] + c if
that unit's parent is n. A unit is four numbers side by side: base, parent, the id of the piece that ends there (-1:
none), and nothing, so that a step touches one cache line. Steps by characters are half as many as by bytes in Cyrillic.
"""

from collections import Counter

import numpy as np
import numpy.typing as npt

from tasks.kernels import kernel
from tasks.tokenizing.pieces import CODE_POINTS

I32 = npt.NDArray[np.int32]
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
