"""Quality and repetition rules of Gopher (Rae et al. 2021, appendix A.1.1 and A.1.2).

Each is one function that gives a value for each of many documents, NaN where it says nothing; limits stand in
`presets.LIMITS`. Where the paper speaks of English words, spaceless scripts are counted by units per word, and a rule
about the length of words says nothing of them.

Rules of C4 (Raffel et al. 2020, section 2.2) that drop a page; those about lines are edits in `lines.py`.

Rules of FineWeb (Penedo et al. 2024, sections 3.3 and 3.6): pages in no language that can be told, pages that are
lists, repeat lines, or consist of short ones.

Limits are the paper's; the pipeline that its authors published (datatrove) has 0.01 for characters in repeated lines,
and a fourth rule on lines, about line feeds per word, which the paper does not name.

Rules for source code: lines as in Codex (Chen et al. 2021, 3.1), characters as in StarCoder (Li et al. 2023).

They find data, minified and generated files among code.
"""

import functools
import re

import numpy as np
import regex

from tasks.clean.filters.rule import CountedRule, Rule, TextStatistics
from tasks.clean.kernels import counting
from tasks.clean.kernels.measurements import Measurements, share

_SCRIPTS_WITH_STOP_WORDS = regex.compile(r"[\p{Latin}\p{Cyrillic}\p{Han}\p{Hiragana}\p{Katakana}]")

_LETTERS = regex.compile(r"\p{L}")

_SAMPLE_CHARACTERS = 2000


def word_count(measurements: Measurements, limit: float) -> np.ndarray:
    """Number of words."""
    del limit
    return measurements.words


def mean_word_length(measurements: Measurements, limit: float) -> np.ndarray:
    """Characters per word; says nothing of spaceless scripts."""
    del limit
    return np.where(measurements.is_spaceless, np.nan, share(measurements.characters, measurements.units))


def hashes_per_word(measurements: Measurements, limit: float) -> np.ndarray:
    """Hash signs (#) per word."""
    del limit
    return _per_word(measurements.count_of(counting.HASHES), measurements)


def ellipses_per_word(measurements: Measurements, limit: float) -> np.ndarray:
    """Ellipses (... or …) per word."""
    del limit
    return _per_word(measurements.count_of(counting.ELLIPSES), measurements)


def _per_word(count: np.ndarray, measurements: Measurements) -> np.ndarray:
    return share(count, measurements.words)


def bullet_lines(measurements: Measurements, limit: float) -> np.ndarray:
    """Share of lines that begin with a bullet."""
    del limit
    return _gopher_share_of_lines(measurements.count_of(counting.BULLET_LINES), measurements)


def ellipsis_lines(measurements: Measurements, limit: float) -> np.ndarray:
    """Share of lines that end with an ellipsis."""
    del limit
    return _gopher_share_of_lines(measurements.count_of(counting.ELLIPSIS_LINES), measurements)


def _gopher_share_of_lines(count: np.ndarray, measurements: Measurements) -> np.ndarray:
    return share(count, measurements.count_of(counting.LINES))


def alphabetic_words(measurements: Measurements, limit: float) -> np.ndarray:
    """Share of words that hold at least one letter."""
    del limit
    return share(measurements.count_of(counting.ALPHABETIC_UNITS), measurements.units)


def stop_words(measurements: Measurements, limit: float) -> np.ndarray:
    """How many different stop words of the document's language stand in it.

    Without a known language, the language whose list fits best counts. Says nothing where there is no list for the
    language or, the language being unknown, for the script.
    """
    languages = measurements.languages
    seen = measurements.stop_words_seen(languages)
    unknown = measurements.wanted & np.array([language is None for language in languages])
    if unknown.any():
        most = measurements.most_stop_words_seen
        for row in np.flatnonzero(unknown & (most < limit)).tolist():
            if not _is_script_covered(measurements.texts.text(row)):
                most[row] = np.nan
        seen = np.where(unknown, most, seen)
    return seen


def _is_script_covered(text: str) -> bool:
    sample = text[:_SAMPLE_CHARACTERS]
    return 2 * len(_SCRIPTS_WITH_STOP_WORDS.findall(sample)) >= len(_LETTERS.findall(sample))


def duplicate_lines(measurements: Measurements, limit: float) -> np.ndarray:
    """Share of lines that stood earlier in the document."""
    del limit
    return measurements.repeated_lines[0]


def duplicate_line_characters(measurements: Measurements, limit: float) -> np.ndarray:
    """Share of characters in lines that stood earlier."""
    del limit
    return measurements.repeated_lines[1]


def duplicate_paragraphs(measurements: Measurements, limit: float) -> np.ndarray:
    """Share of paragraphs that stood earlier."""
    del limit
    return measurements.repeated_paragraphs[0]


def duplicate_paragraph_characters(measurements: Measurements, limit: float) -> np.ndarray:
    """Share of characters in paragraphs that stood earlier."""
    del limit
    return measurements.repeated_paragraphs[1]


def top_gram(n: int, measurements: Measurements, limit: float) -> np.ndarray:
    """Share of characters in the most frequent n-gram of words."""
    return measurements.top_gram_share(n, enough=limit)


