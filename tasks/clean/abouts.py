"""What is known of a handful of documents besides their texts; unknown languages are identified when asked for."""

from collections.abc import Sequence

import numpy as np

from tasks.clean.about import CODE, About
from tasks.clean.language import identify_languages, language_model
from tasks.clean.texts import Texts

_UNKNOWN = -1


class Abouts:
    """Kinds, languages (ISO 639 codes or None), sources and domains of documents, and what emoji become."""

    def __init__(
        self,
        kinds: Sequence[str],
        languages: Sequence[str | None],
        sources: Sequence[str],
        domains: Sequence[str],
        emoji: str,
        *,
        identifies: bool = True,
    ) -> None:
        self.kinds = kinds
        self.given = languages
        self._sources = sources
        self._domains = domains
        self._emoji = emoji
        self._identifies = identifies
        self._is_unknown = np.array([language is None for language in languages], np.bool_)
        self._is_code = np.array([kind == CODE for kind in kinds], np.bool_)
        self._found = np.full(len(kinds), _UNKNOWN, np.int64)
        self._confidences = np.full(len(kinds), np.nan)
        self._looked_at = np.full((2, len(kinds)), _UNKNOWN, np.int64)

    @staticmethod
    def of(about: About, *, identifies: bool = False) -> "Abouts":
        """What is known of one document."""
        return Abouts(
            [about.kind], [about.language], [about.source], [about.domain], about.emoji, identifies=identifies
        )

    def about(self, row: int) -> About:
        """What is known of a document, its language where it was given or was identified by now."""
        return About(self.kinds[row], self.language(row), self._emoji, self._sources[row], self._domains[row])

    def language(self, row: int) -> str | None:
        """The language of a document, where it was given or was identified by now."""
        found = int(self._found[row])
        given = self.given[row]
        return given if given is not None or found == _UNKNOWN else language_model().languages[found]

    def identified_language(self, row: int) -> tuple[str, float] | None:
        """(language, confidence) of a document, None where it was not identified."""
        found = int(self._found[row])
        return None if found == _UNKNOWN else (language_model().languages[found], float(self._confidences[row]))

    def identified(self, texts: Texts, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(numbers in the model's languages, confidences) of all documents, after those of `rows` were identified."""
        self._identify(texts, rows, texts.bounds)
        return self._found, self._confidences

    def identify_unknown(self, texts: Texts, rows: np.ndarray, bounds: np.ndarray | None = None) -> None:
        """Identify the languages of those documents of `rows` that came without one and are not code; `bounds` are
        those of other versions of the texts than the current ones."""
        if self._identifies:
            unknown = rows[self._is_unknown[rows] & ~self._is_code[rows]]
            self._identify(texts, unknown, texts.bounds if bounds is None else bounds)

    def _identify(self, texts: Texts, rows: np.ndarray, bounds: np.ndarray) -> None:
        rows = rows[(self._looked_at[:, rows] != bounds[:, rows]).any(axis=0)]
        if len(rows):
            self._looked_at[:, rows] = bounds[:, rows]
            self._found[rows], self._confidences[rows] = identify_languages(texts.data, *bounds[:, rows])
