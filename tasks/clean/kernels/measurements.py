"""What rules measure: words, n-grams, lines and paragraphs of a batch of documents, counted by compiled kernels.

Every measurement is an array with a value for each document, computed when first read. In an unsegmented script the
units are characters, of which two carry about as much as one word, so an n-gram of words is measured there as one of 2n
units.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from tasks.clean.batch import BatchContext, Texts
from tasks.clean.kernels import counting, repetition
from tasks.clean.kernels import structure_counts as st
from tasks.clean.kernels import text_counts as tc
from tasks.clean.kernels.characters import character_flags, words_of_units
from tasks.clean.kernels.counting import stop_words
from tasks.clean.kernels.repetition import Slots
from tasks.clean.kernels.text_counts import share
from tasks.clean.structure import Structure

_PAIR, _FIVE = 2, 5
_UNITS_PER_WORD_OF_A_GRAM = 2


class Measurements:
    """Lazy measurements of the documents that are `wanted` (bool); values of other documents are undefined.

    Rules take documents that they drop out of `wanted`, so that nothing more is measured of them.
    """

    def __init__(
        self,
        texts: Texts,
        contexts: BatchContext,
        wanted: np.ndarray,
        slots: Slots | None = None,
        structure: Structure | None = None,
    ) -> None:
        self.texts = texts
        self.contexts = contexts
        self.wanted = wanted
        self._slots = slots or Slots()
        self._structure = structure
        self._fives = np.full(len(texts), np.nan)

    @functools.cached_property
    def _counted(self) -> tuple[np.ndarray, ...]:
        """Return (counts, stop words seen, hashes, lengths, first unit, line and paragraph)."""
        texts = self.texts
        words = stop_words()
        counts = np.zeros((len(texts), tc.COUNTS), np.int64)
        seen = np.zeros((len(texts), words.lists.shape[1]), np.uint64)
        capacity = counting.max_units(int(texts.sizes[self.wanted].sum()), len(texts))
        hashes = np.empty((3, capacity), np.uint64)
        lengths = np.empty((3, capacity), np.int32)
        firsts = np.zeros((3, len(texts)), np.int64)
        counting.count_texts(
            texts.data, texts.begins, texts.ends, self.wanted, character_flags(), words.keys, words.numbers,
            words.longest, counts, seen, hashes, lengths, firsts,
        )  # fmt: skip
        return np.ascontiguousarray(counts.T), seen, hashes, lengths, firsts

    def count_of(self, what: int) -> np.ndarray:
        """Return one of the counts that `text_counts` names."""
        return self._counted[0][what]

    @property
    def units(self) -> np.ndarray:
        """Return the number of words, or of characters of unsegmented scripts."""
        return self.count_of(tc.UNITS)

    @functools.cached_property
    def words(self) -> np.ndarray:
        """Return the number of words; unsegmented scripts by characters per word."""
        return words_of_units(
            self.units, self.count_of(tc.CHINESE_JAPANESE_UNITS), self.count_of(tc.SOUTH_EAST_ASIAN_UNITS)
        )

    @functools.cached_property
    def is_unsegmented(self) -> np.ndarray:
        """Return whether most units belong to scripts written without spaces."""
        unsegmented = self.count_of(tc.CHINESE_JAPANESE_UNITS) + self.count_of(tc.SOUTH_EAST_ASIAN_UNITS)
        return unsegmented * 2 > self.units

    @property
    def characters(self) -> np.ndarray:
        """Return the characters of all units together, without whitespace."""
        return self.count_of(tc.UNIT_CHARACTERS)

    @functools.cached_property
    def languages(self) -> list[str | None]:
        """Return ISO 639 codes; None where the language is not known."""
        rows = np.flatnonzero(self.wanted)
        self.contexts.identify_unknown(self.texts, rows)
        languages: list[str | None] = [None] * len(self.texts)
        for row in rows.tolist():
            languages[row] = self.contexts.language(row)
        return languages

    @functools.cached_property
    def language_confidences(self) -> np.ndarray:
        """Return the confidence (0 to 1) of the identified language."""
        return self.contexts.identify(self.texts, np.flatnonzero(self.wanted))[1]

    def stop_words_seen(self, languages: Sequence[str | None]) -> np.ndarray:
        """Return how many distinct stop words of a language each text contains; NaN where there is no list for it."""
        words = stop_words()
        rows = np.array([words.rows.get((code or "").partition("-")[0].lower(), -1) for code in languages], np.int64)
        return np.where(rows < 0, np.nan, np.bitwise_count(words.lists[rows] & self._counted[1]).sum(axis=1))

    @property
    def max_stop_words_seen(self) -> np.ndarray:
        """Return the largest `stop_words_seen` over all languages."""
        of_lists = stop_words().lists[:, None, :] & self._counted[1]
        return np.bitwise_count(of_lists).sum(axis=2).max(axis=0).astype(np.float64)

    @functools.cached_property
    def structure(self) -> Structure:
        """Return the counts of what the lines are."""
        return (self._structure or Structure(self.texts)).scan(self.wanted)

    @functools.cached_property
    def text_words(self) -> np.ndarray:
        """Return the words outside code and front matter; ideographs are counted by characters per word."""
        ideographs = self.structure.count_of(st.IDEOGRAPHS)
        return words_of_units(self.structure.count_of(st.WORDS) + ideographs, ideographs, 0)

    @functools.cached_property
    def repeated_text_lines(self) -> tuple[np.ndarray, ...]:
        """Return (lines, characters) of text that repeat an earlier line, outside code, tables, headings and lists."""
        structure = self.structure
        lines = structure.hashes, structure.lengths, structure.firsts, structure.lines(*st.HASHED_LINES)
        return self._search(repetition.repeated_blocks, lines, self.wanted, 2)

    @functools.cached_property
    def repeated_lines(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (share of lines, share of their characters) that repeat an earlier line."""
        return self._repeated(counting.LINE_ROW, tc.LINES, tc.LINE_CHARACTERS)

    @functools.cached_property
    def repeated_paragraphs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (share of paragraphs, share of their characters) that repeat an earlier paragraph."""
        return self._repeated(counting.PARAGRAPH_ROW, tc.PARAGRAPHS, tc.PARAGRAPH_CHARACTERS)

    def _repeated(self, row: int, count: int, characters: int) -> tuple[np.ndarray, np.ndarray]:
        blocks = self._of_row(row, count)
        repeated, repeated_characters = self._search(repetition.repeated_blocks, blocks, self.wanted, 2)
        return (
            np.nan_to_num(share(repeated, self.count_of(count))),
            np.nan_to_num(share(repeated_characters, self.count_of(characters))),
        )

    def top_gram_share(self, n: int, enough: float = 0.0) -> np.ndarray:
        """Return characters of the most frequent n-gram times its count, over all characters; 0 where none repeats.

        No run of words is more frequent than the pairs in it, which bounds the share; where the bound is not above
        `enough`, it is returned without a search.
        """
        max_uses, longest, _ = self._pairs
        if n == _PAIR:
            return self._top_share(max_uses, longest)
        widest = np.zeros(len(self.texts), np.int64)
        repetition.longest_runs(*self._units[1:], self._gram_sizes(n), self.wanted, widest)
        bound = self._top_share(max_uses, widest)
        in_question = self.wanted & (bound > enough)
        if not in_question.any():
            return bound
        max_uses, longest, _ = self._grams(n, 0, in_question)
        return np.where(in_question, self._top_share(max_uses, longest), bound)

    def _top_share(self, max_uses: np.ndarray, longest: np.ndarray) -> np.ndarray:
        return np.where(max_uses > 1, np.minimum(1.0, np.nan_to_num(share(max_uses * longest, self.characters))), 0.0)

    @functools.cached_property
    def _pairs(self) -> tuple[np.ndarray, ...]:
        return self._grams(_PAIR, _FIVE, self.wanted)

    def _grams(self, n: int, longer: int, wanted: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return (uses of the most frequent n-gram, characters of the longest such, bound of the longer ones)."""
        sizes = self._gram_sizes(n), self._gram_sizes(longer)
        return self._search(repetition.frequent_grams, (*self._units, *sizes), wanted, 3)

    def repeated_gram_share(self, n: int, enough: float = 0.0) -> np.ndarray:
        """Return the share of characters in n-grams (n >= 5) that repeat an earlier one, each character counted once.

        A repeated n-gram consists of repeated 5-grams, and those of repeated pairs of words, so their shares are upper
        bounds; where one is not above `enough`, it is returned without a further search.
        """
        bound = np.nan_to_num(share(self._pairs[2], self.characters))
        in_question = self.wanted & (bound > enough)
        if in_question.any():
            bound = np.where(in_question, self._repeated_fives(in_question), bound)
            in_question &= bound > enough
        if n > _FIVE and in_question.any():
            bound = np.where(in_question, self._repeated_share(n, in_question), bound)
        return bound

    def _repeated_fives(self, wanted: np.ndarray) -> np.ndarray:
        unknown = wanted & np.isnan(self._fives)
        if unknown.any():
            self._fives[unknown] = self._repeated_share(_FIVE, unknown)[unknown]
        return self._fives

    def _repeated_share(self, n: int, wanted: np.ndarray) -> np.ndarray:
        (characters,) = self._search(repetition.repeated_grams, (*self._units, self._gram_sizes(n)), wanted, 1)
        return np.nan_to_num(share(characters, self.characters))

    def _gram_sizes(self, n: int) -> np.ndarray:
        return np.where(self.is_unsegmented, _UNITS_PER_WORD_OF_A_GRAM * n, n)

    @property
    def _units(self) -> tuple[np.ndarray, ...]:
        return self._of_row(counting.UNIT_ROW, tc.UNITS)

    def _of_row(self, row: int, count: int) -> tuple[np.ndarray, ...]:
        """Return (hashes, lengths, first, number) of units, lines or paragraphs."""
        _, _, hashes, lengths, firsts = self._counted
        return hashes[row], lengths[row], firsts[row], self.count_of(count)

    def _search(
        self, search: Callable[..., np.uint64], blocks: tuple[np.ndarray, ...], wanted: np.ndarray, results: int
    ) -> tuple[np.ndarray, ...]:
        """Search the `wanted` texts for repetitions with a kernel, given (hashes, lengths, first, number, sizes) of
        blocks; returns its results (int64, a value for each text)."""
        found = tuple(np.zeros(len(self.texts), np.int64) for _ in range(results))
        self._slots.ensure_capacity(int(blocks[3].max(initial=0)))
        self._slots.stamp = search(*blocks, wanted, self._slots.table, self._slots.stamp, *found)
        return found
