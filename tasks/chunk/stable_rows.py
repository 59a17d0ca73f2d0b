"""Rows that change little when a document goes: each document's full rows are its own, and rests share rows in buckets.

A document with its end-of-text token is cut from its own beginning into full rows and a rest. Its key, a hash of its
tokens, assigns it to one of a fixed number of buckets, and the rests of a bucket, about five rows of them, are packed
best fit by themselves. So a document that goes takes its full rows with it, and changes rows of one bucket at most.
Rows are in the order of buckets, in a bucket first the full rows of its documents by their keys, then its shared rows:
a function of the set of documents, in whatever order they are read. The key of a shared row, which decides its slot in
the order of training (`slots.py`), is that of the longest rest in it, so that it stays where another rest leaves.

A tombstone takes the place that a removed document had, by its number of tokens and its key: all other segments stay in
the rows that they shared with it, whose padding grows. Rows without a segment of a document are not written; their keys
keep their slots.

Shapes: D documents, R rows, T tombstones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import blake3
import numpy as np

from model.kernels import kernel
from tasks.chunk.config import Tombstone
from tasks.chunk.order import GOLDEN_GAMMA, splitmix64
from tasks.chunk.packing import PackedRows, RowLayout, filled_rows
from tasks.chunk.tokenize import WINDOW_TOKENS, Block, TokenBytes, TokenFile, group_into_windows, read_blocks
from tasks.common.groups import begins_of, places_within

BUCKET_ROWS = 5
"""Rows of rests in a bucket, in the mean. Of documents of 11 rows each (257 tokens a row) a removal then changes at
most 4 rows that the document was not in (900 drawn), and 0.9% is padding; with 10 rows it changes up to 8, and 0.6% is
padding."""


@dataclass(frozen=True)
class RowKeys:
    """What decides the slots of rows; all arrays [rows]."""

    keys: np.ndarray
    """u64, a hash of a document and the row's number in it."""
    documents: np.ndarray
    """u64, the document's key."""
    buckets: np.ndarray
    """i64, the bucket of its documents."""

    def joined(self, other: "RowKeys") -> "RowKeys":
        """Return the keys of these rows, then those of others."""
        return RowKeys(
            np.concatenate([self.keys, other.keys]),
            np.concatenate([self.documents, other.documents]),
            np.concatenate([self.buckets, other.buckets]),
        )


class StableSource:
    """The rows of one source; `buckets` is their number in the run whose slots are kept, None to choose it."""

    def __init__(
        self,
        files: Sequence[TokenFile],
        source: str,
        row_length: int,
        tombstones: Sequence[Tombstone],
        buckets: int | None,
    ) -> None:
        self._files, self._source, self._length = files, source, row_length
        blocks = [(document_keys(block), block.lengths + 1) for block in read_blocks(files, source)]
        none = (np.zeros(0, np.uint64), np.zeros(0, np.int64))
        self._keys, self._lengths = (np.concatenate(both) for both in zip(none, *blocks, strict=True))
        removed = [one for one in tombstones if one.source == source]
        self._removed_keys = np.array([int(one.key, 16) for one in removed], np.uint64)
        self._removed_lengths = np.array([one.tokens for one in removed], np.int64)
        rests = np.concatenate([self._lengths, self._removed_lengths]) % row_length
        self.buckets = bucket_count(int(rests.sum()), row_length) if buckets is None else buckets
        """Number of buckets."""
        self.written = RowKeys(none[0], none[0], none[1])
        """Of the rows so far, in their order."""
        self.absent = RowKeys(none[0], none[0], none[1])
        """Of the rows that only tombstones had, so far."""

    def rows(self, token_bytes: TokenBytes, pad: int, first_row: int) -> Iterator[PackedRows]:
        """Yield all rows, documents of as many buckets at a time as WINDOW_TOKENS allow."""
        mine, removed = bucket_of(self._keys, self.buckets), bucket_of(self._removed_keys, self.buckets)
        tokens = np.bincount(mine, weights=self._lengths, minlength=self.buckets).astype(np.int64)
        begin = 0
        while begin < self.buckets:
            fitting = int(np.searchsorted(np.cumsum(tokens[begin:]), WINDOW_TOKENS, side="right"))
            end = begin + max(1, fitting)
            window = self._documents(mine, begin, end)
            of_window = np.flatnonzero((removed >= begin) & (removed < end))
            keys, lengths, ids = self._removed_keys[of_window], self._removed_lengths[of_window], [b""] * len(of_window)
            count = 0 if window is None else len(window)
            if window is not None:
                keys = np.concatenate([document_keys(window), keys])
                lengths = np.concatenate([window.lengths + 1, lengths])
                ids = [*window.doc_ids.to_pylist(), *ids]
            layout, written, absent = stable_layout(lengths, keys, ids, self._length, self.buckets, count)
            if window is not None:
                yield from filled_rows(window, token_bytes.borders(window), layout, self._length, pad, first_row)
            first_row += layout.rows
            self.written, self.absent = self.written.joined(written), self.absent.joined(absent)
            begin = end

    def _documents(self, buckets: np.ndarray, begin: int, end: int) -> Block | None:
        """Return the documents of buckets [begin, end), None where there is none."""
        blocks = read_blocks(self._files, self._source, chosen=(buckets >= begin) & (buckets < end))
        return next(group_into_windows(blocks, int(self._lengths.sum())), None)


