"""The exact sequence in which training reads rows: a function of the plan and the seed, made without holding it.

Each source is read pass after pass, every pass in a random order of its own, the last one perhaps only in part: as many
rows as its tokens allow. Which source comes at a position is decided by who lags most behind its share, so that every
stretch of the order holds the mixture to a few rows, a batch as well as a year. Nothing of the size of the order or of
a source stands in memory: a row's place is computed (`permutation`).

Random orders of 0 .. n - 1 that need no memory: where a number goes is computed, forth and back.

A Feistel network over the smallest power of two that holds n (Luby and Rackoff 1988), walked along its cycle until the
result is below n (Black and Rogaway 2002), which takes less than two steps on average. The halves differ by a bit at
most; the round function is the finaliser of SplitMix64. Integers only: the same on any machine.

The finaliser of SplitMix64 (Steele, Lea and Flood 2014): 64 bits to 64 bits, one to one, near inputs far apart.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from model.data.schema import ORDER
from model.errors import InputError
from tasks.chunk.mixture import Mixture
from tasks.common.kernels import kernel
from tasks.common.numeric import seed64

BATCH = 1 << 16
"""Positions, or rows of a pass, that are worked on at a time."""


@dataclass(frozen=True)
class SourceReads:
    """What is read of one source: `passes` times all `rows` from `first_row` on, and `partial` rows once more."""

    source: str
    first_row: int
    rows: int
    passes: int
    partial: int
    tokens: int
    """Tokens that this takes of the budget."""
    run_seed: int

    @property
    def reads(self) -> int:
        """Rows read, repetitions counted."""
        return self.passes * self.rows + self.partial

    def positions(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """(row, epoch) of reads [begin, end) of this source, i64 both."""
        row = np.empty(end - begin, dtype=np.int64)
        epoch = np.empty(end - begin, dtype=np.int64)
        at = begin
        while at < end:
            nth, place = divmod(at, self.rows)
            stop = min(end, (nth + 1) * self.rows)
            mine = slice(at - begin, stop - begin)
            row[mine] = self.first_row + permuted(place, place + stop - at, self.rows, self._seed(nth))
            epoch[mine] = nth
            at = stop
        return row, epoch

    def times_read(self, begin: int, end: int) -> np.ndarray:
        """How often rows [begin, end) of this source, counted from its first, are read, i64."""
        times = np.full(end - begin, self.passes, dtype=np.int64)
        if self.partial:
            times += places(np.arange(begin, end), self.rows, self._seed(self.passes)) < self.partial
        return times

    def _seed(self, nth: int) -> int:
        return pass_seed(self.run_seed, self.source, nth)


def pass_seed(run_seed: int, source: str, nth: int) -> int:
    """What names the order of the source's `nth` pass."""
    return seed64(run_seed, "chunk", "pass", f"{source}/{nth}")


def plan_reads(mixture: Mixture, rows: Mapping[str, int], counted: np.ndarray, run_seed: int) -> list[SourceReads]:
    """The rows that come nearest below the mixture's tokens, by source.

    `counted` are the tokens that each row takes (of all sources, in the order of their names), which may be a memory
    map. What a source leaves of its share, less than a row, goes to the next that may still repeat. InputError where no
    row is read.
    """
    sources = sorted(rows)
    first_rows = dict(zip(sources, np.cumsum([0, *(rows[source] for source in sources)]).tolist(), strict=False))

    def reads(source: str, target: int) -> SourceReads:
        first_row, count, available = first_rows[source], rows[source], mixture.available[source]
        passes = target // available if available else 0
        seed = pass_seed(run_seed, source, passes)
        own = counted[first_row : first_row + count]
        partial, tokens = _rows_within(own, target - passes * available, seed) if available else (0, 0)
        return SourceReads(source, first_row, count, passes, partial, tokens + passes * available, run_seed)

    planned: dict[str, SourceReads] = {}
    carried, capped = 0, False
    for source in sources:
        target = mixture.targets.get(source, 0)
        if target:
            capped |= target + carried > mixture.limits[source]
            target = min(target + carried, mixture.limits[source])
        planned[source] = reads(source, target)
        if target:
            carried = max(0, mixture.targets[source] + carried - planned[source].tokens)
    # What the cap on repetition kept from one source may be a row of an earlier one.
    for source in sources if capped else ():
        if carried and mixture.targets.get(source, 0):
            before = planned[source].tokens
            planned[source] = reads(source, min(before + carried, mixture.limits[source]))
            carried -= planned[source].tokens - before
    if not any(source.reads for source in planned.values()):
        raise InputError(
            f"chunk: of {mixture.budget:,} tokens not one whole row can be read under the cap on repetition; raise"
            f" budget_tokens or max_epochs"
        )
    return list(planned.values())


