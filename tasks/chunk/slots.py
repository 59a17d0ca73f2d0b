"""The stable order: an open-addressed table of rows, so that a row that goes moves few others.

A pass over a source is a table with as many slots as the source had rows when it was planned, the last pass as many as
its tokens allow. Each row probes slots that follow from its key and the pass's seed. In each round all rows without a
slot probe one each, in the order of their random numbers, and keep it where it is free. So the slots are a function of
the set of rows. A row that goes frees its slot, which another row may fill that had found one only in a later round and
now frees that one, and so on: about 2.6 slots change, and about 1% of the slots of a whole pass stay empty, as many
rows unread. With all probes of a row before those of the next, 5 to 10% were empty.

Rows of a document, and those of its bucket, probe near one place of the pass, at first within a fiftieth of it and
then further away, so that a document is read within a short range of each pass: a removal then repeats about half of a
training, which in a random order would learn more (docs/decisions.md). Rows whose numbers are below the share of slots
in rows probe first, the others then fill what is left: a short pass reads the same share of every document, not whole
documents of a part of the source, from which a model learns less.

A slot that no row filled, and one of a tombstone's row, reads the source's blank row, which is all padding and carries
no loss. The number of slots, of buckets and of reads can be kept from an earlier run (`chunk.keep`): then the source of
each position stays as well.

Shapes: S slots of a pass, R rows.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from model.errors import InputError, RecipeError
from model.kernels import inlined_kernel, kernel
from tasks.artifacts.tables.schema import schema_of
from tasks.chunk.mixture import Mixture
from tasks.chunk.order import GOLDEN_GAMMA, pass_by_pass, pass_seed, permutation, splitmix64
from tasks.chunk.stable_rows import RowKeys

ROUNDS = 128
"""With twice as many 0.4% of the slots are empty, and 3.0 change for each row that goes."""
ROUNDS_ALONE = ROUNDS // 2
"""Rounds of the rows that a short pass is to read before others join them."""
FIRST_RANGE = 1 / 50
"""Share of a pass in which the rows of a bucket probe in the first round; each further round adds as much."""


@dataclass(frozen=True)
class SlotPlan:
    """The numbers of one source that a stable order keeps."""

    buckets: int
    slots: int
    """Of a whole pass."""
    last: int
    """Slots of the pass after the whole ones."""
    reads: tuple[int, ...]
    """Slots up to the end of each part of the order."""

    def slots_of(self, nth: int) -> int:
        """Return the slots of the `nth` pass."""
        return self.slots if nth < self.reads[-1] // self.slots else self.last


SCHEMA = pa.schema([pa.field("source", pa.string(), nullable=False), *schema_of(SlotPlan)])
"""The table SLOTS."""


def read_slots(table: pa.Table) -> dict[str, SlotPlan]:
    """Return source -> plan of a table SLOTS."""
    return {
        row["source"]: SlotPlan(row["buckets"], row["slots"], row["last"], tuple(row["reads"]))
        for row in table.to_pylist()
    }


def slots_table(planned: Sequence["SlotReads"]) -> pa.Table:
    """Return SLOTS of an order."""
    return pa.Table.from_pylist([{"source": one.source, **vars(one.plan)} for one in planned], schema=SCHEMA)


@dataclass(frozen=True)
class SlotSource:
    """Rows of one source and what decides their slots."""

    first_row: int
    written: RowKeys
    absent: RowKeys
    """Of rows that only tombstones had."""
    buckets: int


class Passes:
    """The rows in the slots of passes: `place(nth, S, whole)` is i64[S], numbers of rows, R for the blank row, where a
    whole pass has `whole` slots."""

    def __init__(self, name: str, source: SlotSource, run_seed: int) -> None:
        self._name, self._run_seed, self._buckets = name, run_seed, source.buckets
        self._written, self._rows = len(source.written.keys), source.written.joined(source.absent)
        self.place = functools.cache(self._place)

    def _place(self, nth: int, slots: int, whole: int) -> np.ndarray:
        seed = pass_seed(self._run_seed, self._name, nth)
        places = permutation(0, self._buckets, self._buckets, seed)[self._rows.buckets]
        centres = _centres(self._rows.documents, places, self._buckets, np.uint64(seed))
        numbers = _numbers(self._rows.keys, np.uint64(seed))
        taken = np.full(slots, -1, np.int64)
        _fill_slots(np.argsort(numbers, kind="stable"), numbers, centres, slots / whole, taken)
        return np.where((taken < 0) | (taken >= self._written), self._written, taken)


@dataclass(frozen=True)
class SlotReads:
    """What is read of one source up to the end of a part of the order: its first slots, pass after pass."""

    source: str
    first_row: int
    rows: int
    """Rows of the source; the last is the blank one."""
    plan: SlotPlan
    reads: int
    passes: Passes
    counted: np.ndarray
    """Tokens that each row takes of the budget, [rows]."""

    @functools.cached_property
    def _times(self) -> np.ndarray:
        times = np.zeros(self.rows, np.int64)
        for nth in range(-(-self.reads // self.plan.slots)):
            times += np.bincount(self._place(nth)[: self.reads - nth * self.plan.slots], minlength=self.rows)
        return times

    def _place(self, nth: int) -> np.ndarray:
        return self.passes.place(nth, self.plan.slots_of(nth), self.plan.slots)

    @functools.cached_property
    def tokens(self) -> int:
        """Tokens of the budget that this takes."""
        return int(self._times @ self.counted)

    @property
    def blank(self) -> int:
        """Reads of the blank row."""
        return int(self._times[-1])

    def positions(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (row, pass) of reads [begin, end) of this source, i64 both."""
        slots = self.plan.slots
        return pass_by_pass(begin, end, slots, lambda nth, first, stop: self.first_row + self._place(nth)[first:stop])

    def times_read(self, begin: int, end: int) -> np.ndarray:
        """Return how often rows [begin, end) of this source, counted from its first, are read, i64."""
        return self._times[begin:end]