def document_keys(block: Block) -> np.ndarray:
    """Return u64[D]: BLAKE3-64 of the tokens of each document."""
    tokens = block.tokens.astype("<u4")
    ends = block.begins + block.lengths + 1
    pairs = zip(block.begins.tolist(), ends.tolist(), strict=True)
    digests = b"".join(blake3.blake3(tokens[begin:end].tobytes()).digest(length=8) for begin, end in pairs)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def bucket_count(rest_tokens: int, row_length: int) -> int:
    """Return the number of buckets for `BUCKET_ROWS` full rows of rests in each."""
    return max(1, round(rest_tokens / (row_length * BUCKET_ROWS)))


def bucket_of(keys: np.ndarray, buckets: int) -> np.ndarray:
    """Return the bucket of each key, i64: equal ranges of keys, so that buckets are in the order of keys."""
    half = np.uint64(32)
    return ((keys >> half) * np.uint64(buckets) >> half).astype(np.int64)


def stable_layout(
    lengths: np.ndarray, keys: np.ndarray, ids: Sequence[bytes], row_length: int, buckets: int, documents: int
) -> tuple[RowLayout, RowKeys, RowKeys]:
    """Return the rows of the first `documents` of D + T items, and the keys of those and of the rows without any of
    them.

    `lengths` include the end-of-text token; items of one key are in the order of `ids`.
    """
    by_id = np.argsort(np.array([one.ljust(16, b"\0") for one in ids], "S16"), kind="stable")
    order = by_id[np.argsort(keys[by_id], kind="stable")]
    sorted_lengths, sorted_keys = lengths[order], keys[order]
    bucket = bucket_of(sorted_keys, buckets)
    full, rest = sorted_lengths // row_length, sorted_lengths % row_length
    bins, begins_bin, bins_of_bucket = _pack_buckets(rest, bucket, buckets, row_length)
    # A bucket's rows: the full ones of its documents in their order, then its shared ones.
    full_of_bucket = np.bincount(bucket, weights=full, minlength=buckets).astype(np.int64)
    before = begins_of(full_of_bucket + bins_of_bucket)
    full_before = begins_of(full) - begins_of(full_of_bucket)[bucket]
    whole = np.repeat(np.arange(len(order)), full)
    nth = places_within(full)
    shared = np.flatnonzero(rest)
    item = np.concatenate([whole, shared])
    row = np.concatenate(
        [(before[bucket] + full_before)[whole] + nth, (before + full_of_bucket)[bucket[shared]] + bins[shared]]
    )
    offset = np.concatenate([nth * row_length, full[shared] * row_length])
    length = np.concatenate([np.full(len(whole), row_length, np.int64), rest[shared]])
    total = int((full_of_bucket + bins_of_bucket).sum())
    row_keys, row_documents = np.zeros(total, np.uint64), np.zeros(total, np.uint64)
    row_buckets = np.zeros(total, np.int64)
    naming = np.flatnonzero(np.concatenate([np.ones(len(whole), bool), begins_bin[shared]]))
    number_in_document = np.concatenate([nth + 1, np.zeros(len(shared), np.int64)])
    _write_keys(row[naming], sorted_keys[item[naming]], number_in_document[naming], row_keys)
    row_documents[row[naming]] = sorted_keys[item[naming]]
    row_buckets[row] = bucket[item]
    kept = np.flatnonzero(order[item] < documents)
    is_written = np.zeros(total, bool)
    is_written[row[kept]] = True
    number = np.cumsum(is_written) - 1
    kept = kept[np.lexsort((item[kept], row[kept]))]
    layout = RowLayout(number[row[kept]], order[item[kept]], offset[kept], length[kept], int(is_written.sum()))
    return (
        layout,
        RowKeys(row_keys[is_written], row_documents[is_written], row_buckets[is_written]),
        RowKeys(row_keys[~is_written], row_documents[~is_written], row_buckets[~is_written]),
    )


@kernel
def _write_keys(row: np.ndarray, keys: np.ndarray, nth: np.ndarray, row_keys: np.ndarray) -> None:
    """Write the keys of rows, from that of a document and the row's number in it."""
    for segment in range(len(row)):
        row_keys[row[segment]] = splitmix64(keys[segment] + np.uint64(nth[segment]) * GOLDEN_GAMMA)


@kernel
def _pack_buckets(rest, bucket, buckets, row_length):
    """Return (bin in its bucket of each rest, whether it is the bin's longest, bins of each bucket): best fit, the
    longest first, of one length in their order; rests of a bucket are consecutive, and those of no token get no bin."""
    bins = np.full(len(rest), -1, np.int64)
    begins_bin = np.zeros(len(rest), np.bool_)
    count = np.zeros(buckets, np.int64)
    begin = 0
    while begin < len(rest):
        end = begin
        while end < len(rest) and bucket[end] == bucket[begin]:
            end += 1
        order = np.argsort(-rest[begin:end], kind="mergesort")
        free = np.empty(end - begin, np.int64)
        used = 0
        for place in order:
            length = rest[begin + place]
            if not length:
                break
            best = -1
            for one in range(used):
                if free[one] >= length and (best < 0 or free[one] < free[best]):
                    best = one
            if best < 0:
                best = used
                begins_bin[begin + place] = True
                free[best] = row_length
                used += 1
            free[best] -= length
            bins[begin + place] = best
        count[bucket[begin]] = used
        begin = end
    return bins, begins_bin, count
