"""What rules measure: words, n-grams, lines and paragraphs of one document, counted by compiled kernels when asked.

In a spaceless script the units are characters, of which two carry about as much as one word, so an n-gram of words is
measured there as one of 2n units.
"""

import functools
from collections.abc import Mapping

import numpy as np

from tasks.clean import counting
from tasks.clean.about import About
from tasks.clean.characters import character_flags
from tasks.clean.stop_words import stop_words
from tasks.clean.words import words_of_units

_LEAST_ROOM = 1 << 16


class Scratch:
    """Memory of the kernels, kept from document to document; it grows to what the largest needed."""

    def __init__(self) -> None:
        self.counts = np.zeros(counting.COUNTS, np.int64)
        self.seen = np.zeros(stop_words().count, np.uint8)
        self.owner: object = None
        self._stamp = 0
        self._grow(_LEAST_ROOM)

    def _grow(self, room: int) -> None:
        self.hashes = np.zeros((3, room), np.uint64)
        self.lengths = np.zeros((3, room), np.int64)
        self.keys = np.zeros(1 << (2 * room - 1).bit_length(), np.uint64)
        self.stamps = np.zeros(len(self.keys), np.int64)
        self.uses = np.zeros(len(self.keys), np.int64)

    def count(self, raw: np.ndarray, owner: object) -> None:
        """Count `raw` (UTF-8 bytes) for `owner`, whose results stand here until the next count."""
        if len(raw) + 1 > self.hashes.shape[1]:
            self._grow(len(raw) + 1)
        words = stop_words()
        counting.count_text(
            raw, character_flags(), words.keys, words.numbers, self.counts, self.seen, self.hashes, self.lengths
        )
        self.owner = owner

    def stamp(self) -> int:
        """A number that no slot of the hash table holds yet, which makes the table empty."""
        self._stamp += 1
        return self._stamp


@functools.cache
def _shared_scratch() -> Scratch:
    return Scratch()


class TextStatistics:
    """Lazy measurements of a text, given as str or UTF-8 bytes; `language` is an ISO 639 code or None.

    `about` is what else is known of the document; `measured` holds numbers that were found elsewhere, by name.
    """

    def __init__(
        self,
        text: str | np.ndarray,
        language: str | None = None,
        *,
        about: About | None = None,
        scratch: Scratch | None = None,
        measured: Mapping[str, float] | None = None,
    ) -> None:
        self._given = text
        self.language = language
        self.about = about or About(language=language)
        self.measured = measured or {}
        self._scratch = scratch or _shared_scratch()

    @functools.cached_property
    def text(self) -> str:
        """The document's text."""
        return self._given if isinstance(self._given, str) else self._given.tobytes().decode()

    @functools.cached_property
    def raw(self) -> np.ndarray:
        """The document's UTF-8 bytes (uint8)."""
        return np.frombuffer(self._given.encode(), np.uint8) if isinstance(self._given, str) else self._given

    @functools.cached_property
    def _counts(self) -> list[int]:
        self._own_scratch()
        return self._scratch.counts.tolist()

    def _own_scratch(self) -> Scratch:
        if self._scratch.owner is not self:
            self._scratch.count(self.raw, self)
        return self._scratch

    def count_of(self, what: int) -> int:
        """One of the counts that `counting` names."""
        return self._counts[what]

    @property
    def units(self) -> int:
        """Number of words, or of characters of spaceless scripts."""
        return self._counts[counting.UNITS]

    @functools.cached_property
    def words(self) -> float:
        """Number of words; spaceless scripts by units per word."""
        counts = self._counts
        return words_of_units(
            counts[counting.UNITS], counts[counting.CHINESE_JAPANESE_UNITS], counts[counting.SOUTH_EAST_ASIAN_UNITS]
        )

    @property
    def is_spaceless(self) -> bool:
        """Whether most units belong to scripts without blanks between words."""
        counts = self._counts
        spaceless = counts[counting.CHINESE_JAPANESE_UNITS] + counts[counting.SOUTH_EAST_ASIAN_UNITS]
        return spaceless * 2 > counts[counting.UNITS]

    @property
    def characters(self) -> int:
        """Characters of all units together, without blanks."""
        return self._counts[counting.UNIT_CHARACTERS]

    def stop_words_seen(self, language: str) -> int | None:
        """How many different stop words of a language stand in the text; None where there is no list."""
        return stop_words().seen(self._seen, language)

    @functools.cached_property
    def _seen(self) -> np.ndarray:
        return self._own_scratch().seen.copy()

    @property
    def most_stop_words_seen(self) -> int:
        """The most that `stop_words_seen` gives for any language."""
        return stop_words().most_seen(self._seen)

    @functools.cached_property
    def repeated_lines(self) -> tuple[float, float]:
        """(share of lines, share of their characters) that are repetitions of an earlier line."""
        return self._repeated(1, counting.LINES, counting.LINE_CHARACTERS)

    @functools.cached_property
    def repeated_paragraphs(self) -> tuple[float, float]:
        """(share of paragraphs, share of their characters) that are repetitions of an earlier paragraph."""
        return self._repeated(2, counting.PARAGRAPHS, counting.PARAGRAPH_CHARACTERS)

    def _repeated(self, row: int, count: int, characters: int) -> tuple[float, float]:
        blocks = self._counts[count]
        if blocks < 2:
            return 0.0, 0.0
        scratch = self._own_scratch()
        repeated, repeated_characters = counting.repeated_share(
            scratch.hashes[row], scratch.lengths[row], blocks, scratch.keys, scratch.stamps, scratch.stamp()
        )
        return repeated / blocks, repeated_characters / self._counts[characters]

    def top_gram_share(self, n: int) -> float:
        """Characters of the most frequent n-gram times how often it stands, per characters; 0 when none repeats."""
        if not self.characters:
            return 0.0
        scratch = self._own_scratch()
        most, longest = counting.top_gram(
            scratch.hashes[0],
            scratch.lengths[0],
            self.units,
            self._gram_size(n),
            scratch.keys,
            scratch.stamps,
            scratch.uses,
            scratch.stamp(),
        )
        return min(1.0, most * longest / self.characters) if most > 1 else 0.0

    def _gram_size(self, n: int) -> int:
        return 2 * n if self.is_spaceless else n

    def repeated_gram_share(self, n: int, enough: float = 0.0) -> float:
        """Share of characters in n-grams (n >= 5) that stood earlier in the text, each character counted once.

        A repeated longer n-gram consists of repeated 5-grams, so the share of those is an upper bound; where it is not
        above `enough`, the bound is returned without looking further.
        """
        bound = self._most_repeated
        return bound if n == 5 or bound <= enough else self._repeated_grams(n)

    @functools.cached_property
    def _most_repeated(self) -> float:
        return self._repeated_grams(5)

    def _repeated_grams(self, n: int) -> float:
        if not self.characters:
            return 0.0
        scratch = self._own_scratch()
        characters = counting.repeated_grams(
            scratch.hashes[0],
            scratch.lengths[0],
            self.units,
            self._gram_size(n),
            scratch.keys,
            scratch.stamps,
            scratch.stamp(),
        )
        return characters / self.characters
