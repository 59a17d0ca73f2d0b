"""Searches for what stands in a text more than once, over the hashes that `counting.count_texts` leaves.

A search goes through the `wanted` texts. All share one table of slots, each a hash beside a stamp and a number of uses;
it is never emptied, since a slot belongs to the search and text whose stamp it holds.
"""

import numpy as np

from tasks.clean.kernels.counting import finish
from tasks.common.kernels import kernel

_PRIME = np.uint64(0x9E3779B97F4A7C15)

_LEAST_SLOTS = 64

_ONE = np.uint64(1)

_STAMP = np.uint64(32)

_USES = np.uint64(0xFFFFFFFF)


class Slots:
    """The table, kept from search to search; it grows to what the largest text needed."""

    def __init__(self) -> None:
        self.table = np.zeros((_LEAST_SLOTS, 2), np.uint64)
        self.stamp = np.uint64(0)

    def have_room_for(self, units: int) -> None:
        """Make room for texts of up to so many units."""
        needed = int(_last_slot(units)) + 1
        if needed > len(self.table):
            self.table = np.zeros((needed, 2), np.uint64)


@kernel
def _last_slot(count):
    size = _LEAST_SLOTS
    while size < 2 * count:
        size *= 2
    return np.uint64(size - 1)


@kernel
def _uses(slots, last, stamp, key):
    """Add one use of a hash; returns how many it has now."""
    slot = key & last
    while True:
        if slots[slot, 1] >> _STAMP != stamp:
            slots[slot, 0] = key
            slots[slot, 1] = stamp << _STAMP | _ONE
            return np.int64(1)
        if slots[slot, 0] == key:
            slots[slot, 1] += _ONE
            return np.int64(slots[slot, 1] & _USES)
        slot = (slot + _ONE) & last


@kernel
def _gram(hashes, index, size):
    key = np.uint64(0)
    for offset in range(size):
        key = key * _PRIME + hashes[index + offset]
    return finish(key)


@kernel
def repeated_blocks(hashes, lengths, firsts, counts, wanted, slots, stamp, blocks, characters):
    """How many blocks (lines or paragraphs) of each text stood earlier in it, and their characters."""
    for text in range(len(firsts)):
        if not wanted[text] or counts[text] < 2:
            continue
        stamp += _ONE
        last = _last_slot(counts[text])
        for index in range(firsts[text], firsts[text] + counts[text]):
            if _uses(slots, last, stamp, hashes[index]) > 1:
                blocks[text] += 1
                characters[text] += lengths[index]
    return stamp


@kernel
def frequent_grams(hashes, lengths, firsts, counts, sizes, longer, wanted, slots, stamp, most, longest, chained):
    """How often the most frequent run of `sizes[text]` units stands, and the characters of the longest such run.

    `chained` is a bound on `repeated_grams` of the size `longer[text]` (0 for none): characters of the runs of that
    size in which every shorter run stood earlier.
    """
    for text in range(len(firsts)):
        if not wanted[text]:
            continue
        stamp += _ONE
        last = _last_slot(counts[text])
        size = sizes[text]
        in_chain = longer[text] - size + 1 if longer[text] else np.int64(1 << 62)
        chain = covered = 0
        begin = firsts[text]
        for index in range(begin, begin + counts[text] - size + 1):
            uses = _uses(slots, last, stamp, _gram(hashes, index, size))
            if uses >= most[text]:
                characters = 0
                for unit in range(index, index + size):
                    characters += lengths[unit]
                if uses > most[text] or characters > longest[text]:
                    most[text], longest[text] = uses, characters
            chain = chain + 1 if uses > 1 else 0
            if chain >= in_chain:
                for unit in range(max(index + size - longer[text], covered), index + size):
                    chained[text] += lengths[unit]
                covered = index + size
    return stamp


@kernel
def repeated_grams(hashes, lengths, firsts, counts, sizes, wanted, slots, stamp, characters):
    """Characters in runs of `sizes[text]` units that stood earlier, each character counted once."""
    for text in range(len(firsts)):
        if not wanted[text]:
            continue
        stamp += _ONE
        last = _last_slot(counts[text])
        size = sizes[text]
        covered = 0
        begin = firsts[text]
        for index in range(begin, begin + counts[text] - size + 1):
            if _uses(slots, last, stamp, _gram(hashes, index, size)) > 1:
                for unit in range(max(index, covered), index + size):
                    characters[text] += lengths[unit]
                covered = index + size
    return stamp


@kernel
def longest_runs(lengths, firsts, counts, sizes, wanted, longest):
    """Characters of the longest run of `sizes[text]` units."""
    for text in range(len(firsts)):
        if not wanted[text] or counts[text] < sizes[text]:
            continue
        characters = 0
        for index in range(firsts[text], firsts[text] + counts[text]):
            characters += lengths[index]
            if index >= firsts[text] + sizes[text]:
                characters -= lengths[index - sizes[text]]
            longest[text] = max(longest[text], characters)
