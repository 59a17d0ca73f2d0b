"""The longest run of tokens that a text shares with training's rows, of many texts in one pass over the rows.

All texts go into one suffix automaton (Blumer et al. 1985), which reads the rows token by token and knows at each place
how many of the last tokens stand together in some text: a step forward, or back to a shorter ending. A run ends with
its row.

Shapes: R rows, L tokens a row, S states, K slots of the table of transitions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.kernels import kernel

ABSENT = -1


@dataclass(frozen=True)
class Overlap:
    """Tokens [begin, begin + tokens) of a text, which stand at `place` of row `row` of training."""

    tokens: int
    begin: int = 0
    row: int = ABSENT
    place: int = ABSENT


def longest_overlaps(texts: Sequence[Sequence[int]], parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> list[Overlap]:
    """For each text its longest run in the rows, the first of equals in the rows' order.

    `parts` are row numbers i64[R] and tokens [R, L] of each; texts hold ids of the same vocabulary.
    """
    automaton = SuffixAutomaton(texts)
    keys, targets = automaton.slots()
    lengths, links = np.array(automaton.length), np.array(automaton.link)
    best = np.zeros((len(lengths), 3), dtype=np.int64)
    for numbers, tokens in parts:
        read_rows(np.ascontiguousarray(tokens, dtype=np.int64), numbers, keys, targets, lengths, links, best)
    # What stands in the rows stands there with all its endings.
    for state in np.argsort(-lengths, kind="stable").tolist():
        shorter = links[state]
        if state and best[state, 0] and lengths[shorter] > best[shorter, 0]:
            best[shorter] = (lengths[shorter], *best[state, 1:])
    return [automaton.longest(number, best) for number in range(len(texts))]


class SuffixAutomaton:
    """Every run of tokens of every text; a state for all runs that end in the same places."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self.length: list[int] = [0]
        self.link: list[int] = [ABSENT]
        self._next: list[dict[int, int]] = [{}]
        self._prefixes: list[list[int]] = []
        last = 0
        for number, text in enumerate(texts):
            states: list[int] = []
            for token in text:
                last = self._extend(last, int(token))
                states.append(last)
            self._prefixes.append(states)
            # No row holds a negative token, so that no run leads from one text into the next.
            last = self._extend(last, -1 - number)

    def _extend(self, last: int, token: int) -> int:
        state = self._added(self.length[last] + 1, {})
        at = last
        while at != ABSENT and token not in self._next[at]:
            self._next[at][token] = state
            at = self.link[at]
        if at == ABSENT:
            self.link[state] = 0
            return state
        found = self._next[at][token]
        if self.length[found] == self.length[at] + 1:
            self.link[state] = found
            return state
        copy = self._added(self.length[at] + 1, dict(self._next[found]))
        self.link[copy] = self.link[found]
        while at != ABSENT and self._next[at].get(token) == found:
            self._next[at][token] = copy
            at = self.link[at]
        self.link[found] = self.link[state] = copy
        return state

    def _added(self, length: int, following: dict[int, int]) -> int:
        self.length.append(length)
        self.link.append(0)
        self._next.append(following)
        return len(self.length) - 1

    def slots(self) -> tuple[np.ndarray, np.ndarray]:
        """Transitions by tokens of rows in a table with open addressing: (state, token) i64[K, 2], and targets i64[K];
        K is a power of two, at most half full."""
        found = [
            (state, token, target)
            for state, row in enumerate(self._next)
            for token, target in row.items()
            if token >= 0
        ]
        size = 1 << max(3, (2 * len(found)).bit_length())
        keys, targets = np.full((size, 2), ABSENT, dtype=np.int64), np.full(size, ABSENT, dtype=np.int64)
        for state, token, target in found:
            slot = slot_of(state, token, size)
            while targets[slot] != ABSENT:
                slot = (slot + 1) % size
            keys[slot], targets[slot] = (state, token), target
        return keys, targets

    def longest(self, number: int, best: np.ndarray) -> Overlap:
        """The longest run of one text, from `best` [S, 3]: tokens, row and last place of each state."""
        found = Overlap(0)
        for place, prefix in enumerate(self._prefixes[number]):
            state = prefix
            while state > 0 and not best[state, 0]:
                state = self.link[state]
            tokens = int(best[state, 0]) if state > 0 else 0
            if tokens > found.tokens:
                row, end = best[state, 1:].tolist()
                found = Overlap(tokens, place + 1 - tokens, row, end + 1 - tokens)
        return found


@kernel
def slot_of(state: int, token: int, size: int) -> np.int64:
    """Where a transition's place in the table is looked for first."""
    mixed = (np.int64(state) * np.int64(1_000_003) + np.int64(token)) * np.int64(2_654_435_761)
    return ((mixed >> 15) ^ mixed) & (size - 1)


@kernel
def read_rows(
    tokens: np.ndarray,
    numbers: np.ndarray,
    keys: np.ndarray,
    targets: np.ndarray,
    lengths: np.ndarray,
    links: np.ndarray,
    best: np.ndarray,
) -> None:
    """Take rows i64[R, L] with their numbers i64[R] through the automaton; `best` keeps the longest run that reached
    each state."""
    size = len(targets)
    for row in range(len(tokens)):
        state, held = 0, 0
        for place in range(tokens.shape[1]):
            token = tokens[row, place]
            while True:
                slot = slot_of(state, token, size)
                while targets[slot] != -1 and (keys[slot, 0] != state or keys[slot, 1] != token):
                    slot = (slot + 1) % size
                if targets[slot] != -1:
                    state, held = targets[slot], held + 1
                    break
                if state == 0:
                    held = 0
                    break
                state = links[state]
                held = lengths[state]
            if held > best[state, 0]:
                best[state, 0], best[state, 1], best[state, 2] = held, numbers[row], place
