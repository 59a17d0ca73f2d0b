"""One pass over the UTF-8 bytes of documents that counts what their lines are: text, code, tables, headings, lists.

A line gets one of the line kinds below, by its first characters, the fence around it and the signs in it. Characters
are counted without whitespace. The kernel looks at bytes instead of code points, which is enough to distinguish letters
from signs in most scripts, since punctuation, symbols and ideographs have lead bytes of their own.

Lines of text, dialogue and labels also leave their hash and length, from which `repetition.repeated_blocks` finds
lines that repeat. Code, tables, headings and lists repeat lines without being repetitive.
"""

import numpy as np

from model.kernels import kernel
from tasks.clean.kernels import line_signs as ls
from tasks.clean.kernels import structure_counts as st
from tasks.clean.kernels.counting import HASH_BASIS, HASH_MULTIPLIER

_SHIFT = np.uint64(32)


@kernel
def scan_structure(data, begins, ends, wanted, counts, hashes, lengths, firsts, place):
    """Fill a row of `counts` (zeros before) for each wanted text.

    The hashes and lengths of lines of TEXT, DIALOGUE and LABEL are written from `place` on, those of a text from
    `firsts[text]` on; returns the place after the last one.
    """
    for text in range(len(begins)):
        if wanted[text]:
            firsts[text] = place
            place = _scan_text(data, begins[text], ends[text], counts[text], hashes, lengths, place)
    return place