def duplicate_grams(n: int, measurements: Measurements, limit: float) -> np.ndarray:
    """Share of characters in n-grams of words that stood earlier."""
    return measurements.repeated_gram_share(n, enough=limit)


GOPHER_RULES = (
    CountedRule("gopher_words_min", word_count, at_least=True),
    CountedRule("gopher_words_max", word_count),
    CountedRule("gopher_mean_word_min", mean_word_length, at_least=True),
    CountedRule("gopher_mean_word_max", mean_word_length),
    CountedRule("gopher_hashes", hashes_per_word),
    CountedRule("gopher_ellipses", ellipses_per_word),
    CountedRule("gopher_bullet_lines", bullet_lines),
    CountedRule("gopher_ellipsis_lines", ellipsis_lines),
    CountedRule("gopher_alphabetic_words", alphabetic_words, at_least=True),
    CountedRule("gopher_stop_words", stop_words, at_least=True),
    CountedRule("gopher_duplicate_lines", duplicate_lines),
    CountedRule("gopher_duplicate_paragraphs", duplicate_paragraphs),
    CountedRule("gopher_duplicate_line_characters", duplicate_line_characters),
    CountedRule("gopher_duplicate_paragraph_characters", duplicate_paragraph_characters),
    *(CountedRule(f"gopher_top_{n}_gram", functools.partial(top_gram, n)) for n in (2, 3, 4)),
    *(CountedRule(f"gopher_duplicate_{n}_grams", functools.partial(duplicate_grams, n)) for n in range(5, 11)),
)


def sentences(measurements: Measurements, limit: float) -> np.ndarray:
    """Number of sentence ends."""
    del limit
    return measurements.count_of(counting.SENTENCES)


def lorem_ipsum(measurements: Measurements, limit: float) -> np.ndarray:
    """How often the placeholder text "lorem ipsum" begins."""
    del limit
    return measurements.count_of(counting.LOREM_IPSUM)


def curly_brackets(measurements: Measurements, limit: float) -> np.ndarray:
    """Number of opening curly brackets, the paper's sign of code; not in the preset `c4`, since we also want technical
    prose."""
    del limit
    return measurements.count_of(counting.OPENING_BRACES)


C4_RULES = (
    CountedRule("c4_sentences", sentences, at_least=True),
    CountedRule("c4_lorem_ipsum", lorem_ipsum),
    CountedRule("c4_curly_bracket", curly_brackets),
)


def language_confidence(measurements: Measurements, limit: float) -> np.ndarray:
    """Confidence (0 to 1) that the document is in the language that was identified (section 3.3)."""
    del limit
    return measurements.language_confidences


def finished_lines(measurements: Measurements, limit: float) -> np.ndarray:
    """Share of lines that end in punctuation that ends a sentence."""
    del limit
    return _fineweb_share_of_lines(counting.FINISHED_LINES, measurements)


def short_lines(measurements: Measurements, limit: float) -> np.ndarray:
    """Share of lines of 30 characters or fewer; a character of a spaceless script counts as three."""
    del limit
    return _fineweb_share_of_lines(counting.SHORT_LINES, measurements)


def _fineweb_share_of_lines(count: int, measurements: Measurements) -> np.ndarray:
    return share(measurements.count_of(count), measurements.count_of(counting.LINES))


def repeated_line_characters(measurements: Measurements, limit: float) -> np.ndarray:
    """Share of characters in lines that stood earlier."""
    del limit
    return measurements.repeated_lines[1]


def line_feeds_per_word(measurements: Measurements, limit: float) -> np.ndarray:
    """Line feeds per word."""
    del limit
    return share(measurements.count_of(counting.LINE_FEEDS), measurements.words)


FINEWEB_RULES = (
    CountedRule("language_confidence", language_confidence, at_least=True),
    CountedRule("fineweb_finished_lines", finished_lines, at_least=True),
    CountedRule("fineweb_short_lines", short_lines),
    CountedRule("fineweb_repeated_line_characters", repeated_line_characters),
    CountedRule("fineweb_line_feeds", line_feeds_per_word),
)

_NOT_ALPHANUMERIC = re.compile(r"[\W_]+")


def mean_line(statistics: TextStatistics, limit: float) -> float:
    """Mean characters per line."""
    del limit
    text = statistics.text.rstrip("\n")
    return (len(text) - text.count("\n")) / (text.count("\n") + 1)


def longest_line(statistics: TextStatistics, limit: float) -> float:
    """Characters of the longest line."""
    del limit
    return max(map(len, statistics.text.split("\n")))


def alphanumeric_share(statistics: TextStatistics, limit: float) -> float | None:
    """Share of letters and digits among all characters that are not blanks at the beginning or end of lines."""
    del limit
    characters = statistics.count_of(counting.LINE_CHARACTERS)
    return len(_NOT_ALPHANUMERIC.sub("", statistics.text)) / characters if characters else None


SOURCE_CODE_RULES = (
    Rule("code_mean_line", mean_line),
    Rule("code_longest_line", longest_line),
    Rule("code_alphanumeric", alphanumeric_share, at_least=True),
)
