"""One pass over the UTF-8 bytes of documents that counts what their lines are: text, code, tables, headings, lists.

A line gets one of the kinds of `structure_counts`, by its first characters, the fence around it and the signs in it.

Lines of text, dialogue and labels also leave their hash and length, from which `repetition.repeated_blocks` finds
lines that repeat. Code, tables, headings and lists repeat lines without being repetitive.
"""

import numpy as np

from model.kernels import inlined_kernel, kernel
from tasks.clean.kernels import line_signs as ls
from tasks.clean.kernels import structure_counts as st
from tasks.clean.kernels.line_reader import read_line

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
        line = read_line(data, position, end, words_before, characters_before)
        position = line.after
        words_before = characters_before = 0
        if line.characters == 0:
            counts[st.LINES + st.BLANK] += 1
            in_doctest = in_paragraph = False
            before = st.BLANK
            continue

        byte = data[line.first]
        is_fence = (byte == ord("`") or byte == ord("~")) and ls.starts(data, line.first, end, byte, byte, byte)
        if literal >= 0 and line.indent <= literal:
            literal = -1
        if line.first < end_of_front:
            kind = st.RULE
        elif is_fence and (fence == 0 or fence == byte):
            fence = byte if fence == 0 else np.uint8(0)
            kind = st.CODE
        elif fence != 0 or literal >= 0 or ls.starts(data, line.first, end, ord(">"), ord(">"), ord(">")):
            in_doctest |= fence == 0 and literal < 0
            kind = st.CODE
        elif in_doctest:
            kind = st.CODE
        else:
            kind, is_statement = _kind_of_line(data, line, end, before)
            counts[st.CODE_SIGNS] += is_statement
        if line.last == ord(":") and fence == 0 and literal < 0 and ls.opens_literal(data, line.first, line.end):
            literal = line.indent

        _count_characters(counts, line, kind)
        if kind == st.CODE:
            counts[st.CODE_BLOCKS] += before != st.CODE and (fence != 0) == is_fence
            counts[st.OPEN_END] = 0
            after_heading = in_paragraph = False
            before = st.CODE
            continue
        _count_signs(data, counts, line, kind, has_begun, line.first < end_of_front)
        counts[st.ASKING_LINES] += ls.begins_with_word(data, line.first, end, ls.ASKING, ls.ASKING_BOUNDS)
        if kind == st.HEADING or not has_begun:
            in_references = ls.begins_with_word(data, line.first, end, ls.REFERENCES, ls.REFERENCE_BOUNDS)
            counts[st.ASKING_TITLES] += ls.begins_with_word(data, line.first, end, ls.TITLES, ls.TITLE_BOUNDS)
        has_begun = True
        if not in_paragraph:
            counts[st.PARAGRAPHS] += 1
            in_paragraph = True
        if st.TEXT <= kind <= st.LIST:
            _count_sentences(counts, line, in_references)
            if line.columns + line.words > st.MIN_WRAPPED:
                words_before, characters_before = line.since_words, line.since_characters
        if st.LABEL <= kind <= st.DIALOGUE:
            hashes[place] = line.hash ^ (line.hash >> _SHIFT)
            lengths[place] = line.characters
            place += 1
        if st.TEXT <= kind <= st.DIALOGUE:
            _count_form(data, counts, line)
        if kind == st.LIST:
            counts[st.CHECKBOXES] += ls.is_checkbox(data, line.first, line.end)
        if kind == st.HEADING and ls.CLASSES[byte] != ls.DIGIT:
            counts[st.EMPTY_HEADINGS] += after_heading
            after_heading = True
        elif kind != st.RULE:
            after_heading = False
        counts[st.OPEN_END] = (
            line.last == ord(":") or line.last == ord("?") or ls.ends_with_wide_question(data, line.first, line.end)
        )
        before = kind
    counts[st.EMPTY_HEADINGS] += after_heading
    return place


