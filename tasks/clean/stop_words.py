"""Stop words of two dozen languages, as a hash table that the counting kernel looks words up in."""

import functools
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
    """`keys` and `numbers` are an open-addressed table, word's hash to its number; `lists` is languages x words."""

    keys: np.ndarray
    numbers: np.ndarray
    lists: np.ndarray
    rows: dict[str, int]

    @property
    def count(self) -> int:
        """Number of different words."""
        return self.lists.shape[1]

    def seen(self, seen: np.ndarray, language: str) -> int | None:
        """How many words of a language's list are marked in `seen`; None where there is no list."""
        row = self.rows.get(language)
        return None if row is None else int((self.lists[row] & seen).sum())

    def most_seen(self, seen: np.ndarray) -> int:
        """How many words of the list that fits best are marked in `seen`."""
        return int((self.lists & seen).sum(axis=1).max())


@functools.cache
def stop_words() -> StopWords:
    """The lists of `stop_words.tsv`; a word counts in small letters, with a capital, or in capitals."""
    lines = Path(__file__).with_name("stop_words.tsv").read_text("utf-8").splitlines()
    by_language = {language: words.split() for language, words in (line.split("\t") for line in lines if line)}
    numbers = {word: 0 for words in by_language.values() for word in words}
    numbers = {word: number for number, word in enumerate(numbers)}
    lists = np.zeros((len(by_language), len(numbers)), np.uint8)
    for row, words in enumerate(by_language.values()):
        lists[row, [numbers[word] for word in words]] = 1
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
    return StopWords(keys, table, lists, {language: row for row, language in enumerate(by_language)})


def word_hash(word: str) -> int:
    """The hash that `counting.count_text` gives to a unit."""
    state = _BASIS
    for character in word:
        state = ((state ^ ord(character)) * _PRIME) & _TO_64_BITS
    return int(finish(np.uint64(state)))
