"""What a rule is: a named measurement with a limit; a document on the wrong side of the limit is dropped.

The measurements of one document as plain numbers, for rules that look at one document at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tasks.clean.batch import Abouts, Texts
from tasks.clean.document import About
from tasks.clean.kernels.measurements import Measurements


@dataclass(frozen=True)
class Failures:
    """Documents (their rows, in order) that fail a rule: the values measured, or reasons, words in place of a value."""

    rows: np.ndarray
    values: np.ndarray
    reasons: dict[int, str] = field(default_factory=dict)


class TextStatistics:
    """Lazy measurements of a text, given as str or UTF-8 bytes; `language` is an ISO 639 code or None, `about` what
    else is known of the document."""

    def __init__(self, text: str | np.ndarray, language: str | None = None, *, about: About | None = None) -> None:
        self.about = about or About(language=language)
        self._texts = Texts.of([text])
        self._of = Measurements(self._texts, Abouts.of(self.about), np.ones(1, np.bool_))

    @property
    def text(self) -> str:
        """The document's text."""
        return self._texts.text(0)

    @property
    def raw(self) -> np.ndarray:
        """The document's UTF-8 bytes (uint8)."""
        return self._texts.raw(0)

    @property
    def language(self) -> str | None:
        """ISO 639 code of the document's language."""
        return self.about.language

    def count_of(self, what: int) -> int:
        """One of the counts that `counting` names."""
        return int(self._of.count_of(what)[0])

    @property
    def units(self) -> int:
        """Number of words, or of characters of spaceless scripts."""
        return int(self._of.units[0])

    @property
    def words(self) -> float:
        """Number of words; spaceless scripts by units per word."""
        return float(self._of.words[0])

    @property
    def is_spaceless(self) -> bool:
        """Whether most units belong to scripts without blanks between words."""
        return bool(self._of.is_spaceless[0])

    @property
    def characters(self) -> int:
        """Characters of all units together, without blanks."""
        return int(self._of.characters[0])

    def stop_words_seen(self, language: str) -> int | None:
        """How many different stop words of a language stand in the text; None where there is no list."""
        seen = float(self._of.stop_words_seen([language])[0])
        return None if np.isnan(seen) else int(seen)

    @property
    def most_stop_words_seen(self) -> int:
        """The most that `stop_words_seen` gives for any language."""
        return int(self._of.most_stop_words_seen[0])

    @property
    def repeated_lines(self) -> tuple[float, float]:
        """(share of lines, share of their characters) that are repetitions of an earlier line."""
        lines, characters = self._of.repeated_lines
        return float(lines[0]), float(characters[0])

    @property
    def repeated_paragraphs(self) -> tuple[float, float]:
        """(share of paragraphs, share of their characters) that are repetitions of an earlier paragraph."""
        paragraphs, characters = self._of.repeated_paragraphs
        return float(paragraphs[0]), float(characters[0])

    def top_gram_share(self, n: int) -> float:
        """Characters of the most frequent n-gram times how often it stands, per characters; 0 when none repeats."""
        return float(self._of.top_gram_share(n)[0])

    def repeated_gram_share(self, n: int, enough: float = 0.0) -> float:
        """Share of characters in n-grams (n >= 5) that stood earlier in the text, each character counted once; not
        above `enough`, it may be a bound."""
        return float(self._of.repeated_gram_share(n, enough)[0])


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