def plan_slots(
    mixtures: Sequence[Mixture],
    sources: Mapping[str, SlotSource],
    counted: np.ndarray,
    run_seed: int,
    kept: Mapping[str, SlotPlan],
) -> list[list[SlotReads]]:
    """Return the reads of each source up to the end of each part of the order: as many as `kept` says, or those that
    come closest below the mixture's tokens.

    `counted` are the tokens that each row takes (of all sources, in the order of their names). Raises RecipeError where
    `kept` is of another number of parts, InputError where no row is read.
    """
    parts: list[list[SlotReads]] = [[] for _ in mixtures]
    for name, source in sorted(sources.items()):
        rows, plan = len(source.written.keys), kept.get(name)
        if plan is not None and len(plan.reads) != len(mixtures):
            raise RecipeError(
                f"chunk.keep: the run that it names read `{name}` in {len(plan.reads)} parts, and this recipe has"
                f" {len(mixtures)}. Give train.phases as in that run, or leave `keep` out."
            )
        passes = Passes(name, source, run_seed)
        own = np.append(counted[source.first_row : source.first_row + rows], 0).astype(np.int64)
        if plan is None:
            targets = np.cumsum([mixture.targets.get(name, 0) for mixture in mixtures])
            plan = _plan(own, targets, source.buckets, passes)
        for part, reads in zip(parts, plan.reads, strict=True):
            part.append(SlotReads(name, source.first_row, rows + 1, plan, reads, passes, own))
    for before, part, mixture in zip([None, *parts[:-1]], parts, mixtures, strict=True):
        if sum(one.reads for one in part) == sum(one.reads for one in before or ()):
            raise InputError(
                f"chunk: {mixture.budget:,} tokens do not allow one whole row under the cap on repetition; raise"
                f" budget_tokens or max_epochs"
            )
    return parts


def _plan(counted: np.ndarray, targets: np.ndarray, buckets: int, passes: Passes) -> SlotPlan:
    """Return the plan of reads that have at most `targets` tokens [parts] in all at the end of each part; each ends
    with a row that is read. `counted` are the tokens of each row, the blank one the last."""
    rows, total = len(counted) - 1, int(counted.sum())
    slots, last, left, sums = max(1, rows), 0, int(targets[-1]) if total else 0, np.zeros(1, np.int64)
    while left:
        nth = (len(sums) - 1) // slots
        in_pass = np.cumsum(counted[passes.place(nth, slots, slots)])
        if in_pass[-1] > left:
            # As many slots as the tokens need, or few more, the last of which are not read.
            in_pass = np.zeros(1, np.int64)
            while in_pass[-1] < left:
                last = min(slots, last - (int(in_pass[-1]) - left) * rows // total)
                in_pass = np.cumsum(counted[passes.place(nth, last, slots)])
        sums = np.concatenate([sums, sums[-1] + in_pass])
        left = 0 if last or not in_pass[-1] else left - int(in_pass[-1])
    reads = [int(np.searchsorted(sums, sums[np.searchsorted(sums, target, side="right") - 1])) for target in targets]
    return SlotPlan(buckets, slots, last, tuple(reads))


@kernel
def _numbers(keys: np.ndarray, seed: np.uint64) -> np.ndarray:
    numbers = np.empty(len(keys), np.uint64)
    for row in range(len(keys)):
        numbers[row] = splitmix64(keys[row] ^ splitmix64(seed))
    return numbers


@kernel
def _centres(documents: np.ndarray, place: np.ndarray, buckets: int, seed: np.uint64) -> np.ndarray:
    """Return around which place of a pass, [0, 1), each row probes: within the part of its bucket, by its document."""
    centres = np.empty(len(documents), np.float64)
    for row in range(len(documents)):
        centres[row] = (place[row] + _share(splitmix64(documents[row] ^ seed))) / buckets
    return centres


@inlined_kernel
def _share(number: np.uint64) -> np.float64:
    """Return a number of 64 random bits as one in [0, 1)."""
    return np.float64(number >> np.uint64(11)) / 9007199254740992.0


@kernel
def _fill_slots(order: np.ndarray, numbers: np.ndarray, centres: np.ndarray, share: float, taken: np.ndarray) -> None:
    """Write the row of each slot. `order` are rows by their numbers, of which those below `share` probe first; slots
    beyond an end of the pass are mirrored at it."""
    slots = free = len(taken)
    began = waiting = 0
    without = np.empty_like(order)
    for nth in range(ROUNDS):
        while began < len(order) and (nth >= ROUNDS_ALONE or _share(numbers[order[began]]) < share):
            without[waiting] = order[began]
            began, waiting = began + 1, waiting + 1
        left = 0
        for row in without[:waiting]:
            own = nth if _share(numbers[row]) < share else nth - ROUNDS_ALONE
            drawn = _share(splitmix64(numbers[row] + np.uint64(own + 1) * GOLDEN_GAMMA))
            reach = FIRST_RANGE * (own + 1)
            slot = np.int64(np.floor((centres[row] + (drawn - 0.5) * reach if reach < 1 else drawn) * slots))
            if slot < 0:
                slot = -1 - slot
            if slot >= slots:
                slot = 2 * slots - 1 - slot
            if taken[slot] < 0:
                taken[slot] = row
                free -= 1
            else:
                without[left] = row
                left += 1
        waiting = left
        if not free:
            break
