"""Rules of C4 (Raffel et al. 2020, section 2.2) that drop a page; those about lines are edits in `lines.py`."""

import re

from tasks.clean.rule import Rule
from tasks.clean.statistics import TextStatistics

_SENTENCE_END = re.compile(r"[.!?]+[\"'”’»)\]]*(?=\s|$)|[。！？।۔؟]")
_LOREM_IPSUM = re.compile(r"lorem ipsum", re.IGNORECASE)


def sentences(statistics: TextStatistics, limit: float) -> float:
    """Number of sentence ends."""
    del limit
    return sum(1 for _ in _SENTENCE_END.finditer(statistics.text))


def lorem_ipsum(statistics: TextStatistics, limit: float) -> float:
    """How often the placeholder text "lorem ipsum" begins."""
    del limit
    return sum(1 for _ in _LOREM_IPSUM.finditer(statistics.text))


def curly_brackets(statistics: TextStatistics, limit: float) -> float:
    """Number of opening curly brackets, the paper's sign of code; in no preset, since we also want technical prose."""
    del limit
    return statistics.text.count("{")


RULES = (
    Rule("c4_sentences", sentences, at_least=True),
    Rule("c4_lorem_ipsum", lorem_ipsum),
    Rule("c4_curly_bracket", curly_brackets),
)
