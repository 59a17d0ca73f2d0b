"""Rules of the presets by kind: what is left of a text that a person would read, and what repeats.

They measure the structure of a text (`kernels/structure_counts.py`), so code blocks, tables, headings, lists and dashes
of dialogue are neither repetition nor bullets. There is no largest length: chunk packs documents of any length. Rules
on shares leave a text with several paragraphs of sentences alone, whatever else is in it: long pages of documentation
have many links, tables and figures.

Each measure is one function that returns a value for every document of a batch, NaN where the rule does not apply.
`presets.LIMITS` has the limits and says how they were chosen, `presets.PRESETS` which kinds use a rule.
"""

import re

import numpy as np

from tasks.clean.filters.rule import CountedRule
from tasks.clean.kernels import structure_counts as st
from tasks.clean.kernels.characters import words_of_units
from tasks.clean.kernels.measurements import Measurements, share
from tasks.clean.structure import Structure

PARAGRAPH_CHARACTERS = 3000
"""Characters of sentences, some five paragraphs, from which on rules on shares do not apply."""

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


def words(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the words outside code and front matter; ideographs are counted by characters per word."""
    ideographs = measurements.structure.count_of(st.IDEOGRAPHS)
    return words_of_units(measurements.structure.count_of(st.WORDS) + ideographs, ideographs, 0)


def unfinished_words(measurements: Measurements, limit: float) -> np.ndarray:
    """Return the words of texts without any sentence; NaN for others."""
    return np.where(measurements.structure.count_of(st.SENTENCES) == 0, words(measurements, limit), np.nan)


def open_end_lines(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the lines of a text that ends with a colon or a question, after a title; NaN for others.

    What the last line announces or asks is missing.
    """
    structure = measurements.structure
    lines = structure.lines()
    is_open = (structure.count_of(st.OPEN_END) > 0) & (lines >= 2) & (structure.count_of(st.FINISHED_LINES) < lines)
    return np.where(is_open, lines, np.nan)


def content(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the share of characters in sentences and long lines, without links, tags and lists of references.

    An ideograph counts as three. Code and tables are left out; where they are more than half of the text, the rule does
    not apply.
    """
    structure = measurements.structure
    characters = structure.characters(st.TEXT, st.DIALOGUE, st.LIST, st.HEADING, st.LABEL)
    other = structure.characters(st.CODE, st.TABLE)
    content = _in_letters(structure, structure.count_of(st.CONTENT_CHARACTERS))
    value = share(content, np.maximum(_in_letters(structure, characters), 1))
    return np.where((2 * other > structure.characters()) | _has_paragraphs(measurements), np.nan, value)


def letters(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the share of characters outside code and tables that are letters outside links and tags."""
    structure = measurements.structure
    characters = structure.characters(st.LABEL, st.TEXT, st.DIALOGUE, st.LIST, st.HEADING, st.RULE)
    value = share(structure.count_of(st.TEXT_LETTERS), characters)
    return np.where(_has_paragraphs(measurements), np.nan, value)


def digits(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the digits per letter or digit."""
    count_of = measurements.structure.count_of
    value = share(count_of(st.DIGITS), count_of(st.DIGITS) + count_of(st.LETTERS))
    return np.where(_has_paragraphs(measurements), np.nan, value)


def links(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the share of characters in addresses and the texts of links."""
    return _share(measurements, st.LINK_CHARACTERS)


def data(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the share of characters in unbroken runs of 60 and more: hexadecimal, base64, minified code."""
    return _share(measurements, st.RUN_CHARACTERS)


def _share(measurements: Measurements, count: int) -> np.ndarray:
    """Return a count per character; NaN for texts with several paragraphs."""
    value = share(measurements.structure.count_of(count), measurements.structure.characters())
    return np.where(_has_paragraphs(measurements), np.nan, value)


def _has_paragraphs(measurements: Measurements) -> np.ndarray:
    """Return which texts have at least PARAGRAPH_CHARACTERS characters of sentences."""
    structure = measurements.structure
    return _in_letters(structure, structure.count_of(st.CONTENT_CHARACTERS)) >= PARAGRAPH_CHARACTERS


def _in_letters(structure: Structure, characters: np.ndarray) -> np.ndarray:
    """Return numbers of characters in which an ideograph counts as three, since it says as much as a few letters."""
    return characters + 2 * np.minimum(characters, structure.count_of(st.IDEOGRAPHS))


def repeated_lines(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the share of characters in lines of text that repeat an earlier one."""
    return share(measurements.repeated_text_lines[1], measurements.structure.characters())


def repeated_words(measurements: Measurements, limit: float) -> np.ndarray:
    """Return the share of characters in runs of five words that repeat an earlier one."""
    return measurements.repeated_gram_share(5, enough=limit)


def placeholders(measurements: Measurements, limit: float) -> np.ndarray:
    """Return the signs of lost text (`<unk>`, empty boxes) per word."""
    return share(measurements.structure.count_of(st.PLACEHOLDERS), np.maximum(words(measurements, limit), 1))


def checkboxes(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the share of lines that are items of a checklist; 0 for fewer than three items."""
    count = measurements.structure.count_of(st.CHECKBOXES)
    return share(np.where(count < 3, 0, count), measurements.structure.lines())


def empty_headings(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the share of lines that are headings with nothing below them."""
    return share(measurements.structure.count_of(st.EMPTY_HEADINGS), measurements.structure.lines())


def handles(measurements: Measurements, limit: float) -> np.ndarray:
    """Return the `@names` and `#tags` per word."""
    return share(measurements.structure.count_of(st.HANDLES), np.maximum(words(measurements, limit), 1))


def boilerplate(measurements: Measurements, limit: float) -> np.ndarray:
    """Return the words of a text with a phrase of licences, templates or error pages; NaN where it has none.

    Texts of at least `limit` words are not searched.
    """
    counted = words(measurements, limit)
    found = np.full(len(counted), np.nan)
    for row in np.flatnonzero(measurements.wanted & (counted < limit)).tolist():
        text = measurements.texts.text(row).lower()
        if any(phrase in text for phrase in _BOILERPLATE) or (text.startswith("---") and _TEMPLATE.search(text)):
            found[row] = counted[row]
    return found


KIND_RULES = (
    CountedRule("kind_words", words, at_least=True),
    CountedRule("kind_table_words", words, at_least=True),
    CountedRule("kind_page_words", words, at_least=True),
    CountedRule("kind_web_words", words, at_least=True),
    CountedRule("kind_unfinished_words", unfinished_words, at_least=True),
    CountedRule("kind_open_end", open_end_lines, at_least=True),
    CountedRule("kind_letters", letters, at_least=True),
    CountedRule("kind_digits", digits),
    CountedRule("kind_links", links),
    CountedRule("kind_table_links", links),
    CountedRule("kind_data", data),
    CountedRule("kind_content", content, at_least=True),
    CountedRule("kind_placeholders", placeholders),
    CountedRule("kind_checkboxes", checkboxes),
    CountedRule("kind_empty_headings", empty_headings),
    CountedRule("kind_handles", handles),
    CountedRule("kind_boilerplate", boilerplate, at_least=True),
    CountedRule("kind_repeated_lines", repeated_lines),
    CountedRule("kind_repeated_words", repeated_words),
)
