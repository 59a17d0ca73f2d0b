"""Candidate near duplicates: documents that agree in a whole band of their signatures (locality-sensitive hashing).

A band is sorted by its keys and equal neighbours form a bucket. One band is in memory at a time, and of that as much as
a bound allows: keys are processed in ranges of their upper bits, one range a pass. A key's lower bits are replaced by
the document's rank, so that sorting moves 8 bytes a document and a bucket's members come out in order of rank. Keys
that agree in the remaining bits alone (about 36,000 pairs a band among 100 million documents) are candidates too, and
are rejected when they are verified.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from model.errors import InputError
from model.kernels import kernel
from tasks.common.groups import begins_group, first_of_group
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus
from tasks.dedup.minhash import I64, U32, U64, band_keys

Flags = npt.NDArray[np.bool_]
NO_BUCKET = np.uint32(0xFFFFFFFF)
MOST_BUCKETS = int(NO_BUCKET)
BYTES_PER_KEY = 8
ROWS_READ = 1 << 18


@dataclass(frozen=True)
class Buckets:
    """The buckets of all bands, by rank of the documents."""

    count: int
    memberships: int
    """Memberships of all documents in all buckets."""
    of_band: list[U32]
    """For each band a memory-mapped array: rank -> bucket, or NO_BUCKET."""
    candidates: I64
    """Ranks of the documents that are in any bucket, ascending."""


def find_buckets(corpus: Corpus, rank: U32, distinct: Flags, config: DedupConfig, scratch: Path) -> Buckets:
    """Return buckets of at least two documents, one of them of this run; only rows that are `distinct` take part.

    `rank` is each row's place in the order in which documents are kept; the result is the same for any
    `config.memory_bytes`. Raises InputError for more buckets than there are numbers.
    """
    of_band: list[U32] = []
    in_any = np.zeros(len(corpus), np.bool_)
    count = memberships = 0
    for band in range(config.bands):
        of_rank = np.full(len(corpus), NO_BUCKET)
        for keys in _sorted_ranges(corpus, rank, distinct, band, config):
            count, joined = _number_buckets(keys, rank_bits(len(corpus)), corpus.earlier, count, of_rank, in_any)
            memberships += joined
        path = scratch / f"band-{band:03d}.u32"
        of_rank.tofile(path)
        del of_rank
        of_band.append(np.asarray(np.memmap(path, np.uint32, mode="r")) if len(corpus) else np.empty(0, np.uint32))
    if count > MOST_BUCKETS:
        raise InputError(
            f"dedup: the documents form {count:,} buckets of equal bands, and at most {MOST_BUCKETS:,} can be numbered."
            f" Raise dedup.rows_per_band, or lower dedup.bands."
        )
    return Buckets(count, memberships, of_band, np.flatnonzero(in_any))


def _sorted_ranges(corpus: Corpus, rank: U32, distinct: Flags, band: int, config: DedupConfig):
    """Yield keys with ranks in their lower bits, sorted, one range of the keys after another."""
    bits = rank_bits(len(corpus))
    passes = passes_within(len(corpus) * BYTES_PER_KEY, config.memory_bytes)
    mask = np.uint64((1 << bits) - 1)
    for number in range(passes):
        buffer = np.empty(len(corpus) // passes + len(corpus) // (4 * passes) + 4096, np.uint64)
        filled = 0
        for index, part in enumerate(corpus.signatures):
            for begin in range(0, part.shape[0], ROWS_READ):
                block = part[begin : begin + ROWS_READ]
                rows = slice(int(corpus.first_row[index]) + begin, int(corpus.first_row[index]) + begin + len(block))
                keys = band_keys(block, band, config.rows_per_band)
                chosen = distinct[rows] & in_range(keys, number, passes)
                found = (keys[chosen] & ~mask) | rank[rows][chosen].astype(np.uint64)
                if filled + found.size > buffer.size:
                    # Keys are dense where many documents agree: the range is as large as they are many.
                    buffer = np.concatenate([buffer[:filled], np.empty(2 * (filled + found.size) - filled, np.uint64)])
                buffer[filled : filled + found.size] = found
                filled += found.size
        keys = buffer[:filled]
        keys.sort()
        yield keys


@kernel
def _number_buckets(keys, bits, earlier, count, of_rank, in_any):
    """Number the runs of equal keys; ranks under `earlier` alone form no bucket; return (next number, memberships)."""
    shift = np.uint64(bits)
    mask = (np.uint64(1) << shift) - np.uint64(1)
    memberships = 0
    begin = 0
    while begin < keys.size:
        end = begin + 1
        while end < keys.size and (keys[end] >> shift) == (keys[begin] >> shift):
            end += 1
        if end - begin > 1 and np.int64(keys[end - 1] & mask) >= earlier:
            for index in range(begin, end):
                member = np.int64(keys[index] & mask)
                of_rank[member] = np.uint32(count)
                in_any[member] = True
            count += 1
            memberships += end - begin
        begin = end
    return count, memberships


def exact_representatives(corpus: Corpus, order: U32) -> U32:
    """Return for each rank the first rank with the same text digest (itself where it is the first)."""
    bits = rank_bits(len(corpus))
    mask = np.uint64((1 << bits) - 1)
    keys: U64 = np.ascontiguousarray(corpus.digests[:, :8]).view(np.uint64).reshape(-1)[order]
    keys = (keys & ~mask) | np.arange(order.size, dtype=np.uint64)
    keys.sort()
    begins = np.append(begins_group(keys >> np.uint64(bits)), True)
    # Whole digests are only compared where these bits are equal.
    ranks = (keys[~(begins[:-1] & begins[1:])] & mask).astype(np.int64)
    halves = np.asarray(corpus.digests)[order[ranks]].view(np.uint64)
    by_digest = np.lexsort((ranks, halves[:, 1], halves[:, 0]))
    ranks, halves = ranks[by_digest], halves[by_digest]
    representative = np.arange(order.size, dtype=np.uint32)
    representative[ranks] = ranks[first_of_group(begins_group(halves[:, 0], halves[:, 1]))]
    return representative


def rank_bits(documents: int) -> int:
    """Return the bits that represent the rank of any of so many documents."""
    return max(1, (documents - 1).bit_length())


def passes_within(needed_bytes: int, memory_bytes: int) -> int:
    """Return passes (a power of two) of which each needs at most about `memory_bytes` of `needed_bytes` in all."""
    return 1 << max(0, (-(-needed_bytes // memory_bytes) - 1).bit_length())


def in_range(keys: U64, number: int, passes: int) -> Flags:
    """Return which keys a pass processes: those whose upper bits are its number."""
    bits = passes.bit_length() - 1
    return (keys >> np.uint64(64 - bits)) == np.uint64(number) if bits else np.ones(keys.size, np.bool_)
