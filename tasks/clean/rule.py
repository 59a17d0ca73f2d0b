"""What a rule is: a named measurement with a limit; a document on the wrong side of the limit is dropped."""

from collections.abc import Callable
from dataclasses import dataclass

from tasks.clean.statistics import TextStatistics


@dataclass(frozen=True)
class Rule:
    """`measure(statistics, limit)` gives a value, or None where the rule says nothing about the document.

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
