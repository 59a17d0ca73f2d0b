"""What cleaning decides about one document."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Dropped:
    """Why a document goes: the rule, and what it measured against its limit where it measures something."""

    rule: str
    value: float | None = None
    limit: float | None = None
    evidence: str | None = None


@dataclass(frozen=True)
class Outcome:
    """The text (UTF-8) after the edits that changed it, by name in order; `dropped` where a rule failed; `language` as
    it was identified, None where nothing needed it."""

    raw: np.ndarray
    edits: tuple[str, ...] = ()
    dropped: Dropped | None = None
    language: tuple[str, float] | None = None

    @property
    def text(self) -> str:
        """The text."""
        return self.raw.tobytes().decode()
