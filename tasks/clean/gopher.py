"""Quality and repetition rules of Gopher (Rae et al. 2021, appendix A.1.1 and A.1.2).

Each is one function that gives a value for each of many documents, NaN where it says nothing; limits stand in
`presets.LIMITS`. Where the paper speaks of English words, spaceless scripts are counted by units per word, and a rule
about the length of words says nothing of them.
"""

import functools

import numpy as np
import regex

from tasks.clean import counting
from tasks.clean.measurements import Measurements, share
from tasks.clean.rule import CountedRule

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
    return _share_of_lines(measurements.count_of(counting.BULLET_LINES), measurements)


def ellipsis_lines(measurements: Measurements, limit: float) -> np.ndarray:
    """Share of lines that end with an ellipsis."""
    del limit
    return _share_of_lines(measurements.count_of(counting.ELLIPSIS_LINES), measurements)


def _share_of_lines(count: np.ndarray, measurements: Measurements) -> np.ndarray:
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


RULES = (
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
