"""Rules of FineWeb (Penedo et al. 2024, section 3.6): pages that are lists, repeat lines, or consist of short ones.

Limits are the paper's; the pipeline that its authors published (datatrove) has 0.01 for characters in repeated lines,
and a fourth rule, about line feeds per word, which the paper does not name.
"""

from tasks.clean import counting
from tasks.clean.rule import Rule
from tasks.clean.statistics import TextStatistics


def finished_lines(statistics: TextStatistics, limit: float) -> float | None:
    """Share of lines that end in punctuation that ends a sentence."""
    del limit
    return _share_of_lines(counting.FINISHED_LINES, statistics)


def short_lines(statistics: TextStatistics, limit: float) -> float | None:
    """Share of lines of 30 characters or fewer; a character of a spaceless script counts as three."""
    del limit
    return _share_of_lines(counting.SHORT_LINES, statistics)


def _share_of_lines(count: int, statistics: TextStatistics) -> float | None:
    lines = statistics.count_of(counting.LINES)
    return statistics.count_of(count) / lines if lines else None


def repeated_line_characters(statistics: TextStatistics, limit: float) -> float:
    """Share of characters in lines that stood earlier."""
    del limit
    return statistics.repeated_lines[1]


def line_feeds_per_word(statistics: TextStatistics, limit: float) -> float | None:
    """Line feeds per word."""
    del limit
    return statistics.count_of(counting.LINE_FEEDS) / statistics.words if statistics.words else None


RULES = (
    Rule("fineweb_finished_lines", finished_lines, at_least=True),
    Rule("fineweb_short_lines", short_lines),
    Rule("fineweb_repeated_line_characters", repeated_line_characters),
    Rule("fineweb_line_feeds", line_feeds_per_word),
)
