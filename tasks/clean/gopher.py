"""Quality and repetition rules of Gopher (Rae et al. 2021, appendix A.1.1 and A.1.2).

Each is one function; limits stand in `presets.LIMITS`. Where the paper speaks of English words, spaceless scripts are
counted by units per word, and a rule about the length of words says nothing of them.
"""

import functools

import regex

from tasks.clean import counting
from tasks.clean.rule import Rule
from tasks.clean.statistics import TextStatistics

_SCRIPTS_WITH_STOP_WORDS = regex.compile(r"[\p{Latin}\p{Cyrillic}\p{Han}\p{Hiragana}\p{Katakana}]")
_LETTERS = regex.compile(r"\p{L}")
_SAMPLE_CHARACTERS = 2000


def word_count(statistics: TextStatistics, limit: float) -> float:
    """Number of words."""
    del limit
    return statistics.words


def mean_word_length(statistics: TextStatistics, limit: float) -> float | None:
    """Characters per word; says nothing of spaceless scripts."""
    del limit
    if not statistics.units or statistics.is_spaceless:
        return None
    return statistics.characters / statistics.units


def hashes_per_word(statistics: TextStatistics, limit: float) -> float | None:
    """Hash signs (#) per word."""
    del limit
    return _per_word(statistics.count_of(counting.HASHES), statistics)


def ellipses_per_word(statistics: TextStatistics, limit: float) -> float | None:
    """Ellipses (... or …) per word."""
    del limit
    return _per_word(statistics.count_of(counting.ELLIPSES), statistics)


def _per_word(count: int, statistics: TextStatistics) -> float | None:
    return count / statistics.words if statistics.words else None


def bullet_lines(statistics: TextStatistics, limit: float) -> float | None:
    """Share of lines that begin with a bullet."""
    del limit
    return _share_of_lines(statistics.count_of(counting.BULLET_LINES), statistics)


def ellipsis_lines(statistics: TextStatistics, limit: float) -> float | None:
    """Share of lines that end with an ellipsis."""
    del limit
    return _share_of_lines(statistics.count_of(counting.ELLIPSIS_LINES), statistics)


def _share_of_lines(count: int, statistics: TextStatistics) -> float | None:
    lines = statistics.count_of(counting.LINES)
    return count / lines if lines else None


def alphabetic_words(statistics: TextStatistics, limit: float) -> float | None:
    """Share of words that hold at least one letter."""
    del limit
    return statistics.count_of(counting.ALPHABETIC_UNITS) / statistics.units if statistics.units else None


def stop_words(statistics: TextStatistics, limit: float) -> float | None:
    """How many different stop words of the document's language stand in it.

    Without a known language, the language whose list fits best counts. Says nothing where there is no list for the
    language or, the language being unknown, for the script.
    """
    if statistics.language is not None:
        return statistics.stop_words_seen(statistics.language.partition("-")[0].lower())
    most = statistics.most_stop_words_seen
    return None if most < limit and not _is_script_covered(statistics.text) else most


def _is_script_covered(text: str) -> bool:
    sample = text[:_SAMPLE_CHARACTERS]
    return 2 * len(_SCRIPTS_WITH_STOP_WORDS.findall(sample)) >= len(_LETTERS.findall(sample))


def duplicate_lines(statistics: TextStatistics, limit: float) -> float:
    """Share of lines that stood earlier in the document."""
    del limit
    return statistics.repeated_lines[0]


def duplicate_line_characters(statistics: TextStatistics, limit: float) -> float:
    """Share of characters in lines that stood earlier."""
    del limit
    return statistics.repeated_lines[1]


def duplicate_paragraphs(statistics: TextStatistics, limit: float) -> float:
    """Share of paragraphs that stood earlier."""
    del limit
    return statistics.repeated_paragraphs[0]


def duplicate_paragraph_characters(statistics: TextStatistics, limit: float) -> float:
    """Share of characters in paragraphs that stood earlier."""
    del limit
    return statistics.repeated_paragraphs[1]


def top_gram(n: int, statistics: TextStatistics, limit: float) -> float:
    """Share of characters in the most frequent n-gram of words."""
    del limit
    return statistics.top_gram_share(n)


def duplicate_grams(n: int, statistics: TextStatistics, limit: float) -> float:
    """Share of characters in n-grams of words that stood earlier."""
    return statistics.repeated_gram_share(n, enough=limit)


RULES = (
    Rule("gopher_words_min", word_count, at_least=True),
    Rule("gopher_words_max", word_count),
    Rule("gopher_mean_word_min", mean_word_length, at_least=True),
    Rule("gopher_mean_word_max", mean_word_length),
    Rule("gopher_hashes", hashes_per_word),
    Rule("gopher_ellipses", ellipses_per_word),
    Rule("gopher_bullet_lines", bullet_lines),
    Rule("gopher_ellipsis_lines", ellipsis_lines),
    Rule("gopher_alphabetic_words", alphabetic_words, at_least=True),
    Rule("gopher_stop_words", stop_words, at_least=True),
    Rule("gopher_duplicate_lines", duplicate_lines),
    Rule("gopher_duplicate_paragraphs", duplicate_paragraphs),
    Rule("gopher_duplicate_line_characters", duplicate_line_characters),
    Rule("gopher_duplicate_paragraph_characters", duplicate_paragraph_characters),
    *(Rule(f"gopher_top_{n}_gram", functools.partial(top_gram, n)) for n in (2, 3, 4)),
    *(Rule(f"gopher_duplicate_{n}_grams", functools.partial(duplicate_grams, n)) for n in range(5, 11)),
)
