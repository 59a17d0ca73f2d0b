"""The characters of one line of a text, counted in one pass over its UTF-8 bytes.

The kernel looks at bytes instead of code points, which is enough to distinguish letters from signs in most scripts,
since punctuation, symbols and ideographs have lead bytes of their own.
"""

# pyright: reportArgumentType=false
# In a kernel every number is an integer of numba's; a type checker takes some for arrays and numbers of numpy's.

from typing import NamedTuple

import numpy as np

from model.kernels import inlined_kernel
from tasks.clean.kernels import line_signs as ls
from tasks.clean.kernels import structure_counts as st
from tasks.common.utf8 import FNV_BASIS, GOLDEN


class Line(NamedTuple):
    """What a line consists of. Characters are counted without whitespace; positions are in bytes."""

    first: int  # where its first character is
    end: int  # behind its last character
    after: int  # where the next line begins
    indent: int  # in columns, four for a tab
    last: int  # the first byte of its last character
    last_byte: int
    hash: int  # of its bytes without whitespace
    characters: int
    columns: int  # as characters, an ideograph counts twice
    letters: int
    ideographs: int
    digits: int
    words: int  # runs of letters that are no ideographs
    signs: int  # other than points, commas, quotation marks and the like
    links: int  # characters of addresses, and of links in Markdown
    tags: int  # characters of tags, templates and entities
    long_runs: int  # characters of unbroken runs (`LONG_RUN`)
    gaps: int  # tabs and runs of three spaces within the line
    pipes: int
    dollars: int
    equals: int
    entities: int
    questions: int
    tight_commas: int  # commas without a space behind
    parentheses: int  # opening
    calls: int  # opening parentheses directly behind a word
    math: int
    wiki: int
    chat: int
    handles: int
    placeholders: int
    sentences: int
    in_sentences: int  # characters of these sentences
    since_words: int  # twice the words, plus the ideographs, of the sentence that the line does not end
    since_characters: int


