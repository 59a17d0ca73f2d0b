"""The stable order: each row takes a seat of its own choice, so that a row that goes moves few others.

A pass over a source has a fixed number of seats. Each row tries seats that follow from its key and the pass's seed, and
takes the first that no row before it took; rows come in the order of their own random numbers. So the seats are a
function of the set of rows. A row that goes frees its seat, which another may take, whose own seat is then free, and so
on: about 2.6 seats change. Rows of a document, and those of its bucket, try seats near one place of the pass, at first
within a fiftieth of it and then in twice the range after every second try, so that a document is read within a short
range of each pass. A seat that no row took, and one of a tombstone's row, reads the source's blank row, which is all
padding and carries no loss.

With fewer seats than rows 2 to 7% stay empty; 8 to 12% of the rows stay out of a pass, in each pass others. The number
of seats, of buckets and of reads can be kept from an earlier run (`chunk.keep`): then the source of each position stays
as well.

Shapes: S seats of a pass, R rows.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from model.errors import InputError, RecipeError
from tasks.chunk.mixture import Mixture
from tasks.chunk.order import GOLDEN_GAMMA, pass_seed, permutation, splitmix64
from tasks.chunk.stable_rows import RowKeys
from tasks.common.kernels import inlined_kernel, kernel

SEATS_PER_ROW = 15 / 16
TRIES = 16
TRIES_PER_RANGE = 2
"""Tries after which a row looks for a seat in twice the range."""
FIRST_RANGE = 1 / 50
"""Share of a pass in which the rows of a bucket look for seats at first."""

SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("buckets", pa.int64(), nullable=False),
        pa.field("seats", pa.int64(), nullable=False),
        pa.field("reads", pa.list_(pa.int64()), nullable=False),
    ]
)
"""The table SEATS: of each source buckets, seats of a pass, and seats read up to the end of each part of the order."""


@dataclass(frozen=True)
class SeatPlan:
    """The numbers of one source that a stable order keeps."""

    buckets: int
    seats: int
    reads: tuple[int, ...]


def read_seats(table: pa.Table) -> dict[str, SeatPlan]:
    """Return source -> plan of a table SEATS."""
    return {row["source"]: SeatPlan(row["buckets"], row["seats"], tuple(row["reads"])) for row in table.to_pylist()}


def seats_table(parts: Sequence[Sequence["SeatedReads"]]) -> pa.Table:
    """Return SEATS of an order."""
    columns = [
        {
            "source": one.source,
            "buckets": one.buckets,
            "seats": one.seats,
            "reads": [part[number].reads for part in parts],
        }
        for number, one in enumerate(parts[-1])
    ]
    return pa.Table.from_pylist(columns, schema=SCHEMA)


class Passes:
    """Who sits where in each pass over a source: `place(nth)` is i64[S], numbers of rows, R for the blank row."""

    def __init__(self, source: str, rows: RowKeys, absent: RowKeys, buckets: int, seats: int, run_seed: int) -> None:
        self._source, self._run_seed = source, run_seed
        self._rows = len(rows.keys)
        self._keys = np.concatenate([rows.keys, absent.keys])
        self._documents = np.concatenate([rows.documents, absent.documents])
        self._bucket = np.concatenate([rows.buckets, absent.buckets])
        self.buckets, self.seats = buckets, seats
        self.place = functools.cache(self._place)

    def _place(self, nth: int) -> np.ndarray:
        seed = pass_seed(self._run_seed, self._source, nth)
        places = permutation(0, self.buckets, self.buckets, seed)[self._bucket]
        centres = _centres(self._documents, places, self.buckets, np.uint64(seed))
        numbers = _numbers(self._keys, np.uint64(seed))
        taken = np.full(self.seats, -1, np.int64)
        _take_seats(np.argsort(numbers, kind="stable"), numbers, centres, taken)
        return np.where((taken < 0) | (taken >= self._rows), self._rows, taken)


@dataclass(frozen=True)
class SeatedReads:
    """What is read of one source up to the end of a part of the order: its first `reads` seats, pass after pass."""

    source: str
    first_row: int
    rows: int
    """Rows of the source; the last is the blank one."""
    reads: int
    tokens: int
    """Tokens of the budget that this takes."""
    passes: Passes

    @property
    def buckets(self) -> int:
        """Number of buckets."""
        return self.passes.buckets

    @property
    def seats(self) -> int:
        """Seats of a pass."""
        return self.passes.seats

    @functools.cached_property
    def _times(self) -> np.ndarray:
        times = np.zeros(self.rows, np.int64)
        for begin in range(0, self.reads, max(1, self.seats)):
            place = self.passes.place(begin // self.seats)
            times += np.bincount(place[: self.reads - begin], minlength=self.rows)
        return times

    @property
    def blank(self) -> int:
        """Reads of the blank row."""
        return int(self._times[-1])

    def positions(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (row, pass) of reads [begin, end) of this source, i64 both."""
        row, epoch = np.empty(end - begin, np.int64), np.empty(end - begin, np.int64)
        at = begin
        while at < end:
            nth, seat = divmod(at, self.seats)
            stop = min(end, (nth + 1) * self.seats)
            row[at - begin : stop - begin] = self.first_row + self.passes.place(nth)[seat : seat + stop - at]
            epoch[at - begin : stop - begin] = nth
            at = stop
        return row, epoch

    def times_read(self, begin: int, end: int) -> np.ndarray:
        """Return how often rows [begin, end) of this source, counted from its first, are read, i64."""
        return self._times[begin:end]


