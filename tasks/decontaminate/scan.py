"""One pass over the documents for all benchmarks at once: seeds lead to items, alignments show what is shared.

For each document its words are hashed, every place is looked up in the index of seeds, and the items that a seed leads
to are aligned there (`align`). The aligned stretches of an item that are near each other are a match where they could
be a leak by their number of words (`forms`); whether they are one, `leaks.find_leaks` decides when it is known how rare
their seeds are.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model.kernels import kernel
from tasks.common.utf8 import GOLDEN
from tasks.decontaminate.align import END, PART, START, align
from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.forms import NEAR_WORDS, form_of
from tasks.decontaminate.ngrams import ItemIndex, part_at, seed_bits
from tasks.decontaminate.normalize import fold_table, hash_words, max_words
from tasks.decontaminate.seeds import (
    CHARACTER_KIND,
    CHARACTER_UNITS,
    I64,
    LONG_SPAN,
    SHORT_SPAN,
    WORD_UNITS,
    long_seed,
    narrow,
    same_word,
    seed_value,
    short_seed,
    spaced_long_seed,
    spaced_short_seed,
)

_EQUAL_WORDS, _AROUND = 7, 16
_FIRST_HITS, _FIRST_FOUND, _MOST_STRETCHES = 1 << 14, 1 << 14, 256
_LOW_HALF = 0xFFFFFFFF
_COLUMNS = ("row", "item", "match", "form", "part", "first", "last", "start", "end", "run", "units")


@dataclass(frozen=True)
class Stretches:
    """Aligned stretches of items in documents, in order of (row, item, match): parallel arrays."""

    row: I64
    item: I64
    match: I64
    """Stretches of a row that belong together have one number."""
    form: I64
    """How the match as a whole shares the item."""
    part: I64
    """The part of the item, counted from its first."""
    first: I64
    """Place of the first shared word, and after the last, in `ItemIndex.words`."""
    last: I64
    start: I64
    """UTF-8 bytes within the document's text, half-open."""
    end: I64
    run: I64
    """Most words in a row that are equal."""
    units: I64
    """Words shared that no earlier stretch of the match shares, in thirds of a word."""

    def __len__(self) -> int:
        return self.row.size

    def stacked(self) -> I64:
        """Return all columns as the rows of one array."""
        return np.array([getattr(self, name) for name in _COLUMNS], np.int64).reshape(len(_COLUMNS), -1)


@dataclass(frozen=True)
class Found:
    """What a scan found: the matches, and in how many of the documents each seed occurs."""

    stretches: Stretches
    seeds: I64
    """Where in `ItemIndex.seeds` the seeds are that occur at all, ascending."""
    documents: I64


def scan_texts(data: npt.NDArray[np.uint8], offsets: I64, index: ItemIndex, config: DecontaminateConfig) -> Found:
    """Return all that the texts of an Arrow large_string column's buffers share with the items."""
    found, hits = [np.empty((len(_COLUMNS), 0), np.int64)], [np.empty(0, np.int64)]
    if index.seeds.size and offsets.size > 1:
        capacity = max_words(int(np.diff(offsets).max()))
        hashes = np.empty(capacity, np.uint64)
        starts, ends = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        words, pairs = np.empty(capacity, np.uint32), np.empty(capacity, np.uint64)
        probed = np.empty(capacity, np.int32)
        spans = index.part_first[index.item_first]
        stamps = np.zeros(int(np.diff(spans).max(initial=0)) + 1, np.int64)
        limits = np.array(
            [config.ngram * WORD_UNITS, config.unspaced_chars * CHARACTER_UNITS, config.short_words * WORD_UNITS],
            np.int64,
        )
        seen, posts = np.empty(_FIRST_HITS, np.int64), np.empty(_FIRST_HITS, np.int64)
        out = np.empty((len(_COLUMNS), _FIRST_FOUND), np.int64)
        row, match, table = 0, 0, fold_table()
        while row < offsets.size - 1:
            next_row, filled, hit, match = _scan_rows(
                data, offsets, row, match, table, index, limits, config.similar_share,
                hashes, starts, ends, words, pairs, probed, stamps, seen, posts, out,
            )  # fmt: skip
            found.append(out[:, :filled].copy())
            hits.append(seen[:hit].copy())
            if next_row == row:
                seen, posts = np.empty(2 * seen.size, np.int64), np.empty(2 * posts.size, np.int64)
                out = np.empty((len(_COLUMNS), 2 * out.shape[1]), np.int64)
            row = next_row
    seeds, documents = np.unique(np.concatenate(hits), return_counts=True)
    return Found(Stretches(*np.concatenate(found, axis=1)), seeds, documents.astype(np.int64))


