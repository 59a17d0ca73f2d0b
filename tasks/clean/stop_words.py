"""Stop words of two dozen languages, as a hash table that the counting kernel looks words up in."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasks.clean.counting import finish

_EMPTY = -1
_BASIS = 0xCBF29CE484222325
_PRIME = 0x9E3779B97F4A7C15
_TO_64_BITS = (1 << 64) - 1


@dataclass(frozen=True)
class StopWords:
    """`keys` and `numbers` are an open-addressed table, word's hash to its number; `lists` is languages x words, in
    bits of uint64; `longest` the characters of the longest word."""

    keys: np.ndarray
    numbers: np.ndarray
    lists: np.ndarray
    rows: dict[str, int]
    count: int
    longest: int

    def seen(self, seen: np.ndarray, languages: Sequence[str | None]) -> np.ndarray:
        """How many words of each text's language are marked in its row of `seen`; NaN where there is no list."""
        rows = np.array([self.rows.get((code or "").partition("-")[0].lower(), -1) for code in languages], np.int64)
        return np.where(rows < 0, np.nan, np.bitwise_count(self.lists[rows] & seen).sum(axis=1))

    def most_seen(self, seen: np.ndarray) -> np.ndarray:
        """How many words of the list that fits each text best are marked in its row of `seen`."""
        return np.bitwise_count(self.lists[:, None, :] & seen[None]).sum(axis=2).max(axis=0).astype(np.float64)


@functools.cache
def stop_words() -> StopWords:
    """The lists of `stop_words.tsv`; a word counts in small letters, with a capital, or in capitals."""
    lines = Path(__file__).with_name("stop_words.tsv").read_text("utf-8").splitlines()
    by_language = {language: words.split() for language, words in (line.split("\t") for line in lines if line)}
    numbers = {word: 0 for words in by_language.values() for word in words}
    numbers = {word: number for number, word in enumerate(numbers)}
    lists = np.zeros((len(by_language), -(-len(numbers) // 64)), np.uint64)
    for row, words in enumerate(by_language.values()):
        for word in words:
            lists[row, numbers[word] >> 6] |= np.uint64(1 << (numbers[word] & 63))
    size = 1 << (8 * len(numbers)).bit_length()
    keys = np.zeros(size, np.uint64)
    table = np.full(size, _EMPTY, np.int16)
    for word, number in numbers.items():
        for form in dict.fromkeys((word, word.capitalize(), word.upper())):
            key = word_hash(form)
            slot = key & (size - 1)
            while table[slot] != _EMPTY and int(keys[slot]) != key:
                slot = (slot + 1) & (size - 1)
            keys[slot], table[slot] = key, number
    rows = {language: row for row, language in enumerate(by_language)}
    return StopWords(keys, table, lists, rows, len(numbers), max(map(len, numbers)))


def word_hash(word: str) -> int:
    """The hash that `counting.count_texts` gives to a unit."""
    state = _BASIS
    for character in word:
        state = ((state ^ ord(character)) * _PRIME) & _TO_64_BITS
    return int(finish(np.uint64(state)))
