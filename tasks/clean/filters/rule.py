"""Rules that measure one document at a time through `TextStatistics`: a recipe's own functions, lists and classifiers.

Those of papers measure a whole batch at once (`tasks/clean/rules.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tasks.clean.batch import BatchContext, Texts
from tasks.clean.document import DocumentContext
from tasks.clean.kernels.measurements import Measurements
from tasks.clean.rules import Failures


class TextStatistics:
    """One text, given as str or UTF-8 bytes, and its lazy measurements.

    `language` is an ISO 639 code or None; `context` says what else is known of the document. `measurements` are those
    of a batch of this document alone.
    """

    def __init__(
        self, text: str | np.ndarray, language: str | None = None, *, context: DocumentContext | None = None
    ) -> None:
        self.context = context or DocumentContext(language=language)
        self._texts = Texts.of([text])
        self.measurements = Measurements(self._texts, BatchContext.of(self.context), np.ones(1, np.bool_))

    @property
    def text(self) -> str:
        """Return the document's text."""
        return self._texts.text(0)

    @property
    def raw(self) -> np.ndarray:
        """Return the document's UTF-8 bytes (uint8)."""
        return self._texts.raw(0)

    @property
    def language(self) -> str | None:
        """Return the ISO 639 code of the document's language."""
        return self.context.language

    @property
    def words(self) -> float:
        """Return the number of words; unsegmented scripts by characters per word."""
        return float(self.measurements.words[0])


@dataclass(frozen=True)
class Rule:
    """`measure(statistics, limit)` returns a value of one document, or None where the rule does not apply to it.

    A value below the limit fails where `at_least`, else one above it does. `measure` may stop early once it is certain
    on which side of `limit` the value lies. A measure that returns a string fails the document, for that reason.
    """

    name: str
    measure: Callable[[TextStatistics, float], float | str | None]
    at_least: bool = False

    def failing_value(self, statistics: TextStatistics, limit: float) -> float | str | None:
        """Return the measured value or reason where the document fails the rule; None where it passes."""
        value = self.measure(statistics, limit)
        if value is None or isinstance(value, str):
            return value
        return value if (value < limit if self.at_least else value > limit) else None

    def failures(self, measurements: Measurements, limit: float) -> Failures:
        """Return which of many documents fail."""
        rows, values, reasons = [], [], {}
        for row in np.flatnonzero(measurements.wanted).tolist():
            context = measurements.contexts.at(row)
            value = self.failing_value(TextStatistics(measurements.texts.text(row), context=context), limit)
            if value is None:
                continue
            rows.append(row)
            if isinstance(value, str):
                reasons[row] = value
                value = np.nan
            values.append(value)
        return Failures(np.array(rows, np.int64), np.array(values, np.float64), reasons)