@kernel
def _scan_rows(
    data, offsets, first_row, match, table, index, limits, similar_share,
    hashes, starts, ends, words, pairs, probed, stamps, seen, posts, out,
):  # fmt: skip
    """Write the stretches of rows from `first_row` on; returns (next row, stretches, seeds seen, matches).

    `seen` gets each seed of a row once. Stops before a row that does not fit, whose matches get new numbers when it is
    scanned again: with the old ones its words would count as marked (`stamps`).
    """
    item_words, part_first, part_item, item_first = index.words, index.part_first, index.part_item, index.item_first
    seeds, places, directory, block_part = index.seeds, index.places, index.directory, index.block_part
    shift = np.uint64(64)
    size = directory.size - 1
    while size > 1:
        size >>= 1
        shift -= np.uint64(1)
    held = np.empty((_MOST_STRETCHES, len(_COLUMNS)), np.int64)
    long_bits, short_bits = index.bitmaps[: index.bitmap_first[1]], index.bitmaps[index.bitmap_first[1] :]
    filled = hit = 0
    for row in range(first_row, offsets.size - 1):
        filled_before, hit_before = filled, hit
        count = hash_words(data, offsets[row], offsets[row + 1], table, hashes, starts, ends)
        unspaced = _narrow_words(hashes, count, words, pairs)
        posted = 0
        for tiny in range(2):
            candidates = _probe(words, pairs, count, tiny, unspaced, short_bits if tiny else long_bits, probed)
            for number in range(candidates):
                word = probed[number]
                seed = short_seed(words, pairs, word, count) if tiny else long_seed(words, pairs, word, count)
                bucket = np.int64(seed >> shift)
                at, last = np.int64(directory[bucket]), np.int64(directory[bucket + 1])
                while at < last and seeds[at] < seed:
                    at += 1
                if at == last or seeds[at] != seed:
                    continue
                if hit == seen.size:
                    return row, filled_before, hit_before, match
                seen[hit] = at
                hit += 1
                while at < last and seeds[at] == seed:
                    if places[at] >= 0:
                        if posted == posts.size:
                            return row, filled_before, hit_before, match
                        posts[posted] = (np.int64(places[at]) << 32) | word
                        posted += 1
                    at += 1
        if hit == hit_before:
            continue
        hit = _each_once(seen, hit_before, hit)
        posts[:posted].sort()
        begin = 0
        while begin < posted:
            item = np.int64(part_item[part_at(posts[begin] >> 33, part_first, block_part)])
            bound = part_first[item_first[item + 1]] << 33
            end, small = begin, np.int64(0)
            while end < posted and posts[end] < bound:
                small |= posts[end] >> 32 & 1
                # From here on in order of the document: word, place, and whether its part is small.
                posts[end] = (posts[end] & _LOW_HALF) << 32 | posts[end] >> 32
                end += 1
            if end - begin == 1 and not small:
                begin = end
                continue
            posts[begin:end].sort()
            first = begin
            while first < end:
                last, small = first + 1, posts[first] & 1
                while last < end and (posts[last] >> 32) - (posts[last - 1] >> 32) <= NEAR_WORDS:
                    small |= posts[last] & 1
                    last += 1
                if (last - first > 1 or small) and _promising(
                    words, count, item_words, posts[first:last], part_first, block_part
                ):
                    match += 1
                    document = (data, offsets[row], words, starts, ends)
                    more = _match(
                        row, item, match, document, count, index, limits, similar_share,
                        posts[first:last], stamps, held, out[:, filled:],
                    )  # fmt: skip
                    if more < 0:
                        return row, filled_before, hit_before, match
                    filled += more
                first = last
            begin = end
    return offsets.size - 1, filled, hit, match


