"""Rules that drop a document by counts and shares: each with what it measures, its limit and where that comes from.

- Gopher (Rae et al. 2021, appendix A.1.1 and A.1.2): quality and repetition.
- C4 (Raffel et al. 2020, section 2.2): the rules that drop a page; those that drop lines are edits in `edits/lines.py`.
- FineWeb (Penedo et al. 2024, sections 3.3 and 3.6): confidence of the identified language, pages that are lists,
  repeat lines, or consist of short ones. Limits are the paper's; the published pipeline (datatrove) has 0.01 for
  characters in repeated lines, and a fourth rule, line feeds per word, which the paper does not name.
- Source code: lines as in Codex (Chen et al. 2021, 3.1), characters as in StarCoder (Li et al. 2023). They find data,
  minified and generated files.
- Kinds of text: what is left of a text that a person would read, and what repeats. They measure the structure of a text
  (`kernels/structure_counts.py`), so code blocks, tables, headings, lists and dashes of dialogue are neither repetition
  nor bullets. There is no largest length: chunk packs documents of any length. A limit lies where labelled documents
  (benchmarks/labels) beyond it are bad and hardly one is good; comments name what is close to it.

A measure returns a value for every document of a batch, NaN where the rule does not apply. Where a paper counts English
words, scripts written without spaces are counted by characters per word, and rules about the length of words do not
apply to them. Kernels are not loaded here, so that a recipe is checked without them.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import regex

from tasks.clean.kernels import structure_counts as st
from tasks.clean.kernels import text_counts as tc
from tasks.clean.kernels.text_counts import share

if TYPE_CHECKING:
    from tasks.clean.kernels.measurements import Measurements
    from tasks.clean.structure import Structure

PARAGRAPH_CHARACTERS = 3000
"""Characters of sentences, some five paragraphs, from which on rules on shares do not apply: long pages of
documentation have many links, tables and figures."""

EXPLAINED_CHARACTERS = 400
"""Characters of sentences, one paragraph, from which on a table of numbers is explained."""

COMMAND_WORDS = 4
"""Words that an example of a command is worth in a list of them."""

_BOILERPLATE = (
    "lorem ipsum",
    "a clear and concise description",
    "redistribution and use in source and binary",
    "permission is hereby granted",
    "for the use of anyone anywhere",
    "page not found",
    "enable javascript",
    "enable cookies",
    "been written yet",
    "under construction",
    "may refer to",
    "may also refer to",
)
"""Phrases of templates, licences, error pages, and pages that only point to another, in lower case."""

_TEMPLATE = re.compile(r"^(?:title|name): .*(?:template|шаблон|模板|bug report|feature request)", re.I | re.M)
"""The title of a template in front matter."""

_SCRIPTS_WITH_STOP_WORDS = regex.compile(r"[\p{Latin}\p{Cyrillic}\p{Han}\p{Hiragana}\p{Katakana}]")
_LETTERS = regex.compile(r"\p{L}")
_SAMPLE_CHARACTERS = 2000
_NOT_ALPHANUMERIC = re.compile(r"[\W_]+")


@dataclass(frozen=True)
class Failures:
    """Rows of documents that fail a rule, in order, with the measured values, or reasons in place of a value."""

    rows: np.ndarray
    values: np.ndarray
    reasons: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CountedRule:
    """A rule that measures a whole batch at once; a value below the limit fails where `at_least`, else one above it."""

    name: str
    limit: float
    """Used where a recipe sets no other."""
    measure: "Callable[[Measurements, float], np.ndarray]"
    """Given the limit too: a measure may stop early once it is certain on which side of it the value lies."""
    at_least: bool = False

    def failures(self, measurements: "Measurements", limit: float) -> Failures:
        """Return which of many documents fail."""
        values = self.measure(measurements, limit)
        fails = values < limit if self.at_least else values > limit
        rows = np.flatnonzero(fails & measurements.wanted)
        return Failures(rows, values[rows])


Measure = Callable[["Measurements"], np.ndarray]


def _min(name: str, limit: float, measure: Measure) -> CountedRule:
    return CountedRule(name, limit, lambda m, _limit: measure(m), at_least=True)


def _max(name: str, limit: float, measure: Measure) -> CountedRule:
    return CountedRule(name, limit, lambda m, _limit: measure(m))


def _per_word(count: int) -> Measure:
    return lambda m: share(m.count_of(count), m.words)


def _of_lines(count: int) -> Measure:
    return lambda m: share(m.count_of(count), m.count_of(tc.LINES))


def _top_gram(n: int, limit: float) -> CountedRule:
    """Limit the share of characters in the most frequent n-gram of words."""
    return CountedRule(f"gopher_top_{n}_gram", limit, lambda m, enough: m.top_gram_share(n, enough))


def _duplicate_grams(name: str, n: int, limit: float) -> CountedRule:
    """Limit the share of characters in n-grams of words that repeat an earlier one."""
    return CountedRule(name, limit, lambda m, enough: m.repeated_gram_share(n, enough))


def _mean_word_length(m: "Measurements") -> np.ndarray:
    return np.where(m.is_unsegmented, np.nan, share(m.characters, m.units))


def _stop_words(m: "Measurements", limit: float) -> np.ndarray:
    """Return the number of distinct stop words of the document's language in it.

    Where the language is unknown, the language whose list fits best counts. NaN where there is no list for the language
    or, the language being unknown, for the script.
    """
    languages = m.languages
    seen = m.stop_words_seen(languages)
    unknown = m.wanted & np.array([language is None for language in languages])
    if unknown.any():
        most = m.max_stop_words_seen
        for row in np.flatnonzero(unknown & (most < limit)).tolist():
            sample = m.texts.text(row)[:_SAMPLE_CHARACTERS]
            if 2 * len(_SCRIPTS_WITH_STOP_WORDS.findall(sample)) < len(_LETTERS.findall(sample)):
                most[row] = np.nan
        seen = np.where(unknown, most, seen)
    return seen


def _of_texts(measure: Callable[[str], float]) -> Measure:
    """Return the measure of single texts as one of a batch."""

    def measure_all(m: "Measurements") -> np.ndarray:
        values = np.full(len(m.texts), np.nan)
        for row in np.flatnonzero(m.wanted).tolist():
            values[row] = measure(m.texts.text(row))
        return values

    return measure_all


def _mean_line(text: str) -> float:
    text = text.rstrip("\n")
    return (len(text) - text.count("\n")) / (text.count("\n") + 1)


def _longest_line(text: str) -> float:
    return max(map(len, text.split("\n")))


def _alphanumeric_share(m: "Measurements") -> np.ndarray:
    """Return the share of letters and digits among all characters but whitespace around lines."""
    return share(_of_texts(lambda text: len(_NOT_ALPHANUMERIC.sub("", text)))(m), m.count_of(tc.LINE_CHARACTERS))


def _unfinished_words(m: "Measurements") -> np.ndarray:
    """Return the words of texts without any sentence; NaN for others."""
    return np.where(m.structure.count_of(st.SENTENCES) == 0, m.text_words, np.nan)


def _open_end_lines(m: "Measurements") -> np.ndarray:
    """Return the lines of a text that ends with a colon or a question, after a title; NaN for others.

    What the last line announces or asks is missing.
    """
    lines = m.structure.lines()
    is_open = (m.structure.count_of(st.OPEN_END) > 0) & (lines >= 2) & (m.structure.count_of(st.FINISHED_LINES) < lines)
    return np.where(is_open, lines, np.nan)


def _content(m: "Measurements") -> np.ndarray:
    """Return the share of characters in sentences and long lines, without links, tags and lists of references.

    An ideograph counts as three. Code and tables are left out; where they are more than half of the text, the rule does
    not apply.
    """
    structure = m.structure
    characters = structure.characters(st.TEXT, st.DIALOGUE, st.LIST, st.HEADING, st.LABEL)
    other = structure.characters(st.CODE, st.TABLE)
    content = _in_letters(structure, structure.count_of(st.CONTENT_CHARACTERS))
    value = share(content, np.maximum(_in_letters(structure, characters), 1))
    return np.where((2 * other > structure.characters()) | _has_content(m), np.nan, value)


def _digits(m: "Measurements") -> np.ndarray:
    """Return the digits per letter or digit; NaN for texts with at least EXPLAINED_CHARACTERS in sentences."""
    digits = m.structure.count_of(st.DIGITS)
    value = share(digits, digits + m.structure.count_of(st.LETTERS))
    return np.where(_has_content(m, EXPLAINED_CHARACTERS), np.nan, value)


def _of_characters(count: int) -> Measure:
    """Measure a count per character; NaN for texts with several paragraphs."""
    return lambda m: np.where(_has_content(m), np.nan, share(m.structure.count_of(count), m.structure.characters()))


def _has_content(m: "Measurements", characters: int = PARAGRAPH_CHARACTERS) -> np.ndarray:
    """Return which texts have at least that many characters of sentences."""
    return _in_letters(m.structure, m.structure.count_of(st.CONTENT_CHARACTERS)) >= characters


def _in_letters(structure: "Structure", characters: np.ndarray) -> np.ndarray:
    """Return numbers of characters in which an ideograph counts as three, since it says as much as a few letters."""
    return characters + 2 * np.minimum(characters, structure.count_of(st.IDEOGRAPHS))


def _letters(m: "Measurements") -> np.ndarray:
    """Return the share of characters outside code and tables that are letters outside links and tags.

    An ideograph counts as three.
    """
    structure = m.structure
    characters = structure.characters(st.LABEL, st.TEXT, st.DIALOGUE, st.LIST, st.HEADING, st.RULE)
    letters = _in_letters(structure, structure.count_of(st.TEXT_LETTERS))
    return np.where(_has_content(m), np.nan, share(letters, _in_letters(structure, characters)))


def _per_text_word(count: int) -> Measure:
    return lambda m: share(m.structure.count_of(count), np.maximum(m.text_words, 1))


def _table_words(m: "Measurements") -> np.ndarray:
    """Return the words, where each block of code after the first counts as COMMAND_WORDS.

    A page that only says what a command is an alias of shows one.
    """
    return m.text_words + COMMAND_WORDS * np.maximum(m.structure.count_of(st.CODE_BLOCKS) - 1, 0)


def _checkboxes(m: "Measurements") -> np.ndarray:
    """Return the share of lines that are items of a checklist; 0 for fewer than three items.

    NaN where lists are less than half of the text: a checklist may follow the text that it belongs to.
    """
    structure = m.structure
    count = structure.count_of(st.CHECKBOXES)
    value = share(np.where(count < 3, 0, count), structure.lines())
    return np.where(2 * structure.characters(st.LIST) < structure.characters(), np.nan, value)


def _empty_headings(m: "Measurements") -> np.ndarray:
    """Return the share of lines that are headings with nothing below them."""
    return share(m.structure.count_of(st.EMPTY_HEADINGS), m.structure.lines())


def _boilerplate(m: "Measurements", limit: float) -> np.ndarray:
    """Return the words of a text with a phrase of licences, templates or error pages; NaN where it has none.

    Texts of at least `limit` words are not searched.
    """
    found = np.full(len(m.texts), np.nan)
    for row in np.flatnonzero(m.wanted & (m.text_words < limit)).tolist():
        text = m.texts.text(row).lower()
        if any(phrase in text for phrase in _BOILERPLATE) or (text.startswith("---") and _TEMPLATE.search(text)):
            found[row] = m.text_words[row]
    return found


def _rules() -> Iterator[CountedRule]:
    # FineWeb, 3.3: the limit for English, by its language identifier
    yield _min("language_confidence", 0.65, lambda m: m.language_confidences)
    # Gopher, quality (A.1.1)
    yield _min("gopher_words_min", 50, lambda m: m.words)
    yield _max("gopher_words_max", 100_000, lambda m: m.words)
    yield _min("gopher_mean_word_min", 3, _mean_word_length)
    yield _max("gopher_mean_word_max", 10, _mean_word_length)
    yield _max("gopher_hashes", 0.1, _per_word(tc.HASHES))
    yield _max("gopher_ellipses", 0.1, _per_word(tc.ELLIPSES))
    yield _max("gopher_bullet_lines", 0.9, _of_lines(tc.BULLET_LINES))
    yield _max("gopher_ellipsis_lines", 0.3, _of_lines(tc.ELLIPSIS_LINES))
    yield _min("gopher_alphabetic_words", 0.8, lambda m: share(m.count_of(tc.ALPHABETIC_UNITS), m.units))
    yield CountedRule("gopher_stop_words", 2, _stop_words, at_least=True)
    # Gopher, repetition (A.1.2, table A1)
    yield _max("gopher_duplicate_lines", 0.30, lambda m: m.repeated_lines[0])
    yield _max("gopher_duplicate_paragraphs", 0.30, lambda m: m.repeated_paragraphs[0])
    yield _max("gopher_duplicate_line_characters", 0.20, lambda m: m.repeated_lines[1])
    yield _max("gopher_duplicate_paragraph_characters", 0.20, lambda m: m.repeated_paragraphs[1])
    for n, limit in ((2, 0.20), (3, 0.18), (4, 0.16)):
        yield _top_gram(n, limit)
    for n, limit in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10)):
        yield _duplicate_grams(f"gopher_duplicate_{n}_grams", n, limit)
    # C4. In its preset the paper's sign of code, `{`, is left out, so that technical prose is kept.
    yield _min("c4_sentences", 3, lambda m: m.count_of(tc.SENTENCES))
    yield _max("c4_lorem_ipsum", 0, lambda m: m.count_of(tc.LOREM_IPSUM))
    yield _max("c4_curly_bracket", 0, lambda m: m.count_of(tc.OPENING_BRACES))
    # FineWeb, 3.6; the last is in its published pipeline only
    yield _min("fineweb_finished_lines", 0.12, _of_lines(tc.FINISHED_LINES))
    yield _max("fineweb_short_lines", 0.67, _of_lines(tc.SHORT_LINES))
    yield _max("fineweb_repeated_line_characters", 0.1, lambda m: m.repeated_lines[1])
    yield _max("fineweb_line_feeds", 0.3, _per_word(tc.LINE_FEEDS))
    # Codex for lines, StarCoder for characters
    yield _max("code_mean_line", 100, _of_texts(_mean_line))
    yield _max("code_longest_line", 1000, _of_texts(_longest_line))
    yield _min("code_alphanumeric", 0.25, _alphanumeric_share)
    # Kinds
    yield _min("kind_words", 7, lambda m: m.text_words)  # a message or a verse of two clauses
    yield _min("kind_table_words", 22, _table_words)  # a command sheet with two entries
    yield _min("kind_page_words", 30, lambda m: m.text_words)  # the entry of one function in a reference has 32
    # A page that explains one command has 36, one that only names its tabs 30.
    yield _min("kind_web_words", 35, lambda m: m.text_words)
    yield _min("kind_open_end", 4, _open_end_lines)  # a title and a sentence or two that announce what is missing
    yield _min("kind_unfinished_words", 12, _unfinished_words)  # titles and reactions have fewer, and no full stop
    yield _min("kind_letters", 0.58, _letters)  # prose has 0.75 and more, a page full of links 0.6
    yield _max("kind_digits", 0.35, _digits)  # a table of dates has 0.25
    yield _max("kind_links", 0.5, _of_characters(st.LINK_CHARACTERS))  # references with a sentence each have 0.4
    yield _max("kind_table_links", 0.78, _of_characters(st.LINK_CHARACTERS))  # a table of linked functions has 0.77
    yield _max("kind_data", 0.3, _of_characters(st.RUN_CHARACTERS))  # logs and signatures of functions have a tenth
    yield _min("kind_content", 0.25, _content)  # a reference of short lines has 0.25, menus and titles have 0
    yield _max("kind_placeholders", 0.1, _per_text_word(st.PLACEHOLDERS))  # a rare word replaced now and then: 0.05
    yield _max("kind_checkboxes", 0.2, _checkboxes)
    yield _max("kind_empty_headings", 0.2, _empty_headings)  # titles of parts above titles of chapters are 0.1
    yield _max("kind_handles", 0.25, _per_text_word(st.HANDLES))  # a message to one or two persons
    yield CountedRule("kind_boilerplate", 600, _boilerplate, at_least=True)  # longer texts quote a licence or a notice
    # Refrains and forms repeat a third.
    yield _max("kind_repeated_lines", 0.5, lambda m: share(m.repeated_text_lines[1], m.structure.characters()))
    yield _duplicate_grams("kind_repeated_words", 5, 0.3)  # twice Gopher's: terms and phrases of a manual repeat


RULES = {rule.name: rule for rule in _rules()}
"""Rules by name, in the order in which they run."""
