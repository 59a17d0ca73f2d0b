"""What a rule is: a named measurement with a limit; a document on the wrong side of the limit is dropped."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tasks.clean.measurements import Measurements
from tasks.clean.statistics import TextStatistics


@dataclass(frozen=True)
class Failures:
    """Documents (their rows, in order) that fail a rule: the values measured, or reasons, words in place of a value."""

    rows: np.ndarray
    values: np.ndarray
    reasons: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """`measure(statistics, limit)` gives a value of one document, or None where the rule says nothing about it.

    A value below the limit fails where `at_least`, else one above it does. `measure` may stop early once it is certain
    on which side of `limit` the value lies. A measure that gives words instead of a number fails, and they are why.
    """

    name: str
    measure: Callable[[TextStatistics, float], float | str | None]
    at_least: bool = False

    def failing_value(self, statistics: TextStatistics, limit: float) -> float | str | None:
        """The measured value, or the words, when the document fails the rule; None when it passes."""
        value = self.measure(statistics, limit)
        if value is None or isinstance(value, str):
            return value
        return value if (value < limit if self.at_least else value > limit) else None

    def failures(self, measurements: Measurements, limit: float) -> Failures:
        """Which of many documents fail."""
        rows, values, reasons = [], [], {}
        for row in np.flatnonzero(measurements.wanted).tolist():
            about = measurements.abouts.about(row)
            value = self.failing_value(TextStatistics(measurements.texts.text(row), about=about), limit)
            if value is None:
                continue
            rows.append(row)
            if isinstance(value, str):
                reasons[row] = value
                value = np.nan
            values.append(value)
        return Failures(np.array(rows, np.int64), np.array(values, np.float64), reasons)


@dataclass(frozen=True)
class CountedRule:
    """A rule that is arithmetic on counts: `measure(measurements, limit)` gives the values of many documents at once,
    NaN where it says nothing. Else as `Rule`."""

    name: str
    measure: Callable[[Measurements, float], np.ndarray]
    at_least: bool = False

    def failures(self, measurements: Measurements, limit: float) -> Failures:
        """Which of many documents fail."""
        values = self.measure(measurements, limit)
        fails = values < limit if self.at_least else values > limit
        rows = np.flatnonzero(fails & measurements.wanted)
        return Failures(rows, values[rows])