@kernel
def _narrow_words(hashes, count, words, pairs):
    """Write the words and their joined neighbours; returns whether any is of a script without spaces."""
    before = np.uint64(0)
    kinds = np.uint32(0)
    for word in range(count):
        narrowed = narrow(hashes[word])
        words[word] = narrowed
        value = seed_value(narrowed)
        if word > 0:
            pairs[word - 1] = before * GOLDEN + value
        before = value
        kinds |= narrowed
    return kinds & CHARACTER_KIND != 0


@kernel
def _probe(words, pairs, count, tiny, unspaced, bits, probed):
    """Write the words at which a seed may begin, by the bitmap; returns how many there are.

    Without a branch for each word, so that the memory of several is read at a time.
    """
    mask = np.uint64(bits.size - 1)
    found = 0
    if bits.size == 0:
        return 0
    if unspaced:
        for word in range(count - 2):
            seed = short_seed(words, pairs, word, count) if tiny else long_seed(words, pairs, word, count)
            wanted = seed_bits(seed)
            probed[found] = word
            found += bits[(seed >> np.uint64(8)) & mask] & wanted == wanted
    elif tiny:
        for word in range(count - SHORT_SPAN + 1):
            seed = spaced_short_seed(words, pairs, word)
            wanted = seed_bits(seed)
            probed[found] = word
            found += bits[(seed >> np.uint64(8)) & mask] & wanted == wanted
    else:
        for word in range(count - LONG_SPAN + 1):
            seed = spaced_long_seed(pairs, word)
            wanted = seed_bits(seed)
            probed[found] = word
            found += bits[(seed >> np.uint64(8)) & mask] & wanted == wanted
    return found


@kernel
def _promising(words, count, item_words, posts, part_first, block_part):
    """Return whether a seed has more equal words around it than chance phrases have: seven, or half a part."""
    for post in posts:
        word, place = post >> 32, (post & _LOW_HALF) >> 1
        part = part_at(place, part_first, block_part)
        low, high = part_first[part], part_first[part + 1]
        enough = min(_EQUAL_WORDS, (high - low + 1) // 2)
        equal = 0
        for at in range(max(low, place - word, place - _AROUND), min(high, place + count - word, place + _AROUND)):
            equal += same_word(words[word + at - place], item_words[at])
        if equal >= enough:
            return True
    return False


@kernel
def _each_once(seen, first, last):
    """Sort seen[first:last] and keep each value once; returns the new end."""
    seen[first:last].sort()
    kept = first
    for at in range(first, last):
        if at == first or seen[at] != seen[at - 1]:
            seen[kept] = seen[at]
            kept += 1
    return kept


@kernel
def _match(
    row, item, match, document, count, index, limits, similar_share, posts, stamps, table, out,
):  # fmt: skip
    """Align an item from each of its seeds, `posts`; writes its stretches where they could be a leak.

    Returns how many; -1 where they do not fit.
    """
    origin = index.part_first[index.item_first[item]]
    found = align(document, count, match, index, origin, posts, stamps, table)
    if found == 0:
        return 0
    form, found = form_of(document, count, item, index, limits, similar_share, origin, match, stamps, table, found)
    if form == 0:
        return 0
    if found > out.shape[1]:
        return -1
    starts, ends = document[3], document[4]
    for at in range(found):
        for column in range(len(_COLUMNS)):
            out[column, at] = table[at, column]
        out[0, at], out[1, at], out[2, at], out[3, at] = row, item, match, form
        out[PART, at] = table[at, PART] - index.item_first[item]
        out[START, at], out[END, at] = starts[table[at, START]], ends[table[at, END] - 1]
    return found
