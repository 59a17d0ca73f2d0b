"""One pass over the documents for all benchmarks at once: seeds lead to items, alignments show what is shared.

For each document its words are hashed, every place is looked up in the index of seeds, and the items that a seed leads
to are aligned there: from the seed's words outwards, word by word, over single words that were changed, added or left
out. The aligned stretches of an item that are near each other are a match where they could be a leak by their number of
words; whether they are one, `leaks.find_leaks` decides when it is known how rare their seeds are.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model.kernels import kernel
from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.ngrams import (
    CHARACTER_UNITS,
    I64,
    LONG_SPAN,
    SHORT_SPAN,
    WORD_UNITS,
    ItemIndex,
    long_seed,
    narrow,
    odd_letters,
    part_at,
    same_word,
    seed_bits,
    seed_value,
    short_seed,
    spaced_long_seed,
    spaced_short_seed,
    units_of,
)
from tasks.decontaminate.normalize import CHARACTER, GOLDEN, NUMBER, fold_table, hash_words, max_words

WHOLE, RUN, SIMILAR, HALF, SHORT, TOGETHER = range(1, 7)
"""How an item is shared, best first: a whole part; a run of `ngram` words; a part with changed words; half of the words
of a context; a context of few but long words; several parts near each other that are short by themselves."""

NEAR_WORDS = 60
"""Words of a document between two shared stretches of an item from which on they are matches by themselves."""

WHOLE_SHARE = 0.95
HALF_SHARE, HALF_WORDS = 0.42, 9
CHOICE_WORDS = 10
"""Words from which on a choice is evidence without its question."""

LONGER_WORDS = 3
"""Words more than an n-gram's from which on a stretch of a long text is evidence though some words are changed."""

UNSPACED_SHARE, UNSPACED_HALF, UNSPACED_HALF_CHARS = 0.8, 0.5, 16
"""Shares of a part in a script without spaces: all but some of it, or half of the only context."""

SHORT_CHARACTERS, SHORT_WORDS, SHORT_UNSPACED = 25, 3, 7
"""Characters and words from which on a context of fewer words than `short_words` is evidence by itself if rare: the
questions of XCOPA and PARus have four to six words."""

_EQUAL_WORDS, _AROUND = 7, 16
_TYPO_BITS, _TYPO_BYTES = 2, 4
_SHORT_PART, _KEPT_WORDS, _KEPT_SHARE = 12, 6, 0.6
_FIRST_HITS, _FIRST_FOUND, _MOST_STRETCHES = 1 << 14, 1 << 14, 256
_NUMBER_KIND, _CHARACTER_KIND, _KIND = np.uint32(NUMBER), np.uint32(CHARACTER), np.uint32(3)
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

    `seen` gets each seed of a row once. Stops before a row that does not fit.
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
        filled_before, hit_before, match_before = filled, hit, match
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
                    return row, filled_before, hit_before, match_before
                seen[hit] = at
                hit += 1
                while at < last and seeds[at] == seed:
                    if places[at] >= 0:
                        if posted == posts.size:
                            return row, filled_before, hit_before, match_before
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
                    more = _align(
                        row, item, match, data, offsets[row], words, count, starts, ends, index, limits, similar_share,
                        posts[first:last], stamps, held, out[:, filled:],
                    )  # fmt: skip
                    if more < 0:
                        return row, filled_before, hit_before, match_before
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
    return kinds & _CHARACTER_KIND != 0


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
def _align(
    row, item, match, data, origin_byte, words, count, starts, ends, index, limits, similar_share,
    posts, stamps, table, out,
):  # fmt: skip
    """Align an item from each of its seeds, `posts`; writes its stretches where they could be a leak.

    Returns how many; -1 where they do not fit. stamps[i] = 2 * match + 1 marks the item's word i as shared,
    2 * match as a number that is another number.
    """
    item_words, letters, part_first, block_part = index.words, index.letters, index.part_first, index.block_part
    document = (data, origin_byte, words, starts, ends)
    origin = part_first[index.item_first[item]]
    found = total = 0
    large = False
    # Columns as in `_COLUMNS`, with words of the document in place of bytes until the end.
    for post in posts:
        word, place = post >> 32, (post & _LOW_HALF) >> 1
        known = found == _MOST_STRETCHES
        for other in range(max(0, found - 8), found):
            known |= (
                table[other, 7] <= word < table[other, 8] and table[other, 5] <= place < table[other, 6]
            )  # a seed within a stretch
        if known:
            continue
        part = part_at(place, part_first, block_part)
        low, high = part_first[part], part_first[part + 1]
        last_word, last, run_after, longest = _extend(document, count, word, item_words, letters, high, place, 1)
        first_word, first, run_before, longest_before = _extend(
            document, count, word - 1, item_words, letters, low, place - 1, -1
        )
        run = max(run_after + run_before, longest, longest_before)
        unit = CHARACTER_UNITS if item_words[place] & _KIND == _CHARACTER_KIND else WORD_UNITS
        length = unit * (last - first - 1)
        if length < _KEPT_WORDS * WORD_UNITS and length < _KEPT_SHARE * unit * (high - low):
            continue
        units = _mark(document, item_words, letters, first_word + 1, last_word, first + 1, last, origin, match, stamps)
        table[found, 4], table[found, 5], table[found, 6] = part, first + 1, last
        table[found, 7], table[found, 8] = first_word + 1, last_word
        table[found, 9], table[found, 10] = run, units
        found += 1
        total += units
        large |= length >= _KEPT_SHARE * unit * (high - low)
    if not large and total < HALF_WORDS * WORD_UNITS:
        return 0
    form, found = _form_of(document, count, item, index, limits, similar_share, origin, match, stamps, table, found)
    if form == 0:
        return 0
    if found > out.shape[1]:
        return -1
    for at in range(found):
        for column in range(11):
            out[column, at] = table[at, column]
        out[0, at], out[1, at], out[2, at], out[3, at] = row, item, match, form
        out[4, at] = table[at, 4] - index.item_first[item]
        out[7, at], out[8, at] = starts[table[at, 7]], ends[table[at, 8] - 1]
    return found


