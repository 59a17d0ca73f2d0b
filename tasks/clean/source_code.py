"""Rules for source code: lines as in Codex (Chen et al. 2021, 3.1), characters as in StarCoder (Li et al. 2023).

They find data, minified and generated files among code.
"""

import re

from tasks.clean import counting
from tasks.clean.rule import Rule
from tasks.clean.statistics import TextStatistics

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


RULES = (
    Rule("code_mean_line", mean_line),
    Rule("code_longest_line", longest_line),
    Rule("code_alphanumeric", alphanumeric_share, at_least=True),
)
