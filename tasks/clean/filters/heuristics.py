"""Rules that drop a document by counts and shares: Gopher, C4, FineWeb, and rules for source code.

- Gopher (Rae et al. 2021, appendix A.1.1 and A.1.2): quality and repetition.
- C4 (Raffel et al. 2020, section 2.2): the rules that drop a page; those that drop lines are edits in `edits/lines.py`.
- FineWeb (Penedo et al. 2024, sections 3.3 and 3.6): confidence of the identified language, pages that are lists,
  repeat lines, or consist of short ones. Limits are the paper's; the published pipeline (datatrove) has 0.01 for
  characters in repeated lines, and a fourth rule, line feeds per word, which the paper does not name.
- Source code: lines as in Codex (Chen et al. 2021, 3.1), characters as in StarCoder (Li et al. 2023). They find data,
  minified and generated files.

Each measure is one function that returns a value for every document of a batch, NaN where the rule does not apply.
`presets.LIMITS` holds the limits. Where a paper counts English words, scripts written without spaces are counted by
characters per word, and rules about the length of words do not apply to them.
"""

import functools
import re

import numpy as np
import regex

from tasks.clean.filters.kind_rules import KIND_RULES
from tasks.clean.filters.rule import CountedRule, Rule, TextStatistics
from tasks.clean.kernels import counting
from tasks.clean.kernels.measurements import Measurements, share

_SCRIPTS_WITH_STOP_WORDS = regex.compile(r"[\p{Latin}\p{Cyrillic}\p{Han}\p{Hiragana}\p{Katakana}]")
_LETTERS = regex.compile(r"\p{L}")
_SAMPLE_CHARACTERS = 2000
_NOT_ALPHANUMERIC = re.compile(r"[\W_]+")


def language_confidence(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the confidence (0 to 1) of the identified language (FineWeb, section 3.3)."""
    return measurements.language_confidences


def word_count(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the number of words."""
    return measurements.words


def mean_word_length(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return characters per word; NaN for scripts written without spaces."""
    return np.where(measurements.is_unsegmented, np.nan, share(measurements.characters, measurements.units))


def hashes_per_word(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return hash signs (#) per word."""
    return _per_word(counting.HASHES, measurements)


def ellipses_per_word(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return ellipses (... or …) per word."""
    return _per_word(counting.ELLIPSES, measurements)


def line_feeds_per_word(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return line feeds per word."""
    return _per_word(counting.LINE_FEEDS, measurements)


def _per_word(count: int, measurements: Measurements) -> np.ndarray:
    return share(measurements.count_of(count), measurements.words)


def bullet_lines(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the share of lines that begin with a bullet."""
    return _share_of_lines(counting.BULLET_LINES, measurements)


def ellipsis_lines(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the share of lines that end with an ellipsis."""
    return _share_of_lines(counting.ELLIPSIS_LINES, measurements)


def finished_lines(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the share of lines that end with terminal punctuation."""
    return _share_of_lines(counting.FINISHED_LINES, measurements)


def short_lines(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the share of lines of at most 30 characters; a character of an unsegmented script counts as three."""
    return _share_of_lines(counting.SHORT_LINES, measurements)


def _share_of_lines(count: int, measurements: Measurements) -> np.ndarray:
    return share(measurements.count_of(count), measurements.count_of(counting.LINES))


def alphabetic_words(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the share of words that contain a letter."""
    return share(measurements.count_of(counting.ALPHABETIC_UNITS), measurements.units)


def stop_words(measurements: Measurements, limit: float) -> np.ndarray:
    """Return the number of distinct stop words of the document's language in it.

    Where the language is unknown, the language whose list fits best counts. NaN where there is no list for the language
    or, the language being unknown, for the script.
    """
    languages = measurements.languages
    seen = measurements.stop_words_seen(languages)
    unknown = measurements.wanted & np.array([language is None for language in languages])
    if unknown.any():
        most = measurements.max_stop_words_seen
        for row in np.flatnonzero(unknown & (most < limit)).tolist():
            if not _is_script_covered(measurements.texts.text(row)):
                most[row] = np.nan
        seen = np.where(unknown, most, seen)
    return seen


def _is_script_covered(text: str) -> bool:
    sample = text[:_SAMPLE_CHARACTERS]
    return 2 * len(_SCRIPTS_WITH_STOP_WORDS.findall(sample)) >= len(_LETTERS.findall(sample))


def duplicate_lines(measurements: Measurements, limit: float) -> np.ndarray:
    """Return the share of lines that repeat an earlier line."""
    return measurements.repeated_lines[0]


def duplicate_line_characters(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the share of characters in lines that repeat an earlier line."""
    return measurements.repeated_lines[1]


def duplicate_paragraphs(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the share of paragraphs that repeat an earlier paragraph."""
    return measurements.repeated_paragraphs[0]


def duplicate_paragraph_characters(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the share of characters in paragraphs that repeat an earlier paragraph."""
    return measurements.repeated_paragraphs[1]


def top_gram(n: int, measurements: Measurements, limit: float) -> np.ndarray:
    """Return the share of characters in the most frequent n-gram of words."""
    return measurements.top_gram_share(n, enough=limit)


def duplicate_grams(n: int, measurements: Measurements, limit: float) -> np.ndarray:
    """Return the share of characters in n-grams of words that repeat an earlier one."""
    return measurements.repeated_gram_share(n, enough=limit)


def sentences(measurements: Measurements, limit: float) -> np.ndarray:
    """Return the number of sentence ends."""
    return measurements.count_of(counting.SENTENCES)


def lorem_ipsum(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return how often the placeholder text "lorem ipsum" begins."""
    return measurements.count_of(counting.LOREM_IPSUM)


def curly_brackets(measurements: Measurements, _limit: float) -> np.ndarray:
    """Return the number of `{`, the paper's sign of code; not in the preset `c4`, which keeps technical prose."""
    return measurements.count_of(counting.OPENING_BRACES)


def mean_line(statistics: TextStatistics, _limit: float) -> float:
    """Return the mean characters per line."""
    text = statistics.text.rstrip("\n")
    return (len(text) - text.count("\n")) / (text.count("\n") + 1)


def longest_line(statistics: TextStatistics, _limit: float) -> float:
    """Return the characters of the longest line."""
    return max(map(len, statistics.text.split("\n")))


def alphanumeric_share(statistics: TextStatistics, _limit: float) -> float | None:
    """Return the share of letters and digits among all characters but whitespace around lines."""
    characters = statistics.count_of(counting.LINE_CHARACTERS)
    return len(_NOT_ALPHANUMERIC.sub("", statistics.text)) / characters if characters else None


RULES: dict[str, Rule | CountedRule] = {
    rule.name: rule
    for rule in (
        # Gopher
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
        # C4
        CountedRule("c4_sentences", sentences, at_least=True),
        CountedRule("c4_lorem_ipsum", lorem_ipsum),
        CountedRule("c4_curly_bracket", curly_brackets),
        # FineWeb
        CountedRule("language_confidence", language_confidence, at_least=True),
        CountedRule("fineweb_finished_lines", finished_lines, at_least=True),
        CountedRule("fineweb_short_lines", short_lines),
        CountedRule("fineweb_repeated_line_characters", duplicate_line_characters),
        CountedRule("fineweb_line_feeds", line_feeds_per_word),
        # Source code
        Rule("code_mean_line", mean_line),
        Rule("code_longest_line", longest_line),
        Rule("code_alphanumeric", alphanumeric_share, at_least=True),
        *KIND_RULES,
    )
}
"""Name -> rule; `presets.LIMITS` holds their limits and the order in which they run."""