@kernel
def _extend(document, count, word, item_words, letters, bound, place, step):
    """Follow equal words from (word, place) in the direction of `step`, over changed ones.

    Returns the pair behind the last equal one, and the most words in a row that are equal: from the beginning on, and
    anywhere.
    """
    words = document[2]
    stop = count if step > 0 else -1
    bound = bound if step > 0 else bound - 1
    equal, edits, run, first_run, longest = 0, 0, 0, -1, 0
    last_word, last = word, place
    while word != stop and place != bound:
        if words[word] == item_words[place]:
            run += 1
            longest = max(longest, run)
        else:
            first_run = run if first_run < 0 else first_run
            run = 0
        if same_word(words[word], item_words[place]) or _alike(document, word, item_words, letters, place):
            equal += 1
            word += step
            place += step
            last_word, last = word, place
            continue
        if 3 * edits > equal + 3:
            break
        by_word, by_place = _skip(document, stop, word, item_words, letters, bound, place, step)
        if by_word == 0 and by_place == 0:
            break
        word += by_word
        place += by_place
        edits += 1
    return last_word, last, run if first_run < 0 else first_run, longest


@kernel
def _alike(document, word, item_words, letters, place):
    """Return whether two words are equal, both numbers, or as after a typing error: at most two letters differ."""
    data, origin_byte, words, starts, ends = document
    one, other = words[word], item_words[place]
    if same_word(one, other):
        return True
    if one & _KIND != 0 or other & _KIND != 0 or ends[word] - starts[word] < _TYPO_BYTES:
        return False
    different = odd_letters(data, origin_byte + starts[word], origin_byte + ends[word]) ^ letters[place]
    bits = 0
    while different:
        different &= different - np.uint16(1)
        bits += 1
    return bits <= _TYPO_BITS


@kernel
def _skip(document, stop, word, item_words, letters, bound, place, step):
    """Return how many words of document and item to leave out before two pairs in a row are equal; zeros for none.

    The only word before the end of a part is enough.
    """
    words = document[2]
    for skips in range(1, 6):
        # (1, 1), (1, 0), (0, 1), (2, 2), (2, 1)
        by_word = step * (0 if skips == 3 else 1 if skips < 3 else 2)
        by_place = step * (0 if skips == 2 else 2 if skips == 4 else 1)
        next_word, next_place = word + by_word, place + by_place
        if (stop - next_word) * step <= 0 or (bound - next_place) * step <= 0:
            continue
        if not same_word(words[next_word], item_words[next_place]):
            continue
        if next_place + step == bound:
            return by_word, by_place
        if (stop - next_word) * step > 1 and _alike(document, next_word + step, item_words, letters, next_place + step):
            return by_word, by_place
    return 0, 0


@kernel
def _mark(document, item_words, letters, word, last_word, place, last, origin, match, stamps):
    """Mark the item's words of a stretch that are shared; returns the units that were not marked before.

    Follows the stretch once more from its beginning, as `_extend` does.
    """
    words = document[2]
    units = 0
    while word < last_word and place < last:
        if same_word(words[word], item_words[place]) or _alike(document, word, item_words, letters, place):
            equal = words[word] == item_words[place]
            if stamps[place - origin] < 2 * match:
                stamps[place - origin] = 2 * match + equal
                kind = item_words[place] & _KIND
                if equal:
                    units += CHARACTER_UNITS if kind == _CHARACTER_KIND else WORD_UNITS
            word += 1
            place += 1
            continue
        by_word, by_place = _skip(document, last_word, word, item_words, letters, last, place, 1)
        word += by_word if by_word or by_place else 1
        place += by_place if by_word or by_place else 1
    return units


