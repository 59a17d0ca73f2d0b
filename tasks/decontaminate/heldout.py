"""The held-out split: a share of each source's clean documents, set aside to measure bits per byte.

A document's number in [0, 1) is a function of its id and the run's seed, so the same documents are held out however the
input is sharded, and a larger share only adds documents. Documents with a leak are never held out, since a score on
them would measure memory too; so the split is free of every benchmark item that can be matched.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.artifacts.tables.schema import schema_of
from tasks.common.numeric import seed64, unit_interval
from tasks.decontaminate.config import DecontaminateConfig

LARGEST_SHARE = 0.2


@dataclass(frozen=True)
class HeldoutDraw:
    """The draw of one source, by which the same documents are held out where others are missing."""

    source: str
    last: float
    """The largest number that was held out; -1 where none was."""
    skipped: tuple[float, ...]
    """Smaller numbers of documents that were not held out, since they exceeded a limit of bytes."""


DRAWS = schema_of(HeldoutDraw)


def draws_table(draws: list[HeldoutDraw]) -> pa.Table:
    """Return DRAWS."""
    return pa.Table.from_pylist([vars(one) for one in draws], schema=DRAWS)


def read_draws(table: pa.Table) -> dict[str, HeldoutDraw]:
    """Return source -> draw of a table DRAWS."""
    return {row["source"]: HeldoutDraw(row["source"], row["last"], tuple(row["skipped"])) for row in table.to_pylist()}


def draw_number(doc_id: bytes, source: str, seed: int) -> float:
    """Return the document's number in the held-out draw of its source."""
    return unit_interval(doc_id, draw_seed(source, seed))


def draw_seed(source: str, seed: int) -> int:
    """Return the seed of a source's held-out draw."""
    return seed64(seed, "decontaminate", "heldout", source)


def choose_heldout(
    doc_ids: npt.NDArray[np.uint8],
    sizes: npt.NDArray[np.int64],
    source: str,
    eligible: npt.NDArray[np.bool_],
    config: DecontaminateConfig,
    kept: HeldoutDraw | None = None,
) -> tuple[npt.NDArray[np.int64], HeldoutDraw]:
    """Choose which of one source's documents are held out; return their ascending indexes and the draw.

    In order of their numbers: all under the share, and at least `heldout_min_documents`, but at most a fifth of the
    source's documents and bytes and never more than the limits. A document that would exceed the byte limit is skipped.
    With the draw `kept` of an earlier run they are those that were held out there, and new ones of such numbers.
    """
    candidates = np.flatnonzero(eligible & (sizes > 0))
    seed = draw_seed(source, config.seed)
    draws = (unit_interval(doc_ids[index].tobytes(), seed) for index in candidates.tolist())
    numbers = np.fromiter(draws, np.float64, candidates.size)
    if kept is not None:
        return candidates[(numbers <= kept.last) & ~np.isin(numbers, kept.skipped)], kept
    documents = sizes.size
    allowed_documents = min(config.heldout_max_documents, int(documents * LARGEST_SHARE))
    if config.heldout_share == 0.0:
        allowed_documents = 0
    allowed_bytes = min(config.heldout_max_bytes, int(sizes.sum() * LARGEST_SHARE))
    halves = np.ascontiguousarray(doc_ids[candidates]).view(">u8").reshape(-1, 2)
    chosen: list[int] = []
    skipped: list[float] = []
    last = -1.0
    taken = 0
    for place in np.lexsort((halves[:, 1], halves[:, 0], numbers)).tolist():
        index, number = int(candidates[place]), float(numbers[place])
        enough = len(chosen) >= config.heldout_min_documents
        if len(chosen) >= allowed_documents or (enough and number >= config.heldout_share):
            break
        if taken + int(sizes[index]) <= allowed_bytes:
            chosen.append(index)
            taken += int(sizes[index])
            last = number
        else:
            skipped.append(number)
    draw = HeldoutDraw(source, last, tuple(number for number in skipped if number <= last))
    return np.array(sorted(chosen), np.int64), draw