def order_batches(planned: Sequence[SourceReads]) -> Iterator[pa.RecordBatch]:
    """ORDER: which row is read at each position, and for which time (epoch, from 0)."""
    reads = np.array([source.reads for source in planned], dtype=np.int64)
    total = int(reads.sum())
    lag = np.zeros(len(planned), dtype=np.int64)
    done = np.zeros(len(planned), dtype=np.int64)
    for begin in range(0, total, BATCH):
        which = np.empty(min(BATCH, total - begin), dtype=np.int64)
        _take_turns(reads, total, lag, which)
        row = np.empty(len(which), dtype=np.int64)
        epoch = np.empty(len(which), dtype=np.int16)
        for number, source in enumerate(planned):
            mine = np.flatnonzero(which == number)
            row[mine], epoch[mine] = source.positions(int(done[number]), int(done[number]) + len(mine))
            done[number] += len(mine)
        yield pa.record_batch({"row": row, "epoch": epoch}, schema=ORDER)


def _rows_within(counted: np.ndarray, tokens: int, seed: int) -> tuple[int, int]:
    """(rows, their tokens): the first rows of a pass whose tokens together are no more than `tokens`."""
    taken = read = 0
    for begin in range(0, len(counted), BATCH):
        if not tokens:
            break
        order = permuted(begin, min(begin + BATCH, len(counted)), len(counted), seed)
        sums = taken + np.cumsum(counted[order], dtype=np.int64)
        fitting = int(np.searchsorted(sums, tokens, side="right"))
        if fitting:
            read, taken = read + fitting, int(sums[fitting - 1])
        if fitting < len(order):
            break
    return read, taken


@kernel
def _take_turns(reads: np.ndarray, total: int, lag: np.ndarray, which: np.ndarray) -> None:
    """Who comes at each position: the source that lags most behind its share; `lag` [sources] goes on where it was."""
    for position in range(len(which)):
        most = -1
        for source in range(len(reads)):
            lag[source] += reads[source]
            if reads[source] and (most < 0 or lag[source] > lag[most]):
                most = source
        lag[most] -= total
        which[position] = most


ROUNDS = 8

FEWEST_BITS = 8
"""Of the network, however small n: with the three bits that five things need, not all their orders were equally likely
(chi-square 1,149 at 119 degrees of freedom after 60,000 orders; with eight bits 135)."""


def permuted(begin: int, end: int, count: int, seed: int) -> np.ndarray:
    """What stands at places [begin, end) of the order of 0 .. count - 1 that `seed` (64 bits) names, i64."""
    return _walk(np.arange(begin, end, dtype=np.int64), count, _round_keys(seed), False)


def places(numbers: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Where in that order each of `numbers` stands, i64: the inverse of `permuted`."""
    return _walk(numbers.astype(np.int64), count, _round_keys(seed), True)


def _round_keys(seed: int) -> np.ndarray:
    return _keys(np.uint64(seed), ROUNDS)


@kernel
def _keys(seed: np.uint64, count: int) -> np.ndarray:
    keys = np.empty(count, dtype=np.uint64)
    for nth in range(count):
        keys[nth] = mix(seed + np.uint64(nth + 1) * STEP)
    return keys


@kernel
def _walk(numbers: np.ndarray, count: int, keys: np.ndarray, backwards: bool) -> np.ndarray:
    bits = FEWEST_BITS
    while (1 << bits) < count:
        bits += 1
    low_bits = np.uint64(bits // 2)
    low_mask = (np.uint64(1) << low_bits) - np.uint64(1)
    high_mask = (np.uint64(1) << np.uint64(bits - bits // 2)) - np.uint64(1)
    walked = np.empty(len(numbers), dtype=np.int64)
    for place in range(len(numbers)):
        number = np.uint64(numbers[place])
        while True:
            high, low = number >> low_bits, number & low_mask
            if backwards:
                for nth in range(len(keys) - 2, -1, -2):
                    low ^= mix(high + keys[nth + 1]) & low_mask
                    high ^= mix(low + keys[nth]) & high_mask
            else:
                for nth in range(0, len(keys), 2):
                    high ^= mix(low + keys[nth]) & high_mask
                    low ^= mix(high + keys[nth + 1]) & low_mask
            number = (high << low_bits) | low
            if number < np.uint64(count):
                break
        walked[place] = np.int64(number)
    return walked


STEP = np.uint64(0x9E3779B97F4A7C15)
"""What the generator adds between two numbers: 2^64 over the golden ratio."""


@kernel
def mix(number: np.uint64) -> np.uint64:
    """Every bit of the result depends on every bit of `number`."""
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))