@kernel
def _form_of(document, count, item, index, limits, similar_share, origin, match, stamps, table, found):
    """Return (how the stretches share the item, or 0; stretches, with those of short parts that are near)."""
    item_words, letters, part_first, item_first = index.words, index.letters, index.part_first, index.item_first
    part_characters, part_choice, part_own = index.part_characters, index.part_choice, index.part_own
    words = document[2]
    run_units, unspaced_units, enough = limits
    contexts = 0
    near = False
    for part in range(item_first[item], item_first[item + 1]):
        contexts += not part_choice[part]
    for at in range(found):
        size = part_first[table[at, 4] + 1] - part_first[table[at, 4]]
        near |= 4 * (table[at, 6] - table[at, 5]) >= 3 * size
    low_word, high_word = table[0, 7], table[0, 8]
    for at in range(found):
        low_word, high_word = min(low_word, table[at, 7]), max(high_word, table[at, 8])
    form = 0
    seen_parts = seen_contexts = seen_units = 0
    for part in range(item_first[item], item_first[item + 1]):
        first, last = part_first[part], part_first[part + 1]
        # Without numbers `whole`, of these `held` alike, of these `exact`; `units`: equal words and equal numbers.
        whole, held, exact, units, characters, other_numbers = _part_counts(
            item_words, first, last, origin, match, stamps
        )
        unspaced = 2 * characters > last - first
        share = UNSPACED_SHARE if unspaced else WHOLE_SHARE if whole < run_units else similar_share
        if near and held < share * whole and last - first <= _SHORT_PART and found < _MOST_STRETCHES:
            at = _find_near(words, count, item_words, first, last, low_word, high_word)
            if at >= 0:
                table[found, 4], table[found, 5], table[found, 6] = part, first, last
                table[found, 7], table[found, 8], table[found, 9] = at, at + last - first, last - first
                table[found, 10] = _mark(
                    document, item_words, letters, at, at + last - first, first, last, origin, match, stamps
                )
                found += 1
                whole, held, exact, units, characters, other_numbers = _part_counts(
                    item_words, first, last, origin, match, stamps
                )
        choice = part_choice[part]
        # A template is no evidence, unlike a choice of a word or two next to its question.
        if units == 0 or not (part_own[part] or choice or last - first < SHORT_SPAN):
            continue
        run = _longest_run(table[:found], part, unspaced, run_units // WORD_UNITS)
        if held >= share * whole:
            seen_parts += 1
            seen_contexts += not choice
            seen_units += units
        if not part_own[part]:
            continue
        here = 0
        if held >= share * whole and units >= (CHOICE_WORDS * WORD_UNITS if choice else enough):
            here = WHOLE if held >= WHOLE_SHARE * whole else SIMILAR
        if (run * CHARACTER_UNITS >= unspaced_units) if unspaced else (run * WORD_UNITS >= run_units):
            here = RUN if here != WHOLE else WHOLE
        if here == 0 and not unspaced:
            for at in range(found):
                if table[at, 4] == part and table[at, 10] >= run_units + LONGER_WORDS * WORD_UNITS:
                    here = SIMILAR
        if here == 0 and not choice:
            if unspaced:
                half = contexts == 1 and held >= UNSPACED_HALF * whole
                half &= units >= UNSPACED_HALF_CHARS * CHARACTER_UNITS
            else:
                half = held >= HALF_SHARE * whole and units >= HALF_WORDS * WORD_UNITS
            if half:
                here = HALF
            elif exact == whole and not other_numbers and (unspaced or whole >= SHORT_WORDS * WORD_UNITS):
                here = SHORT if part_characters[part] >= (SHORT_UNSPACED if unspaced else SHORT_CHARACTERS) else 0
        if here and (form == 0 or here < form):
            form = here
    if form == 0 or form == SHORT:
        together = seen_parts > 1 and seen_units >= enough and (seen_contexts > 0 or contexts == 0)
        form = TOGETHER if together else form
    return form, found


@kernel
def _longest_run(table, part, unspaced, ngram):
    """Return the most words in a row that a part shares; in a script without spaces over gaps of up to `ngram`."""
    longest = chain = last_word = 0
    for at in range(table.shape[0]):
        if table[at, 4] != part or (unspaced and table[at, 9] < ngram):
            continue
        chain = table[at, 9] + (chain if unspaced and table[at, 7] - last_word <= ngram else 0)
        last_word = table[at, 8]
        longest = max(longest, chain)
    return longest


@kernel
def _part_counts(item_words, first, last, origin, match, stamps):
    whole = held = exact = units = characters = other_numbers = 0
    for place in range(first, last):
        word = item_words[place]
        own = units_of(word)
        whole += own
        other_numbers += own == 0 and stamps[place - origin] != 2 * match + 1
        characters += word & _KIND == _CHARACTER_KIND
        if stamps[place - origin] >= 2 * match:
            held += own
            if stamps[place - origin] == 2 * match + 1:
                exact += own
                units += own if own else WORD_UNITS
    return whole, held, exact, units, characters, other_numbers


@kernel
def _find_near(words, count, item_words, first, last, low_word, high_word):
    """Return the document's word at which all words of a part begin, near its other parts; -1 without."""
    size = last - first
    if size == 0:
        return -1
    for at in range(max(0, low_word - NEAR_WORDS), min(count, high_word + NEAR_WORDS) - size + 1):
        place = 0
        while place < size and words[at + place] == item_words[first + place]:
            place += 1
        if place == size:
            return at
    return -1
