"""Rules that measure one document at a time through `TextStatistics`: a recipe's own functions, lists and classifiers.

Those of papers measure a whole batch at once (`tasks/clean/rules.py`).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tasks.clean.batch import BatchContext, Texts
from tasks.clean.document import DocumentContext
from tasks.clean.kernels.measurements import Measurements
from tasks.clean.rules import Failures


class TextStatistics:
    """One text, and its lazy measurements; `context` says what else is known of the document."""

    def __init__(self, text: str, context: DocumentContext) -> None:
        self.text = text
        self.context = context

    @functools.cached_property
    def raw(self) -> np.ndarray:
        """Return the document's UTF-8 bytes (uint8)."""
        return np.frombuffer(bytearray(self.text.encode()), np.uint8)

    @property
    def language(self) -> str | None:
        """Return the ISO 639 code of the document's language."""
        return self.context.language

    @property
    def words(self) -> float:
        """Return the number of words; unsegmented scripts by characters per word."""
        return float(self.measurements.words[0])

    @functools.cached_property
    def measurements(self) -> Measurements:
        """Return those of a batch of this document alone."""
        return Measurements(Texts.of([self.text]), BatchContext.of(self.context), np.ones(1, np.bool_))


@dataclass(frozen=True)
class Rule:
    """`measure(statistics, limit)` returns a value of one document, or None where the rule does not apply to it.

    A value below the limit fails where `at_least`, else one above it does. `measure` may stop early once it is certain
    on which side of `limit` the value lies. A measure that returns a string fails the document, for that reason.
    """

    name: str
    measure: Callable[[TextStatistics, float], float | str | None]
    at_least: bool = False

    def failures(self, measurements: Measurements, limit: float) -> Failures:
        """Return which of many documents fail."""
        rows, values, reasons = [], [], {}
        for row in np.flatnonzero(measurements.wanted).tolist():
            statistics = TextStatistics(measurements.texts.text(row), measurements.contexts.at(row))
            value = self.measure(statistics, limit)
            if isinstance(value, str):
                reasons[row], value = value, np.nan
            elif value is None or not (value < limit if self.at_least else value > limit):
                continue
            rows.append(row)
            values.append(value)
        return Failures(np.array(rows, np.int64), np.array(values, np.float64), reasons)
