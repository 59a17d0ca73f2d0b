"""Alignment of a document with an item: from the words of a seed outwards, over single words that were changed, added
or left out.

A document is (its text's bytes, where they begin in the buffer, and of each word its hash, first byte and end). A
table has the columns of `Stretches`, with words of the document in place of bytes; `scan` fills the first four in.
"""

import numpy as np

from model.kernels import kernel
from tasks.decontaminate.ngrams import part_at
from tasks.decontaminate.seeds import CHARACTER_KIND, CHARACTER_UNITS, KIND, WORD_UNITS, odd_letters, same_word

HALF_WORDS = 9
"""Shared words from which on several short stretches may be a leak together."""

PART, FIRST, LAST, START, END, LONGEST, UNITS = range(4, 11)
"""Columns of a table: the part of an item, its first shared word and the end, those of the document, the most words in
a row that are equal, and the units shared."""

_LOW_HALF = 0xFFFFFFFF
_TYPO_BITS, _TYPO_BYTES = 2, 4
_KEPT_WORDS, _KEPT_SHARE = 6, 0.6


@kernel
def align(document, count, match, index, origin, posts, stamps, table):
    """Align an item, whose words begin at `origin`, from each of its seeds, `posts`; writes its stretches to a table
    and returns how many: 0 where they are too few words to be a leak.

    stamps[i] = 2 * match + 1 marks the item's word i as shared, 2 * match as a number that is another number.
    """
    item_words, letters, part_first, block_part = index.words, index.letters, index.part_first, index.block_part
    found = total = 0
    large = False
    for post in posts:
        word, place = post >> 32, (post & _LOW_HALF) >> 1
        known = found == table.shape[0]
        for other in range(max(0, found - 8), found):
            known |= (
                table[other, START] <= word < table[other, END] and table[other, FIRST] <= place < table[other, LAST]
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
        unit = CHARACTER_UNITS if item_words[place] & KIND == CHARACTER_KIND else WORD_UNITS
        length = unit * (last - first - 1)
        if length < _KEPT_WORDS * WORD_UNITS and length < _KEPT_SHARE * unit * (high - low):
            continue
        units = mark(document, item_words, letters, first_word + 1, last_word, first + 1, last, origin, match, stamps)
        table[found, PART], table[found, FIRST], table[found, LAST] = part, first + 1, last
        table[found, START], table[found, END] = first_word + 1, last_word
        table[found, LONGEST], table[found, UNITS] = run, units
        found += 1
        total += units
        large |= length >= _KEPT_SHARE * unit * (high - low)
    return found if large or total >= HALF_WORDS * WORD_UNITS else 0


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
    if one & KIND != 0 or other & KIND != 0 or ends[word] - starts[word] < _TYPO_BYTES:
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
def mark(document, item_words, letters, word, last_word, place, last, origin, match, stamps):
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
                kind = item_words[place] & KIND
                if equal:
                    units += CHARACTER_UNITS if kind == CHARACTER_KIND else WORD_UNITS
            word += 1
            place += 1
            continue
        by_word, by_place = _skip(document, last_word, word, item_words, letters, last, place, 1)
        word += by_word if by_word or by_place else 1
        place += by_place if by_word or by_place else 1
    return units