@inlined_kernel
def read_line(data, position, end, words_before, characters_before):
    """Return the `Line` at a position; `words_before` and `characters_before` are of the sentence that goes on in it,
    as `since_words` and `since_characters` of the line before."""
    indent = 0
    while position < end and (data[position] == ord(" ") or data[position] == ord("\t")):
        indent += 4 if data[position] == ord("\t") else 1
        position += 1
    first = position
    characters = columns = letters = ideographs = digits = words = signs = links = tags = long_runs = gaps = 0
    pipes = dollars = equals = entities = questions = tight_commas = parentheses = calls = math = wiki = chat = 0
    handles = placeholders = sentences = in_sentences = 0
    since_words, since_characters = words_before, characters_before
    # Of the run of characters without whitespace: its length, and how many of them join names, as in paths.
    run = names = 0
    bracket = -1
    # Where one has no end on the line, no later one has: the line is not searched for each.
    targets_end = templates_end = True
    is_in_word = False
    skip = line_end = position
    last = last_byte = np.uint8(0)
    last_class = ls.SPACE
    state = FNV_BASIS
    spaces = 0
    while position < end and data[position] != ord("\n"):
        byte = data[position]
        kind = ls.CLASSES[byte]
        if kind == ls.SPACE:
            spaces += 1
            if byte == ord("\t") and characters:
                gaps += 1
            is_in_word = False
            if run >= st.LONG_RUN and 20 * names < run:
                long_runs += run
            run = 0
            last_class = ls.SPACE
            position += 1
            continue
        if spaces > 2 and characters:
            gaps += 1
        spaces = 0
        state = (state ^ np.uint64(byte)) * GOLDEN
        if kind == ls.TAIL:
            position += 1
            line_end = position
            last_byte = byte
            continue
        characters += 1
        since_characters += 1
        columns += 1
        if position < skip:
            last, last_class, last_byte = byte, kind, byte
            position += 1
            line_end = position
            continue
        if ls.LETTER <= kind <= ls.CAPITAL:
            letters += 1
            run += 1
            names = names if run > 1 else 0
            if not is_in_word:
                words += 1
                since_words += 2
                is_in_word = True
                if byte == ord("h") and ls.is_address(data, position, end):
                    skip = ls.end_of_address(data, position, end)
                    links += skip - position
                    run = 0
                    letters -= 1
                    words -= 1
                    since_words -= 2
            if position >= skip:
                # Most of a text is here: letters that only make the word longer.
                following = position + 1
                while following < end and ls.CLASSES[data[following]] == ls.LETTER:
                    state = (state ^ np.uint64(data[following])) * GOLDEN
                    following += 1
                added = following - position - 1
                letters += added
                run += added
                characters += added
                since_characters += added
                columns += added
                position = following - 1
                byte = data[position]
        elif kind == ls.LEAD:
            if run >= st.LONG_RUN and 20 * names < run:
                long_runs += run
            run = 0
            second = data[position + 1]
            if byte < 0xE2:
                if byte == 0xC2:
                    # Latin-1's signs, of which the section sign and the not sign count.
                    signs += second == 0xA7 or second == 0xAC
                    is_in_word = False
                else:
                    # Letters: Latin with accents, Greek, Cyrillic, Hebrew, Arabic, Indic and others up to U+1FFF.
                    letters += 1
                    if not is_in_word:
                        words += 1
                        since_words += 2
                        is_in_word = True
                    position += 1
                    state = (state ^ np.uint64(data[position])) * GOLDEN
                    while position + 2 < end and 0xC3 <= data[position + 1] < 0xE0:
                        state = (state ^ np.uint64(data[position + 1])) * GOLDEN
                        state = (state ^ np.uint64(data[position + 2])) * GOLDEN
                        position += 2
                        letters += 1
                        characters += 1
                        since_characters += 1
                        columns += 1
                    byte = data[position]
            elif byte == 0xE2:
                # Punctuation and symbols, U+2000 to U+2FFF.
                is_in_word = False
                if 0x88 <= second <= 0x8B:  # mathematical operators
                    math += 1
                elif second == 0x96 and data[position + 2] == 0xA1:  # an empty box
                    placeholders += 1
                elif 0x98 <= second <= 0x9E:  # pictures and dingbats
                    chat += 1
                elif second == 0x80 and data[position + 2] == 0xA6:  # an ellipsis ends a sentence
                    if since_words >= 2 * st.SENTENCE_WORDS:
                        sentences += 1
                        in_sentences += since_characters
                    since_words = since_characters = 0
            elif byte == 0xEF or (byte == 0xE3 and second == 0x80):
                # Punctuation of Chinese and Japanese: U+3000 to U+303F and the full-width forms.
                is_in_word = False
                columns += 1
                third = data[position + 2]
                questions += byte == 0xEF and third == 0x9F
                placeholders += byte == 0xEF and second == 0xBF and third == 0xBD
                # Full stop, exclamation mark and question mark
                if (byte == 0xE3 and third == 0x82) or (byte == 0xEF and (third == 0x81 or third == 0x9F)):
                    if since_words >= 2 * st.SENTENCE_WORDS:
                        sentences += 1
                        in_sentences += since_characters
                    since_words = since_characters = 0
            elif 0xEA <= byte <= 0xED:
                # Korean, whose words have spaces between them
                letters += 1
                columns += 1
                if not is_in_word:
                    words += 1
                    since_words += 2
                    is_in_word = True
            elif byte < 0xEA or (byte == 0xF0 and second >= 0xA0):
                # Chinese characters and kana
                letters += 1
                ideographs += 1
                columns += 1
                since_words += 1
                is_in_word = False
            elif byte == 0xF0:
                # Emoji
                chat += 1
                is_in_word = False
        elif kind == ls.DIGIT:
            digits += 1
            run += 1
            names = names if run > 1 else 0
        elif kind == ls.POINT:
            run += 1
            names = (names if run > 1 else 0) + (byte == ord(".") or byte == last_byte)
            if byte == ord("'"):
                chat += is_in_word and ls.is_contraction(data, position, end)
            else:
                is_in_word = False
            following = data[position + 1] if position + 1 < end else np.uint8(ord("\n"))
            if byte == ord(".") or byte == ord("!") or byte == ord("?"):
                if following <= ord(" ") or following == ord('"') or following == ord(")") or following >= 0x80:
                    if since_words >= 2 * st.SENTENCE_WORDS:
                        sentences += 1
                        in_sentences += since_characters
                    since_words = since_characters = 0
                chat += byte != ord(".")
                questions += byte == ord("?")
            elif byte == ord("("):
                parentheses += 1
                calls += ls.LETTER <= last_class <= ls.DIGIT or last == ord("_")
            elif byte == ord(","):
                tight_commas += following > ord(" ") and following < 0x80 and last_class != ls.SPACE
        else:
            signs += 1
            run += 1
            names = (names if run > 1 else 0) + (
                byte == ord("_") or byte == ord("/") or byte == ord("\\") or byte == last_byte
            )
            following = data[position + 1] if position + 1 < end else np.uint8(ord("\n"))
            if byte == ord("_"):
                signs -= is_in_word
            else:
                is_in_word = False
            if byte == ord("["):
                wiki += following == ord("[")
                bracket = characters
            elif byte == ord("]"):
                if following == ord("(") and bracket >= 0:
                    skip = ls.end_of_target(data, position, end) if targets_end else position
                    targets_end = skip > position
                    links += characters - bracket + skip - position
                    run = 0
            elif byte == ord("{"):
                wiki += following == ord("{")
                if following == ord("%"):
                    skip = ls.end_of_template(data, position, end) if templates_end else position
                    templates_end = skip > position
                    tags += skip - position
            elif byte == ord("|"):
                pipes += 1
            elif byte == ord("="):
                equals += 1
            elif byte == ord("&"):
                skip = ls.end_of_entity(data, position, end)
                entities += skip > position
                tags += skip - position
            elif byte == ord("$"):
                dollars += 1
            elif byte == ord("\\"):
                math += (
                    ls.CLASSES[following] == ls.LETTER
                    and position + 2 < end
                    and ls.CLASSES[data[position + 2]] == ls.LETTER
                )
            elif byte == ord("<"):
                skip = ls.end_of_tag(data, position, end)
                if skip - position == 5 and ls.starts(data, position + 1, end, ord("u"), ord("n"), ord("k")):
                    placeholders += 1
                    skip = position
                if ls.starts(data, position + 1, end, ord("m"), ord("a"), ord("t")):
                    math += 2
                tags += skip - position
                if skip > position:
                    run = 0
                    signs -= 1
            elif byte == ord("@") or byte == ord("#"):
                handles += (
                    following > ord("9") and following != ord("@") and (byte == ord("#") or last_class == ls.SPACE)
                )
        last, last_class, last_byte = byte, kind, byte
        position += 1
        line_end = position
    if run >= st.LONG_RUN and 20 * names < run:
        long_runs += run
    position += 1
    return Line(
        first, line_end, position, indent, last, last_byte, state, characters, columns, letters, ideographs, digits,
        words, signs, links, tags, long_runs, gaps, pipes, dollars, equals, entities, questions, tight_commas,
        parentheses, calls, math, wiki, chat, handles, placeholders, sentences, in_sentences, since_words,
        since_characters,
    )  # fmt: skip
