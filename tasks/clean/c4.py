"""Rules of C4 (Raffel et al. 2020, section 2.2) that drop a page; those about lines are edits in `lines.py`."""

import numpy as np

from tasks.clean import counting
from tasks.clean.measurements import Measurements
from tasks.clean.rule import CountedRule


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


RULES = (
    CountedRule("c4_sentences", sentences, at_least=True),
    CountedRule("c4_lorem_ipsum", lorem_ipsum),
    CountedRule("c4_curly_bracket", curly_brackets),
)
