"""What rules measure: words, n-grams, lines and paragraphs of one document, each computed once and only when asked.

Words become numbers once; n-grams are polynomial hashes over those numbers in 64 bits, so that finding repeated ones is
a sort of integers. In a spaceless script the units are characters, of which two carry about as much as one word, so an
n-gram of words is measured there as one of 2n units.
"""

import functools
import re
from collections import Counter

import numpy as np

from tasks.clean.words import has_spaceless_script, split_units, words_in_units

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_LETTER = re.compile(r"[^\W\d_]")
_PARAGRAPH_BORDER = re.compile(r"\n\s*\n")


class TextStatistics:
    """Lazy measurements of `text`; `language` is an ISO 639 code or None."""

    def __init__(self, text: str, language: str | None = None) -> None:
        self.text = text
        self.language = language

    @functools.cached_property
    def units(self) -> list[str]:
        """Words, or characters of spaceless scripts."""
        return split_units(self.text)

    @functools.cached_property
    def _word_count(self) -> tuple[float, int]:
        if has_spaceless_script(self.text):
            return words_in_units(self.units)
        return float(len(self.units)), 0

    @property
    def words(self) -> float:
        """Number of words; spaceless scripts by units per word."""
        return self._word_count[0]

    @property
    def is_spaceless(self) -> bool:
        """Whether most units belong to scripts without blanks between words."""
        return self._word_count[1] * 2 > len(self.units)

    @functools.cached_property
    def vocabulary(self) -> dict[str, int]:
        """Each different unit and its number, in order of first appearance."""
        return {unit: number for number, unit in enumerate(dict.fromkeys(self.units))}

    @functools.cached_property
    def _numbers(self) -> np.ndarray:
        return np.fromiter(map(self.vocabulary.__getitem__, self.units), np.int64, len(self.units))

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Characters of each unit, in order (int64)."""
        return np.fromiter(map(len, self.vocabulary), np.int64, len(self.vocabulary))[self._numbers]

    @functools.cached_property
    def characters(self) -> int:
        """Characters of all units together, without blanks."""
        return int(self.lengths.sum())

    def alphabetic_share(self, enough: float = 1.0) -> float:
        """Share of units that hold a letter; a lower bound that reaches `enough` is returned as it is."""
        if not self.units:
            return 0.0
        flags = np.fromiter(map(str.isalpha, self.vocabulary), bool, len(self.vocabulary))
        share = float(flags[self._numbers].mean())
        if share >= enough:
            return share
        for unit, number in self.vocabulary.items():
            if not flags[number]:
                flags[number] = _LETTER.search(unit) is not None
        return float(flags[self._numbers].mean())

    @functools.cached_property
    def lines(self) -> list[str]:
        """Lines without surrounding blanks; blank ones left out."""
        return [stripped for line in self.text.split("\n") if (stripped := line.strip())]

    @functools.cached_property
    def paragraphs(self) -> list[str]:
        """Blocks between blank lines."""
        return [stripped for block in _PARAGRAPH_BORDER.split(self.text) if (stripped := block.strip())]

    @functools.cached_property
    def _unit_hashes(self) -> np.ndarray:
        # splitmix64's finisher spreads the small numbers over 64 bits.
        mixed = (np.arange(1, len(self.vocabulary) + 1, dtype=np.uint64)) * _MULTIPLIER
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (mixed ^ (mixed >> np.uint64(31)))[self._numbers]

    def _gram_hashes(self, n: int) -> np.ndarray:
        size = 2 * n if self.is_spaceless else n
        count = len(self.units) - size + 1
        if count <= 0:
            return np.zeros(0, np.uint64)
        hashes = np.zeros(count, np.uint64)
        for offset in range(size):
            hashes *= _MULTIPLIER
            hashes += self._unit_hashes[offset : offset + count]
        return hashes

    def top_gram_share(self, n: int, enough: float = 0.0) -> float:
        """Characters of the most frequent n-gram times how often it stands, per characters; 0 when none repeats.

        An upper bound that is not above `enough` is returned without looking further.
        """
        hashes = self._gram_hashes(n)
        ordered = np.sort(hashes)
        borders = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1], [True])))
        counts = np.diff(borders)
        most = int(counts.max()) if len(hashes) else 0
        if most <= 1:
            return 0.0
        size = len(self.units) - len(hashes) + 1
        ends = np.concatenate(([0], np.cumsum(self.lengths)))
        gram_lengths = ends[size:] - ends[:-size]
        bound = most * int(gram_lengths.max()) / self.characters
        if bound <= enough:
            return bound
        winners = np.isin(hashes, ordered[borders[:-1][counts == most]])
        return min(1.0, most * int(gram_lengths[winners].max()) / self.characters)

    @functools.cached_property
    def _most_duplicated(self) -> float:
        return self._duplicate_share(5)

    def duplicate_gram_share(self, n: int, enough: float = 0.0) -> float:
        """Share of characters in n-grams (n >= 5) that stood earlier in the text, each character counted once.

        A repeated longer n-gram consists of repeated 5-grams, so the share of those is an upper bound; where it is not
        above `enough`, the bound is returned without looking further.
        """
        bound = self._most_duplicated
        return bound if n == 5 or bound <= enough else self._duplicate_share(n)

    def _duplicate_share(self, n: int) -> float:
        hashes = self._gram_hashes(n)
        ordered = np.sort(hashes)
        if not (ordered[1:] == ordered[:-1]).any():
            return 0.0
        order = np.argsort(hashes, kind="stable")
        again = order[1:][hashes[order[1:]] == hashes[order[:-1]]]
        size = len(self.units) - len(hashes) + 1
        edges = np.zeros(len(self.units) + 1, np.int64)
        np.add.at(edges, again, 1)
        np.add.at(edges, again + size, -1)
        covered = np.cumsum(edges[:-1]) > 0
        return int(self.lengths[covered].sum()) / self.characters


def duplicate_shares(blocks: list[str]) -> tuple[float, float]:
    """(share of blocks, share of characters) that are repetitions of an earlier block."""
    if not blocks:
        return 0.0, 0.0
    counts = Counter(blocks)
    if len(counts) == len(blocks):
        return 0.0, 0.0
    characters = sum(map(len, blocks))
    repeated = characters - sum(map(len, counts))
    return (len(blocks) - len(counts)) / len(blocks), repeated / characters
