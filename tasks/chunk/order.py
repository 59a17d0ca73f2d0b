"""ORDER: the exact sequence in which training reads rows, a function of the plan and the seed, computed as a stream.

Each source is read pass after pass, every pass in a random order of its own, the last one perhaps in part: as many rows
as its tokens allow. The next row comes from the source that lags most behind its share, so that every range of the
order has the mixture to within a few rows, however short or long. An order of several parts (`train.phases`) has the
mixture of each within it: a part goes on with each source where the one before it ended.

Nothing of the size of the order or of a source is held in memory: a row's position is computed. Random permutations of
0 .. n - 1 are a Feistel network over the smallest power of two that is at least n (Luby and Rackoff 1988), followed
along its cycle until the result is below n (Black and Rogaway 2002), which takes less than two steps on average. The
halves differ by at most a bit; the round function is the finaliser of SplitMix64 (Steele, Lea and Flood 2014). Integers
only: the same on every machine.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from model.data.schema import ORDER
from model.errors import InputError
from model.kernels import kernel
from tasks.chunk.mixture import Mixture
from tasks.common.numeric import seed64

BATCH_POSITIONS = 1 << 16
"""Positions, or rows of a pass, that are computed at a time."""
ROUNDS = 8
FEWEST_BITS = 8
"""Bits of the network, however small n: with the three bits that five items need, not all their orders were equally
likely (chi-square 1,149 at 119 degrees of freedom after 60,000 orders; with eight bits 135)."""
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""Increment of SplitMix64: 2^64 divided by the golden ratio."""


