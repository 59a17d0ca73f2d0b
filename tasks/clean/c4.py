"""Rules of C4 (Raffel et al. 2020, section 2.2) that drop a page; those about lines are edits in `lines.py`."""

from tasks.clean import counting
from tasks.clean.rule import Rule
from tasks.clean.statistics import TextStatistics


def sentences(statistics: TextStatistics, limit: float) -> float:
    """Number of sentence ends."""
    del limit
    return statistics.count_of(counting.SENTENCES)


def lorem_ipsum(statistics: TextStatistics, limit: float) -> float:
    """How often the placeholder text "lorem ipsum" begins."""
    del limit
    return statistics.count_of(counting.LOREM_IPSUM)


def curly_brackets(statistics: TextStatistics, limit: float) -> float:
    """Number of opening curly brackets, the paper's sign of code; not in the preset `c4`, since we also want technical
    prose."""
    del limit
    return statistics.count_of(counting.OPENING_BRACES)


RULES = (
    Rule("c4_sentences", sentences, at_least=True),
    Rule("c4_lorem_ipsum", lorem_ipsum),
    Rule("c4_curly_bracket", curly_brackets),
)
