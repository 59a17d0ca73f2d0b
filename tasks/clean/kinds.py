"""What kind of text a document is, recognised from its structure.

One function of the text's counts (`kernels/structure_counts.py`) and its format decides; a source may set its kind
instead (`clean.kinds`). A kind chooses edits and rules of the preset `auto`, so kinds that are hard to distinguish have
rules that are alike: a short message may be chat or prose, a manual with few examples prose or documentation.
"""

from collections.abc import Sequence

import numpy as np

from tasks.clean.document import CODE as CODE_FORMAT
from tasks.clean.document import KINDS
from tasks.clean.kernels import structure_counts as st
from tasks.clean.structure import Structure

_INDEX = {kind: index for index, kind in enumerate(KINDS)}


def recognise_kinds(structure: Structure, formats: Sequence[str]) -> np.ndarray:
    """Return the kind of each text as an index into `document.KINDS` (int8).

    The first of these that holds decides: the format html or code; formulas; tags and templates; most lines are code;
    a log of messages; short lines as in verse; questions with their answers; tables and lists; names and signs of
    conversations; short lines that go on from each other in lower case, as in free verse; headings, code, links and
    unfinished lines of documentation. All other text is prose.
    """
    count_of = structure.count_of
    characters = np.maximum(structure.characters(), 1)
    lines = np.maximum(structure.lines(), 1)
    words = count_of(st.WORDS) + count_of(st.IDEOGRAPHS) / 2
    text_lines = structure.lines(st.TEXT, st.DIALOGUE)
    some_lines = np.maximum(text_lines, 1)
    paragraphs = np.maximum(count_of(st.PARAGRAPHS), 1)
    is_markdown = np.array([format == "markdown" for format in formats], np.bool_)
    is_page = np.array([format == "html" for format in formats], np.bool_)
    is_code_format = np.array([format == CODE_FORMAT for format in formats], np.bool_)
    in_sentences = count_of(st.SENTENCE_CHARACTERS) / characters
    is_log = (text_lines >= 3) & (count_of(st.CHAT_LINES) >= 0.5 * text_lines)
    # Names of speakers in angle brackets are no markup where there is no other tag.
    is_named_log = is_log & (count_of(st.SPEAKER_TAG_BYTES) == count_of(st.TAG_CHARACTERS))
    tags = np.where(is_named_log, 0, count_of(st.TAG_CHARACTERS) / characters)
    wiki = count_of(st.WIKI_SIGNS) / lines
    finished = count_of(st.FINISHED_LINES) / some_lines
    capital = count_of(st.CAPITAL_LINES) / some_lines
    columns = structure.characters(st.TEXT, st.DIALOGUE) / some_lines
    structured = structure.lines(st.CODE, st.LIST, st.HEADING, st.LABEL, st.TABLE) / lines
    is_plain = structure.lines(st.TEXT, st.DIALOGUE, st.RULE) >= 0.9 * lines
    is_wide = count_of(st.IDEOGRAPHS) > 0.5 * count_of(st.LETTERS)

    is_code = is_code_format | (structure.characters(st.CODE) > 0.7 * characters)
    is_code |= (count_of(st.CODE_SIGNS) >= 0.3 * lines) & (in_sentences < 0.35)
    is_code &= is_code_format | (lines > 1)
    is_maths = (count_of(st.MATH_SIGNS) > 0.06 * words) & ~is_code_format
    is_markup = (tags > 0.3) | (wiki > np.where(is_markdown, 0.5, 0.2))
    is_markup |= (count_of(st.MARKUP_START) > 0) & ((tags > 0.05) | (wiki > 0.1))
    is_asking = (count_of(st.ASKING_LINES) >= 2) & (count_of(st.ASKING_LINES) >= 0.3 * paragraphs)
    is_asking |= (count_of(st.QUESTION_LINES) >= 2) & (count_of(st.QUESTION_LINES) >= 0.12 * paragraphs)
    is_asking |= (count_of(st.FIRST_QUESTION) > 0) & (lines >= 3) & (lines <= 30) & (finished >= 0.3)
    is_asking |= count_of(st.ASKING_TITLES) > 0
    is_table = structure.characters(st.TABLE) + structure.characters(st.LIST) > 0.6 * characters
    is_table |= (structure.lines(st.LIST) >= 0.24 * lines) & (structure.lines(st.CODE) >= 0.24 * lines) & (lines < 40)
    is_talk = (text_lines >= 3) & (count_of(st.SPEAKER_LINES) >= 0.6 * text_lines)
    is_message = is_plain & (lines <= 2) & (characters <= 300) & ~is_markdown & ~is_wide
    is_message &= (count_of(st.CHAT_SIGNS) > 0) | (capital < 1) | (finished < 1)
    is_verse = is_plain & (count_of(st.SHORT_LINES) >= 0.9 * text_lines)
    is_verse &= np.where(
        is_wide,
        np.where(
            columns >= 6,
            (text_lines >= 2) & ((finished >= 0.6) | (structure.lines(st.BLANK) < 0.3 * lines)),
            (text_lines >= 4) & (finished >= 0.6),
        ),
        (text_lines >= 4) & (capital >= 0.7) & (finished >= 0.3) & (columns >= 12),
    ).astype(np.bool_)
    # Menus and lists of links begin their lines with capitals, or have a blank line after each.
    is_free_verse = is_plain & (count_of(st.SHORT_LINES) >= 0.9 * text_lines) & (count_of(st.IDEOGRAPHS) == 0)
    is_free_verse &= (text_lines >= 3) & (paragraphs <= 0.6 * some_lines) & (capital < 0.5)
    is_free_verse &= (words >= 1.5 * text_lines) & (words <= 6 * text_lines) & (count_of(st.SHORT_WORDS) >= 0.2 * words)
    is_documentation = (structured > 0.1) | (is_markdown & ((structured > 0.02) | (count_of(st.LINK_CHARACTERS) > 0)))
    is_documentation |= (lines >= 3) & (finished < 0.7)
    conditions = (
        ("web_page", is_page),
        ("maths", is_maths),
        ("markup", is_markup & ~is_code_format),
        ("code", is_code),
        ("chat", is_log),
        ("verse", is_verse),
        ("question_answer", is_asking),
        ("table", is_table),
        ("chat", is_talk | is_message),
        ("verse", is_free_verse),
        ("documentation", is_documentation),
    )
    chosen = [_INDEX[kind] for kind, _ in conditions]
    return np.select([condition for _, condition in conditions], chosen, _INDEX["prose"]).astype(np.int8)