@dataclass(frozen=True)
class SourceReads:
    """What is read of one source: `passes` times all `rows` from `first_row` on, and `partial` rows once more."""

    source: str
    first_row: int
    rows: int
    passes: int
    partial: int
    tokens: int
    """Tokens of the budget that this takes."""
    run_seed: int

    @property
    def reads(self) -> int:
        """Rows read, repetitions included."""
        return self.passes * self.rows + self.partial

    def positions(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (row, epoch) of reads [begin, end) of this source, i64 both."""
        return pass_by_pass(
            begin,
            end,
            self.rows,
            lambda nth, first, stop: self.first_row + permutation(first, stop, self.rows, self._seed(nth)),
        )

    def times_read(self, begin: int, end: int) -> np.ndarray:
        """Return how often rows [begin, end) of this source, counted from its first, are read, i64."""
        times = np.full(end - begin, self.passes, dtype=np.int64)
        if self.partial:
            times += inverse_permutation(np.arange(begin, end), self.rows, self._seed(self.passes)) < self.partial
        return times

    def _seed(self, nth: int) -> int:
        return pass_seed(self.run_seed, self.source, nth)


def plan_parts(
    mixtures: Sequence[Mixture], rows: Mapping[str, int], counted: np.ndarray, run_seed: int
) -> list[list[SourceReads]]:
    """Return the reads of each source up to the end of each part of the order; a part goes on where the one before it
    ended."""
    parts: list[list[SourceReads]] = []
    for mixture in mixtures:
        parts.append(plan_reads(mixture, rows, counted, run_seed, parts[-1] if parts else ()))
    return parts


def plan_reads(
    mixture: Mixture,
    rows: Mapping[str, int],
    counted: np.ndarray,
    run_seed: int,
    before: Sequence[SourceReads] = (),
) -> list[SourceReads]:
    """Return the reads of each source that come closest below the mixture's tokens, those of earlier parts (`before`)
    included.

    `counted` are the tokens that each row takes (of all sources, in the order of their names), which may be a memory
    map. What a source leaves of its share, less than a row, goes to the next one that may still repeat. Raises
    InputError where no row with a token of the budget is read.
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

    earlier = {one.source: one for one in before}
    read = {source: earlier[source].tokens if source in earlier else 0 for source in sources}
    planned: dict[str, SourceReads] = {}
    carried, capped = 0, False
    for source in sources:
        target = mixture.targets.get(source, 0)
        if not target:
            planned[source] = earlier.get(source) or reads(source, 0)
            continue
        capped |= target + carried > mixture.limits[source]
        planned[source] = reads(source, read[source] + min(target + carried, mixture.limits[source]))
        carried = max(0, target + carried - (planned[source].tokens - read[source]))
    # Tokens that the cap on repetition denied to a source may be enough for a row of an earlier one.
    for source in sources if capped else ():
        if carried and mixture.targets.get(source, 0):
            until_now = planned[source].tokens
            planned[source] = reads(source, min(until_now + carried, read[source] + mixture.limits[source]))
            carried -= planned[source].tokens - until_now
    if sum(source.tokens for source in planned.values()) == sum(source.tokens for source in before):
        raise InputError(
            f"chunk: {mixture.budget:,} tokens do not allow one whole row under the cap on repetition; raise"
            f" budget_tokens or max_epochs"
        )
    return list(planned.values())


def _rows_within(counted: np.ndarray, tokens: int, seed: int) -> tuple[int, int]:
    """Return (rows, their tokens): the first rows of a pass that together have at most `tokens` tokens."""
    taken = read = 0
    for begin in range(0, len(counted), BATCH_POSITIONS):
        if not tokens:
            break
        order = permutation(begin, min(begin + BATCH_POSITIONS, len(counted)), len(counted), seed)
        sums = taken + np.cumsum(counted[order], dtype=np.int64)
        fitting = int(np.searchsorted(sums, tokens, side="right"))
        if fitting:
            read, taken = read + fitting, int(sums[fitting - 1])
        if fitting < len(order):
            break
    return read, taken


def pass_by_pass(
    begin: int, end: int, size: int, rows_of: Callable[[int, int, int], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return (row, pass) of reads [begin, end) of a source that is read in passes of `size` reads, i64 both.

    `rows_of(nth, first, stop)` returns the rows of reads [first, stop) of the `nth` pass.
    """
    row, epoch = np.empty(end - begin, np.int64), np.empty(end - begin, np.int64)
    at = begin
    while at < end:
        nth, first = divmod(at, size)
        stop = min(end, (nth + 1) * size)
        row[at - begin : stop - begin] = rows_of(nth, first, first + stop - at)
        epoch[at - begin : stop - begin] = nth
        at = stop
    return row, epoch


def pass_seed(run_seed: int, source: str, nth: int) -> int:
    """Return the seed of the order of the source's `nth` pass."""
    return seed64(run_seed, "chunk", "pass", f"{source}/{nth}")


class Reads(Protocol):
    """Reads of one source up to the end of a part of the order, in their sequence."""

    @property
    def reads(self) -> int:
        """Rows read, repetitions included."""
        ...

    def positions(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (row, epoch) of reads [begin, end) of this source, i64 both."""
        ...


def order_batches(parts: Sequence[Sequence[Reads]]) -> Iterator[pa.RecordBatch]:
    """Yield ORDER: which row is read at each position, and in which epoch of its source (from 0)."""
    done = np.zeros(len(parts[0]), dtype=np.int64)
    for planned in parts:
        yield from _batches_of_part(planned, done)


def _batches_of_part(planned: Sequence[Reads], done: np.ndarray) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one part; `done` [sources] are the reads before it, and behind it those up to its end."""
    reads = np.array([source.reads for source in planned], dtype=np.int64) - done
    total = int(reads.sum())
    lag = np.zeros(len(planned), dtype=np.int64)
    for begin in range(0, total, BATCH_POSITIONS):
        which = np.empty(min(BATCH_POSITIONS, total - begin), dtype=np.int64)
        _interleave(reads, total, lag, which)
        row = np.empty(len(which), dtype=np.int64)
        epoch = np.empty(len(which), dtype=np.int16)
        for number, source in enumerate(planned):
            mine = np.flatnonzero(which == number)
            row[mine], epoch[mine] = source.positions(int(done[number]), int(done[number]) + len(mine))
            done[number] += len(mine)
        yield pa.record_batch({"row": row, "epoch": epoch}, schema=ORDER)


@kernel
def _interleave(reads: np.ndarray, total: int, lag: np.ndarray, which: np.ndarray) -> None:
    """Write the source of each position: the one that lags most behind its share. `lag` [sources] carries over
    between calls."""
    for position in range(len(which)):
        most = -1
        for source in range(len(reads)):
            lag[source] += reads[source]
            if reads[source] and (most < 0 or lag[source] > lag[most]):
                most = source
        lag[most] -= total
        which[position] = most


def permutation(begin: int, end: int, count: int, seed: int) -> np.ndarray:
    """Return entries [begin, end) of the permutation of 0 .. count - 1 with this seed (64 bits), i64."""
    return _permute(np.arange(begin, end, dtype=np.int64), count, _round_keys(np.uint64(seed)), False)


def inverse_permutation(numbers: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return the position of each of `numbers` in that permutation, i64."""
    return _permute(numbers.astype(np.int64), count, _round_keys(np.uint64(seed)), True)


@kernel
def _round_keys(seed: np.uint64) -> np.ndarray:
    keys = np.empty(ROUNDS, dtype=np.uint64)
    for nth in range(ROUNDS):
        keys[nth] = splitmix64(seed + np.uint64(nth + 1) * GOLDEN_GAMMA)
    return keys


@kernel
def _permute(numbers: np.ndarray, count: int, keys: np.ndarray, backwards: bool) -> np.ndarray:
    bits = FEWEST_BITS
    while (1 << bits) < count:
        bits += 1
    low_bits = np.uint64(bits // 2)
    low_mask = (np.uint64(1) << low_bits) - np.uint64(1)
    high_mask = (np.uint64(1) << np.uint64(bits - bits // 2)) - np.uint64(1)
    permuted = np.empty(len(numbers), dtype=np.int64)
    for position in range(len(numbers)):
        number = np.uint64(numbers[position])
        while True:
            high, low = number >> low_bits, number & low_mask
            if backwards:
                for nth in range(len(keys) - 2, -1, -2):
                    low ^= splitmix64(high + keys[nth + 1]) & low_mask
                    high ^= splitmix64(low + keys[nth]) & high_mask
            else:
                for nth in range(0, len(keys), 2):
                    high ^= splitmix64(low + keys[nth]) & high_mask
                    low ^= splitmix64(high + keys[nth + 1]) & low_mask
            number = (high << low_bits) | low
            if number < np.uint64(count):
                break
        permuted[position] = np.int64(number)
    return permuted


@kernel
def splitmix64(number: np.uint64) -> np.uint64:
    """Return the finaliser of SplitMix64: 64 bits to 64 bits, one to one; every output bit depends on every input
    bit."""
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))
