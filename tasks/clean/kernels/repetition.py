"""Searches for repetitions in texts, over the hashes that `counting.count_texts` writes.

A search goes through the `wanted` texts. All searches share one table of slots, each a hash, a stamp and a number of
uses. The table is never emptied: a slot belongs to the search and text whose stamp it holds.
"""

import numpy as np

from model.kernels import kernel
from tasks.clean.kernels.counting import mix_hash
from tasks.common.utf8 import GOLDEN

_MIN_SLOTS = 64
_ONE = np.uint64(1)
_STAMP_SHIFT = np.uint64(32)
_USES_MASK = np.uint64(0xFFFFFFFF)


class Slots:
    """The table of slots, kept from search to search; it grows to what the largest text needed."""

    def __init__(self) -> None:
        self.table = np.zeros((_MIN_SLOTS, 2), np.uint64)
        self.stamp = np.uint64(0)

    def ensure_capacity(self, units: int) -> None:
        """Grow the table for texts of up to so many units."""
        needed = int(_last_slot(units)) + 1
        if needed > len(self.table):
            self.table = np.zeros((needed, 2), np.uint64)


@kernel
def _last_slot(count):
    size = _MIN_SLOTS
    while size < 2 * count:
        size *= 2
    return np.uint64(size - 1)


@kernel
def _count_use(slots, last, stamp, key):
    """Add one use of a hash; returns how many it has now."""
    slot = key & last
    while True:
        if slots[slot, 1] >> _STAMP_SHIFT != stamp:
            slots[slot, 0] = key
            slots[slot, 1] = stamp << _STAMP_SHIFT | _ONE
            return np.int64(1)
        if slots[slot, 0] == key:
            slots[slot, 1] += _ONE
            return np.int64(slots[slot, 1] & _USES_MASK)
        slot = (slot + _ONE) & last


@kernel
def _gram(hashes, index, size):
    key = np.uint64(0)
    for offset in range(size):
        key = key * GOLDEN + hashes[index + offset]
    return mix_hash(key)


@kernel
def repeated_blocks(hashes, lengths, firsts, counts, wanted, slots, stamp, blocks, characters):
    """Count the blocks (lines or paragraphs) of each text that repeat an earlier one, and their characters."""
    for text in range(len(firsts)):
        if not wanted[text] or counts[text] < 2:
            continue
        stamp += _ONE
        last = _last_slot(counts[text])
        for index in range(firsts[text], firsts[text] + counts[text]):
            if _count_use(slots, last, stamp, hashes[index]) > 1:
                blocks[text] += 1
                characters[text] += lengths[index]
    return stamp


@kernel
def frequent_grams(
    hashes, lengths, firsts, counts, sizes, longer, wanted, slots, stamp, max_uses, longest, chain_characters
):
    """Count the most frequent run of `sizes[text]` units, and the characters of the longest such run.

    `chain_characters` is a bound on `repeated_grams` of the size `longer[text]` (0 for none): characters of the runs of
    that size in which every shorter run repeats an earlier one.
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
            uses = _count_use(slots, last, stamp, _gram(hashes, index, size))
            if uses >= max_uses[text]:
                characters = 0
                for unit in range(index, index + size):
                    characters += lengths[unit]
                if uses > max_uses[text] or characters > longest[text]:
                    max_uses[text], longest[text] = uses, characters
            chain = chain + 1 if uses > 1 else 0
            if chain >= in_chain:
                for unit in range(max(index + size - longer[text], covered), index + size):
                    chain_characters[text] += lengths[unit]
                covered = index + size
    return stamp


@kernel
def repeated_grams(hashes, lengths, firsts, counts, sizes, wanted, slots, stamp, characters):
    """Count the characters in runs of `sizes[text]` units that repeat an earlier one, each character once."""
    for text in range(len(firsts)):
        if not wanted[text]:
            continue
        stamp += _ONE
        last = _last_slot(counts[text])
        size = sizes[text]
        covered = 0
        begin = firsts[text]
        for index in range(begin, begin + counts[text] - size + 1):
            if _count_use(slots, last, stamp, _gram(hashes, index, size)) > 1:
                for unit in range(max(index, covered), index + size):
                    characters[text] += lengths[unit]
                covered = index + size
    return stamp


@kernel
def longest_runs(lengths, firsts, counts, sizes, wanted, longest):
    """Return the characters of the longest run of `sizes[text]` units."""
    for text in range(len(firsts)):
        if not wanted[text] or counts[text] < sizes[text]:
            continue
        characters = 0
        for index in range(firsts[text], firsts[text] + counts[text]):
            characters += lengths[index]
            if index >= firsts[text] + sizes[text]:
                characters -= lengths[index - sizes[text]]
            longest[text] = max(longest[text], characters)