@dataclass(frozen=True)
class SeatedSource:
    """Rows of one source and what decides their seats."""

    first_row: int
    written: RowKeys
    absent: RowKeys
    buckets: int


def plan_seats(
    mixtures: Sequence[Mixture],
    sources: Mapping[str, SeatedSource],
    counted: np.ndarray,
    run_seed: int,
    kept: Mapping[str, SeatPlan],
) -> list[list[SeatedReads]]:
    """Return the reads of each source up to the end of each part of the order: as many as `kept` says, or those that
    come closest below the mixture's tokens.

    `counted` are the tokens that each row takes (of all sources, in the order of their names). Raises RecipeError where
    `kept` is of another number of parts, InputError where no row is read.
    """
    parts: list[list[SeatedReads]] = [[] for _ in mixtures]
    for name, source in sorted(sources.items()):
        rows, plan = len(source.written.keys), kept.get(name)
        if plan is not None and len(plan.reads) != len(mixtures):
            raise RecipeError(
                f"chunk.keep: the run that it names read `{name}` in {len(plan.reads)} parts, and this recipe has"
                f" {len(mixtures)}. Give train.phases as in that run, or leave `keep` out."
            )
        seats = max(1, round(rows * SEATS_PER_ROW)) if plan is None else plan.seats
        passes = Passes(name, source.written, source.absent, source.buckets, seats, run_seed)
        own = np.append(counted[source.first_row : source.first_row + rows], 0).astype(np.int64)
        target = 0
        for number, mixture in enumerate(mixtures):
            target += mixture.targets.get(name, 0)
            reads = _reads_within(own, target, passes) if plan is None else plan.reads[number]
            tokens = sum(
                int(own[passes.place(begin // seats)[: reads - begin]].sum()) for begin in range(0, reads, seats)
            )
            parts[number].append(SeatedReads(name, source.first_row, rows + 1, reads, tokens, passes))
    for before, part, mixture in zip([None, *parts[:-1]], parts, mixtures, strict=True):
        if sum(one.reads for one in part) == sum(one.reads for one in before or ()):
            raise InputError(
                f"chunk: {mixture.budget:,} tokens do not allow one whole row under the cap on repetition; raise"
                f" chunk.budget_tokens or chunk.max_epochs"
            )
    return parts


def _reads_within(counted: np.ndarray, tokens: int, passes: Passes) -> int:
    """Return the seats, pass after pass, whose rows together have at most `tokens` tokens; ends with a row that is
    read."""
    reads = nth = 0
    while tokens:
        sums = np.cumsum(counted[passes.place(nth)])
        if not sums[-1]:
            break
        if sums[-1] > tokens:
            fitting = int(np.searchsorted(sums, tokens, side="right"))
            return reads + (int(np.searchsorted(sums, sums[fitting - 1])) + 1 if fitting and sums[fitting - 1] else 0)
        reads, tokens, nth = reads + len(sums), tokens - int(sums[-1]), nth + 1
    return reads


@kernel
def _numbers(keys: np.ndarray, seed: np.uint64) -> np.ndarray:
    numbers = np.empty(len(keys), np.uint64)
    for row in range(len(keys)):
        numbers[row] = splitmix64(keys[row] ^ splitmix64(seed))
    return numbers


@kernel
def _centres(documents: np.ndarray, place: np.ndarray, buckets: int, seed: np.uint64) -> np.ndarray:
    """Return where in a pass, [0, 1), each row looks for a seat: within the part of its bucket, by its document."""
    centres = np.empty(len(documents), np.float64)
    for row in range(len(documents)):
        centres[row] = (place[row] + _share(splitmix64(documents[row] ^ seed))) / buckets
    return centres


@inlined_kernel
def _share(number: np.uint64) -> np.float64:
    """Return a number of 64 random bits as one in [0, 1)."""
    return np.float64(number >> np.uint64(11)) / 9007199254740992.0


@kernel
def _take_seats(order: np.ndarray, numbers: np.ndarray, centres: np.ndarray, taken: np.ndarray) -> None:
    """Write the row of each seat; seats beyond an end of the pass are mirrored at it."""
    seats = len(taken)
    for row in order:
        for nth in range(TRIES):
            number = splitmix64(numbers[row] + np.uint64(nth + 1) * GOLDEN_GAMMA)
            reach = FIRST_RANGE * 2.0 ** (nth // TRIES_PER_RANGE)
            seat = np.int64(np.floor((centres[row] + (_share(number) - 0.5) * reach) * seats))
            if seat < 0:
                seat = -1 - seat
            if seat >= seats:
                seat = 2 * seats - 1 - seat
            if 0 <= seat < seats and taken[seat] < 0:
                taken[seat] = row
                break
