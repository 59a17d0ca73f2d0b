"""The exact sequence in which training reads rows: a function of the plan and the seed.

Each source is read pass after pass, every pass in its own random order, the last one perhaps only in part. Which
source comes at a position is a random arrangement of the sources' reads. So the mixture is even everywhere, and no row
is read again before its source has been read through.
"""

import numpy as np
import pyarrow as pa

from model.schema import ORDER
from tasks.chunk.mixture import Mixture
from tasks.seed import seed64


def permutation(count: int, seed: int) -> np.ndarray:
    """A random order of 0..count-1, int64: sorted by the raw stream of Philox (Salmon et al., 2011).

    The raw stream of a counter-based generator is the same in every version of NumPy; its `permutation` need not be.
    """
    return np.argsort(np.random.Philox(key=seed).random_raw(count), kind="stable")


def reading_order(mixture: Mixture, run_seed: int) -> pa.Table:
    """ORDER: which row is read at each position, and for which time (epoch, from 0)."""
    sources = list(mixture.rows)
    first_row = 0
    row = np.empty(mixture.total_reads, dtype=np.int64)
    epoch = np.empty(mixture.total_reads, dtype=np.int16)
    arranged = np.repeat(np.arange(len(sources)), [mixture.reads[source] for source in sources])
    arranged = arranged[permutation(len(arranged), seed64(run_seed, "chunk", "interleave"))]
    by_source = np.argsort(arranged, kind="stable")  # positions of the first source, then of the second, ...
    begin = 0
    for source in sources:
        count, reads = mixture.rows[source], mixture.reads[source]
        places = by_source[begin : begin + reads]
        row[places], epoch[places] = _passes(first_row, count, reads, run_seed, source)
        begin += reads
        first_row += count
    return pa.table({"row": row, "epoch": epoch}, schema=ORDER)


def _passes(first_row: int, count: int, reads: int, run_seed: int, source: str) -> tuple[np.ndarray, np.ndarray]:
    rows: list[np.ndarray] = [np.zeros(0, dtype=np.int64)]
    for nth in range(-(-reads // count) if reads else 0):
        shuffled = permutation(count, seed64(run_seed, "chunk", "pass", f"{source}/{nth}"))
        rows.append(first_row + shuffled[: reads - nth * count])
    return np.concatenate(rows), np.arange(reads) // max(count, 1)
