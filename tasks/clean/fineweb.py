"""Rules of FineWeb (Penedo et al. 2024, sections 3.3 and 3.6): pages in no language that can be told, pages that are
lists, repeat lines, or consist of short ones.

Limits are the paper's; the pipeline that its authors published (datatrove) has 0.01 for characters in repeated lines,
and a fourth rule on lines, about line feeds per word, which the paper does not name.
"""

import numpy as np

from tasks.clean import counting
from tasks.clean.measurements import Measurements, share
from tasks.clean.rule import CountedRule


def language_confidence(measurements: Measurements, limit: float) -> np.ndarray:
    """Confidence (0 to 1) that the document is in the language that was identified (section 3.3)."""
    del limit
    return measurements.language_confidences


def finished_lines(measurements: Measurements, limit: float) -> np.ndarray:
    """Share of lines that end in punctuation that ends a sentence."""
    del limit
    return _share_of_lines(counting.FINISHED_LINES, measurements)


def short_lines(measurements: Measurements, limit: float) -> np.ndarray:
    """Share of lines of 30 characters or fewer; a character of a spaceless script counts as three."""
    del limit
    return _share_of_lines(counting.SHORT_LINES, measurements)


def _share_of_lines(count: int, measurements: Measurements) -> np.ndarray:
    return share(measurements.count_of(count), measurements.count_of(counting.LINES))


def repeated_line_characters(measurements: Measurements, limit: float) -> np.ndarray:
    """Share of characters in lines that stood earlier."""
    del limit
    return measurements.repeated_lines[1]


def line_feeds_per_word(measurements: Measurements, limit: float) -> np.ndarray:
    """Line feeds per word."""
    del limit
    return share(measurements.count_of(counting.LINE_FEEDS), measurements.words)


RULES = (
    CountedRule("language_confidence", language_confidence, at_least=True),
    CountedRule("fineweb_finished_lines", finished_lines, at_least=True),
    CountedRule("fineweb_short_lines", short_lines),
    CountedRule("fineweb_repeated_line_characters", repeated_line_characters),
    CountedRule("fineweb_line_feeds", line_feeds_per_word),
)
