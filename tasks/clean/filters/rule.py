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
    """Lazy measurements of one text, given as str or UTF-8 bytes.

    `language` is an ISO 639 code or None; `context` says what else is known of the document.
    """

    def __init__(
        self, text: str | np.ndarray, language: str | None = None, *, context: DocumentContext | None = None
    ) -> None:
        self.context = context or DocumentContext(language=language)
        self._texts = Texts.of([text])
        self._measured = Measurements(self._texts, BatchContext.of(self.context), np.ones(1, np.bool_))

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

    def count_of(self, what: int) -> int:
        """Return one of the counts that `tasks.clean.kernels.text_counts` names."""
        return int(self._measured.count_of(what)[0])

    @property
    def units(self) -> int:
        """Return the number of words, or of characters of unsegmented scripts."""
        return int(self._measured.units[0])

    @property
    def words(self) -> float:
        """Return the number of words; unsegmented scripts by characters per word."""
        return float(self._measured.words[0])

    @property
    def is_unsegmented(self) -> bool:
        """Return whether most units belong to scripts written without spaces."""
        return bool(self._measured.is_unsegmented[0])

    @property
    def characters(self) -> int:
        """Return the characters of all units together, without whitespace."""
        return int(self._measured.characters[0])

    def stop_words_seen(self, language: str) -> int | None:
        """Return how many distinct stop words of a language the text contains; None where there is no list."""
        seen = float(self._measured.stop_words_seen([language])[0])
        return None if np.isnan(seen) else int(seen)

    @property
    def max_stop_words_seen(self) -> int:
        """Return the largest `stop_words_seen` over all languages."""
        return int(self._measured.max_stop_words_seen[0])

    @property
    def repeated_lines(self) -> tuple[float, float]:
        """Return (share of lines, share of their characters) that repeat an earlier line."""
        lines, characters = self._measured.repeated_lines
        return float(lines[0]), float(characters[0])

    @property
    def repeated_paragraphs(self) -> tuple[float, float]:
        """Return (share of paragraphs, share of their characters) that repeat an earlier paragraph."""
        paragraphs, characters = self._measured.repeated_paragraphs
        return float(paragraphs[0]), float(characters[0])

    def top_gram_share(self, n: int) -> float:
        """Return characters of the most frequent n-gram times its count, over all characters; 0 where none repeats."""
        return float(self._measured.top_gram_share(n)[0])

    def repeated_gram_share(self, n: int, enough: float = 0.0) -> float:
        """Return the share of characters in n-grams (n >= 5) that repeat an earlier one, each character counted once.

        Where the share is not above `enough`, the value may be an upper bound.
        """
        return float(self._measured.repeated_gram_share(n, enough)[0])


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