@kernel
def _scan_text(data, begin, end, counts, hashes, lengths, place):
    position = begin
    fence = np.uint8(0)
    literal = -1
    in_doctest = in_paragraph = has_begun = after_heading = in_references = False
    end_of_front = ls.end_of_front_matter(data, begin, end)
    before = st.BLANK
    words_before = characters_before = 0
    counts[st.MARKUP_START] = ls.starts_with_markup(data, begin, end)
    while position < end:
        # The beginning of the line
        indent = 0
        while position < end and (data[position] == ord(" ") or data[position] == ord("\t")):
            indent += 4 if data[position] == ord("\t") else 1
            position += 1
        first = position
        # Its characters
        characters = letters = ideographs = words = digits = signs = links = tags = long_runs = 0
        columns = run = names = pipes = gaps = tight_commas = parentheses = calls = equals = questions = entities = (
            placeholders
        ) = handles = math = wiki = chat = 0
        sentences = in_sentences = 0
        since_words, since_characters = words_before, characters_before
        dollars = 0
        bracket = -1
        # Where one has no end on the line, no later one has: the line is not searched for each.
        targets_end = templates_end = True
        is_in_word = False
        skip = line_end = position
        last = last_byte = np.uint8(0)
        last_class = ls.SPACE
        state = HASH_BASIS
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
            state = (state ^ np.uint64(byte)) * HASH_MULTIPLIER
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
                        state = (state ^ np.uint64(data[following])) * HASH_MULTIPLIER
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
                        signs += second == 0xA7 or second == 0xAC
                        is_in_word = False
                    else:
                        letters += 1
                        if not is_in_word:
                            words += 1
                            since_words += 2
                            is_in_word = True
                        position += 1
                        state = (state ^ np.uint64(data[position])) * HASH_MULTIPLIER
                        while position + 2 < end and 0xC3 <= data[position + 1] < 0xE0:
                            state = (state ^ np.uint64(data[position + 1])) * HASH_MULTIPLIER
                            state = (state ^ np.uint64(data[position + 2])) * HASH_MULTIPLIER
                            position += 2
                            letters += 1
                            characters += 1
                            since_characters += 1
                            columns += 1
                        byte = data[position]
                elif byte == 0xE2:
                    is_in_word = False
                    if second >= 0x88 and second <= 0x8B:
                        math += 1
                    elif second == 0x96 and data[position + 2] == 0xA1:
                        placeholders += 1
                    elif second >= 0x98 and second <= 0x9E:
                        chat += 1
                    elif second == 0x80 and data[position + 2] == 0xA6:
                        if since_words >= 2 * st.SENTENCE_WORDS:
                            sentences += 1
                            in_sentences += since_characters
                        since_words = since_characters = 0
                elif byte == 0xEF or (byte == 0xE3 and second == 0x80):
                    is_in_word = False
                    columns += 1
                    third = data[position + 2]
                    questions += byte == 0xEF and third == 0x9F
                    placeholders += byte == 0xEF and second == 0xBF and third == 0xBD
                    if (byte == 0xE3 and third == 0x82) or (byte == 0xEF and (third == 0x81 or third == 0x9F)):
                        if since_words >= 2 * st.SENTENCE_WORDS:
                            sentences += 1
                            in_sentences += since_characters
                        since_words = since_characters = 0
                elif byte >= 0xEA and byte <= 0xED:
                    letters += 1
                    columns += 1
                    if not is_in_word:
                        words += 1
                        since_words += 2
                        is_in_word = True
                elif byte < 0xEA or (byte == 0xF0 and second >= 0xA0):
                    letters += 1
                    ideographs += 1
                    columns += 1
                    since_words += 1
                    is_in_word = False
                elif byte == 0xF0:
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
        # What it is
        if characters == 0:
            counts[st.LINES + st.BLANK] += 1
            in_doctest = in_paragraph = False
            words_before = characters_before = 0
            before = st.BLANK
            continue
        byte = data[first]
        has_text = letters + digits > 0
        is_fence = (
            (byte == ord("`") or byte == ord("~"))
            and first + 2 < end
            and data[first + 1] == byte
            and data[first + 2] == byte
        )
        if literal >= 0 and indent <= literal:
            literal = -1
        kind_of_line = st.TEXT
        if first < end_of_front:
            kind_of_line = st.RULE
        elif is_fence and (fence == 0 or fence == byte):
            fence = byte if fence == 0 else np.uint8(0)
            kind_of_line = st.CODE
        elif fence != 0 or literal >= 0 or ls.starts(data, first, end, ord(">"), ord(">"), ord(">")):
            in_doctest |= fence == 0 and literal < 0
            kind_of_line = st.CODE
        elif in_doctest:
            kind_of_line = st.CODE
        elif not has_text:
            if links or tags:
                kind_of_line = st.LABEL
            elif pipes:
                kind_of_line = st.TABLE
            elif ls.is_brace(byte) and characters <= 4:
                kind_of_line = st.CODE
                counts[st.CODE_SIGNS] += 1
            else:
                kind_of_line = st.RULE
        elif letters == 0:
            kind_of_line = st.TABLE
        elif byte == ord("`") and last == ord("`"):
            kind_of_line = st.CODE
        elif tags * 10 >= characters * 8:
            kind_of_line = st.LABEL
        elif (
            (byte == ord("#") and ls.ends_heading_mark(data, first, end, ord("#")))
            or (byte == ord("=") and last == ord("="))
            or (sentences == 0 and ls.CLASSES[byte] == ls.DIGIT and ls.is_numbered_title(data, first, end))
        ):
            kind_of_line = st.HEADING
        elif ls.is_dialogue(data, first, end):
            kind_of_line = st.DIALOGUE
        elif (
            byte == ord("|")
            or (pipes >= 2 and wiki == 0 and math == 0)
            or (byte == ord("+") and last == ord("+"))
            or gaps >= 2
        ):
            kind_of_line = st.TABLE
        elif ls.is_item(data, first, end):
            kind_of_line = st.LIST
        elif (byte == ord(".") and ls.starts(data, first, end, ord("."), ord("."), ord(" "))) or (
            byte == ord(":") and letters > 1
        ):
            kind_of_line = st.LABEL
        elif wiki == 0 and math == 0 and sentences == 0 and entities == 0:
            if tight_commas >= 3 and words <= 3 * (tight_commas + 1):
                kind_of_line = st.TABLE
            elif (
                ls.ends_statement(last, last_byte, signs + parentheses)
                or ls.begins_statement(data, first, end)
                or 5 * (signs - pipes - dollars) >= characters
                or (calls and ls.is_open_end(last))
                or (equals and last != ord("=") and (calls or equals + 1 >= words))
            ):
                kind_of_line = st.CODE
                counts[st.CODE_SIGNS] += 1
            elif indent >= 4 and before != st.LIST and (before == st.CODE or 12 * signs >= characters):
                kind_of_line = st.CODE
        if last == ord(":") and fence == 0 and literal < 0 and ls.opens_literal(data, first, line_end):
            literal = indent
        counts[st.LINES + kind_of_line] += 1
        counts[st.CHARACTERS + kind_of_line] += characters
        counts[st.LETTERS] += letters
        counts[st.IDEOGRAPHS] += ideographs
        counts[st.DIGITS] += digits
        counts[st.LINK_CHARACTERS] += links
        counts[st.TAG_CHARACTERS] += tags
        counts[st.PLACEHOLDERS] += placeholders
        if kind_of_line != st.RULE and kind_of_line != st.TABLE:
            counts[st.RUN_CHARACTERS] += long_runs
        if kind_of_line == st.CODE:
            counts[st.CODE_BLOCKS] += before != st.CODE and (fence != 0) == is_fence
            words_before = characters_before = 0
            after_heading = False
            in_paragraph = False
            counts[st.OPEN_END] = 0
            before = st.CODE
            continue
        counts[st.TEXT_LETTERS] += letters if kind_of_line != st.TABLE else 0
        counts[st.WORDS] += 0 if first < end_of_front else words
        counts[st.WIKI_SIGNS] += wiki
        counts[st.MATH_SIGNS] += math + dollars // 2
        counts[st.CHAT_SIGNS] += chat + handles
        counts[st.HANDLES] += handles
        if kind_of_line != st.DIALOGUE and words + ideographs > 2:
            is_question = last == ord("?") or (questions > 0 and kind_of_line == st.HEADING)
            counts[st.QUESTION_LINES] += is_question or ls.ends_with_wide_question(data, first, line_end)
            if not has_begun:
                counts[st.FIRST_QUESTION] = counts[st.QUESTION_LINES]
        counts[st.ASKING_LINES] += ls.begins_with_word(data, first, end, ls.ASKING, ls.ASKING_BOUNDS)
        if kind_of_line == st.HEADING or not has_begun:
            in_references = ls.begins_with_word(data, first, end, ls.REFERENCES, ls.REFERENCE_BOUNDS)
            counts[st.ASKING_TITLES] += ls.begins_with_word(data, first, end, ls.TITLES, ls.TITLE_BOUNDS)
        has_begun = True
        if not in_paragraph:
            counts[st.PARAGRAPHS] += 1
            in_paragraph = True
        if st.TEXT <= kind_of_line <= st.LIST:
            counts[st.SENTENCES] += sentences
            counts[st.SENTENCE_CHARACTERS] += in_sentences
            is_long = columns + words - links - tags > st.CONTENT_LINE
            if not in_references:
                counts[st.CONTENT_CHARACTERS] += (
                    max(characters - links - tags, 0) if is_long else min(in_sentences, characters)
                )
            if columns + words > st.MIN_WRAPPED:
                words_before, characters_before = since_words, since_characters
            else:
                words_before = characters_before = 0
        else:
            words_before = characters_before = 0
        if st.LABEL <= kind_of_line <= st.DIALOGUE:
            hashes[place] = state ^ (state >> _SHIFT)
            lengths[place] = characters
            place += 1
        if st.TEXT <= kind_of_line <= st.DIALOGUE:
            is_short, is_capital = columns + words <= st.SHORT_LINE, ls.is_capital(data, first)
            counts[st.SHORT_LINES] += is_short
            counts[st.CAPITAL_LINES] += is_capital
            if is_short and not is_capital:
                counts[st.SHORT_WORDS] += ls.short_words(data, first, line_end)
            counts[st.FINISHED_LINES] += ls.ends_with_punctuation(data, first, line_end)
            counts[st.CHAT_LINES] += ls.is_chat(data, first, line_end)
            counts[st.SPEAKER_LINES] += ls.is_speaker(data, first, line_end)
        if kind_of_line == st.LIST:
            counts[st.CHECKBOXES] += ls.is_checkbox(data, first, line_end)
        if kind_of_line == st.HEADING and ls.CLASSES[byte] != ls.DIGIT:
            counts[st.EMPTY_HEADINGS] += after_heading
            after_heading = True
        elif kind_of_line != st.RULE:
            after_heading = False
        counts[st.OPEN_END] = last == ord(":") or last == ord("?") or ls.ends_with_wide_question(data, first, line_end)
        before = kind_of_line
    counts[st.EMPTY_HEADINGS] += after_heading
    return place
