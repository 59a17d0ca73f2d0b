"""How the aligned stretches of a match share an item: as a whole, in part, with changed words, or not enough."""

from model.kernels import kernel
from tasks.decontaminate.align import END, FIRST, HALF_WORDS, LAST, LONGEST, PART, START, UNITS, mark
from tasks.decontaminate.seeds import CHARACTER_KIND, CHARACTER_UNITS, KIND, SHORT_SPAN, WORD_UNITS, units_of

WHOLE, RUN, SIMILAR, HALF, SHORT, TOGETHER = range(1, 7)
"""How an item is shared, best first: a whole part; a run of `ngram` words; a part with changed words; half of the words
of a context; a context of few but long words; several parts near each other that are short by themselves."""

NEAR_WORDS = 60
"""Words of a document between two shared stretches of an item from which on they are matches by themselves."""

WHOLE_SHARE = 0.95
HALF_SHARE = 0.42
CHOICE_WORDS = 10
"""Words from which on a choice is evidence without its question."""

LONGER_WORDS = 3
"""Words more than an n-gram's from which on a stretch of a long text is evidence though some words are changed."""

UNSPACED_SHARE, UNSPACED_HALF, UNSPACED_HALF_CHARS = 0.8, 0.5, 16
"""Shares of a part in a script without spaces: all but some of it, or half of the only context."""

SHORT_CHARACTERS, SHORT_WORDS, SHORT_UNSPACED = 25, 3, 7
"""Characters and words from which on a context of fewer words than `short_words` is evidence by itself if rare: the
questions of XCOPA and PARus have four to six words."""

_SHORT_PART = 12


@kernel
def form_of(document, count, item, index, limits, similar_share, origin, match, stamps, table, found):
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
        size = part_first[table[at, PART] + 1] - part_first[table[at, PART]]
        near |= 4 * (table[at, LAST] - table[at, FIRST]) >= 3 * size
    low_word, high_word = table[:found, START].min(), table[:found, END].max()
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
        if near and held < share * whole and last - first <= _SHORT_PART and found < table.shape[0]:
            at = _find_near(words, count, item_words, first, last, low_word, high_word)
            if at >= 0:
                table[found, PART], table[found, FIRST], table[found, LAST] = part, first, last
                table[found, START], table[found, END], table[found, LONGEST] = at, at + last - first, last - first
                table[found, UNITS] = mark(
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
                if table[at, PART] == part and table[at, UNITS] >= run_units + LONGER_WORDS * WORD_UNITS:
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
        if table[at, PART] != part or (unspaced and table[at, LONGEST] < ngram):
            continue
        chain = table[at, LONGEST] + (chain if unspaced and table[at, START] - last_word <= ngram else 0)
        last_word = table[at, END]
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
        characters += word & KIND == CHARACTER_KIND
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