@inlined_kernel
def _kind_of_line(data, line, end, before):
    """Return the kind of a line that is neither front matter nor in a fence, a literal block or a doctest, and whether
    it is code for its own signs; `before` is the kind of the line before."""
    byte = data[line.first]
    if line.letters + line.digits == 0:
        if line.links or line.tags:
            return st.LABEL, False
        if line.pipes:
            return st.TABLE, False
        is_brace = ls.BRACES[byte] and line.characters <= 4
        return (st.CODE if is_brace else st.RULE), is_brace
    if line.letters == 0:
        return st.TABLE, False
    if byte == ord("`") and line.last == ord("`"):
        return st.CODE, False
    if line.tags * 10 >= line.characters * 8:
        return st.LABEL, False
    if (
        (byte == ord("#") and ls.ends_heading_mark(data, line.first, end, ord("#")))
        or (byte == ord("=") and line.last == ord("="))
        or (line.sentences == 0 and ls.CLASSES[byte] == ls.DIGIT and ls.is_numbered_title(data, line.first, end))
    ):
        return st.HEADING, False
    if ls.is_dialogue(data, line.first, end):
        return st.DIALOGUE, False
    if (
        byte == ord("|")
        or (line.pipes >= 2 and line.wiki == 0 and line.math == 0)
        or (byte == ord("+") and line.last == ord("+"))
        or line.gaps >= 2
    ):
        return st.TABLE, False
    if ls.is_item(data, line.first, end):
        return st.LIST, False
    is_directive = byte == ord(".") and ls.starts(data, line.first, end, ord("."), ord("."), ord(" "))
    if is_directive or (byte == ord(":") and line.letters > 1):
        return st.LABEL, False
    if line.wiki == 0 and line.math == 0 and line.sentences == 0 and line.entities == 0:
        if line.tight_commas >= 3 and line.words <= 3 * (line.tight_commas + 1):
            return st.TABLE, False
        if (
            ls.ends_statement(line.last, line.last_byte, line.signs + line.parentheses)
            or ls.begins_statement(data, line.first, end)
            or 5 * (line.signs - line.pipes - line.dollars) >= line.characters
            or (line.calls and ls.OPEN_ENDS[line.last])
            or (line.equals and line.last != ord("=") and (line.calls or line.equals + 1 >= line.words))
        ):
            return st.CODE, True
        if line.indent >= 4 and before != st.LIST and (before == st.CODE or 12 * line.signs >= line.characters):
            return st.CODE, False
    return st.TEXT, False


@inlined_kernel
def _count_characters(counts, line, kind):
    """Count the characters of a line of any kind."""
    counts[st.LINES + kind] += 1
    counts[st.CHARACTERS + kind] += line.characters
    counts[st.LETTERS] += line.letters
    counts[st.IDEOGRAPHS] += line.ideographs
    counts[st.DIGITS] += line.digits
    counts[st.LINK_CHARACTERS] += line.links
    counts[st.TAG_CHARACTERS] += line.tags
    counts[st.PLACEHOLDERS] += line.placeholders
    if kind != st.RULE and kind != st.TABLE:
        counts[st.RUN_CHARACTERS] += line.long_runs


@inlined_kernel
def _count_signs(data, counts, line, kind, has_begun, is_front):
    """Count words and signs of a line outside code."""
    counts[st.TEXT_LETTERS] += line.letters if kind != st.TABLE else 0
    counts[st.WORDS] += 0 if is_front else line.words
    counts[st.WIKI_SIGNS] += line.wiki
    counts[st.MATH_SIGNS] += line.math + line.dollars // 2
    counts[st.CHAT_SIGNS] += line.chat + line.handles
    counts[st.HANDLES] += line.handles
    if kind != st.DIALOGUE and line.words + line.ideographs > 2:
        is_question = line.last == ord("?") or (line.questions > 0 and kind == st.HEADING)
        counts[st.QUESTION_LINES] += is_question or ls.ends_with_wide_question(data, line.first, line.end)
        if not has_begun:
            counts[st.FIRST_QUESTION] = counts[st.QUESTION_LINES]


@inlined_kernel
def _count_sentences(counts, line, in_references):
    """Count the sentences of a line of text, dialogue or a list, and what of it is content."""
    counts[st.SENTENCES] += line.sentences
    counts[st.SENTENCE_CHARACTERS] += line.in_sentences
    if not in_references:
        is_long = line.columns + line.words - line.links - line.tags > st.CONTENT_LINE
        counts[st.CONTENT_CHARACTERS] += (
            max(line.characters - line.links - line.tags, 0) if is_long else min(line.in_sentences, line.characters)
        )


@inlined_kernel
def _count_form(data, counts, line):
    """Count how a line of text or dialogue begins and ends."""
    is_short, is_capital = line.columns + line.words <= st.SHORT_LINE, ls.is_capital(data, line.first)
    counts[st.SHORT_LINES] += is_short
    counts[st.CAPITAL_LINES] += is_capital
    if is_short and not is_capital:
        counts[st.SHORT_WORDS] += ls.short_words(data, line.first, line.end)
    counts[st.FINISHED_LINES] += ls.ends_with_punctuation(data, line.first, line.end)
    if ls.is_chat(data, line.first, line.end):
        counts[st.CHAT_LINES] += 1
        counts[st.SPEAKER_TAG_BYTES] += ls.speaker_tag(data, line.first, line.end)
    counts[st.SPEAKER_LINES] += ls.is_speaker(data, line.first, line.end)
