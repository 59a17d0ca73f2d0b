"""Fill rows of fixed length with documents: concatenated, or best fit.

`concat_rows` concatenates documents and cuts at the row length (Brown et al. 2020, section 2.2). Nothing is dropped: a
document that reaches the end of a row continues in the next one. Only the last row of a source may end in padding.

`best_fit_rows` cuts no document that fits in a row (Ding et al. 2024, "Fewer Truncations Improve Language Modeling",
arXiv 2404.10830). A longer document, with its end-of-text token, is cut into full rows and a rest. Rests and short
documents are packed by `bin_packing`. Where that leaves more than `MOST_PADDING`, rests of long documents, which are
cut anyway, are cut again and fill the space that others left. Documents are packed in windows
(`tokenize.WINDOW_TOKENS`), so that memory does not grow with the source. Rows are in the order of the documents that
come first in them; within a row documents keep their order, and a segment whose document continues in another row comes
last and ends with the row. So every document's segment begins a row or follows an end-of-text token: these are the
boundaries for attention within documents.

Shapes: R rows of L tokens, D documents, S segments (a segment is the part of a document within one row).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from model.kernels import kernel
from tasks.artifacts.tables.schema import SPANS
from tasks.chunk.bin_packing import pack_into_bins, refill_bins
from tasks.chunk.tokenize import Block, TokenBytes
from tasks.common.groups import begins_of, places_within

BATCH_ROWS = 4096
"""Rows that are filled at once."""
MOST_PADDING = 0.003
"""Share of padding above which long documents are cut once more."""


@dataclass(frozen=True)
class PackedRows:
    """Complete rows, and the segments found with them."""

    rows: np.ndarray
    """[R, L] ids."""
    real: np.ndarray
    """[R] tokens that are not padding."""
    counted: np.ndarray
    """[R] tokens of the budget that one read of each row takes."""
    spans: pa.Table
    """SPANS in order; the last may be in a row that is not complete yet."""
    second_start: np.ndarray | None = None
    """[R] position of the second segment's first token, L where there is none; rows of pairs only."""
    is_next: pa.Array | None = None
    """[R] whether the second segment follows the first in its document, null where there is none; rows of pairs
    only."""

    def slice(self, begin: int, end: int) -> "PackedRows":
        """Return rows [begin, end), without spans."""
        return PackedRows(
            rows=self.rows[begin:end],
            real=self.real[begin:end],
            counted=self.counted[begin:end],
            spans=SPANS.empty_table(),
            second_start=None if self.second_start is None else self.second_start[begin:end],
            is_next=None if self.is_next is None else self.is_next[begin:end],
        )


@dataclass(frozen=True)
class Segments:
    """S segments of a block's documents, in the order of their rows; all arrays [S]."""

    row: np.ndarray
    tok_start: np.ndarray
    document: np.ndarray
    """Index of the document in the block."""
    begin: np.ndarray
    """Position of the first token in the block."""
    end: np.ndarray
    """Position after the last token in the block; end-of-text tokens are in no segment."""

    def spans(self, block: Block, borders: np.ndarray) -> pa.Table:
        """Return SPANS of the segments that have a token; `borders` are `TokenBytes.borders` of the block."""
        held = np.flatnonzero(self.end > self.begin)
        document, begin, end = self.document[held], self.begin[held], self.end[held]
        text_begins = borders[block.begins[document]]
        return pa.table(
            {
                "row": self.row[held],
                "tok_start": self.tok_start[held].astype(np.int32),
                "tok_len": (end - begin).astype(np.int32),
                "doc_id": block.doc_ids.take(pa.array(document)),
                "piece": block.pieces.take(pa.array(document)),
                "start": borders[begin] - text_begins,
                "end": borders[end] - text_begins,
            },
            schema=SPANS,
        )


@dataclass(frozen=True)
class RowLayout:
    """The position of each segment, in the order of rows; all arrays [S]."""

    row: np.ndarray
    document: np.ndarray
    offset: np.ndarray
    """Tokens of the document before the segment."""
    length: np.ndarray
    """Tokens of the segment, the end-of-text token included where it is the document's last."""
    rows: int
    """Rows in all."""


def concat_rows(
    blocks: Iterable[Block], row_length: int, token_bytes: TokenBytes, pad: int, first_row: int, uncounted: int = 1
) -> Iterator[PackedRows]:
    """Yield all rows of one source in order: those that each block completes, with the spans of all its segments, and a
    last one, padded, where the source does not end with a full row.

    `first_row` is the id of row 0; a row's first `uncounted` tokens take nothing of the budget, since nothing predicts
    them.
    """
    carried: np.ndarray | None = None
    position = 0
    for block in blocks:
        borders = token_bytes.borders(block)
        spans = _concatenated_segments(block, position, row_length, first_row).spans(block, borders)
        position += len(block.tokens)
        stream = block.tokens if carried is None else np.concatenate([carried, block.tokens])
        complete = len(stream) // row_length * row_length
        carried = stream[complete:].copy()
        rows = stream[:complete].reshape(-1, row_length)
        real = np.full(len(rows), row_length, dtype=np.int64)
        yield PackedRows(rows, real, real - uncounted, spans)
    if carried is not None and len(carried):
        real = np.array([len(carried)], dtype=np.int64)
        row = np.full((1, row_length), pad, carried.dtype)
        row[0, : len(carried)] = carried
        yield PackedRows(row, real, np.maximum(real - uncounted, 0), SPANS.empty_table())


def _concatenated_segments(block: Block, position: int, row_length: int, first_row: int) -> Segments:
    """Return the segments of a block that begins at `position` of its source's stream."""
    starts = position + block.begins  # [D]
    first = starts // row_length
    last = (starts + np.maximum(block.lengths, 1) - 1) // row_length
    segments = np.where(block.lengths > 0, last - first + 1, 0)
    document = np.repeat(np.arange(len(starts)), segments)
    row = first[document] + places_within(segments)
    begin = np.maximum(starts[document], row * row_length)
    end = np.minimum(starts[document] + block.lengths[document], (row + 1) * row_length)
    return Segments(
        row=row + first_row,
        tok_start=begin - row * row_length,
        document=document,
        begin=begin - position,
        end=end - position,
    )


def best_fit_rows(
    windows: Iterable[Block], row_length: int, token_bytes: TokenBytes, pad: int, first_row: int
) -> Iterator[PackedRows]:
    """Yield all rows of one source in order, `BATCH_ROWS` at a time."""
    for window in windows:
        layout = best_fit_layout(window.lengths + 1, row_length)
        yield from filled_rows(window, token_bytes.borders(window), layout, row_length, pad, first_row)
        first_row += layout.rows


def filled_rows(
    window: Block, borders: np.ndarray, layout: RowLayout, row_length: int, pad: int, first_row: int
) -> Iterator[PackedRows]:
    """Yield the rows of a layout of the window's documents, `BATCH_ROWS` at a time."""
    begins = window.begins
    for begin in range(0, layout.rows, BATCH_ROWS):
        end = min(begin + BATCH_ROWS, layout.rows)
        mine = slice(*np.searchsorted(layout.row, [begin, end]))
        row, document = layout.row[mine] - begin, layout.document[mine]
        token_begin = begins[document] + layout.offset[mine]
        rows = np.full((end - begin, row_length), pad, dtype=window.tokens.dtype)
        tok_start = np.zeros(len(row), dtype=np.int64)
        real = np.zeros(end - begin, dtype=np.int64)
        _copy_segments(window.tokens, token_begin, layout.length[mine], row, rows, tok_start, real)
        closed = layout.offset[mine] + layout.length[mine] > window.lengths[document]
        segments = Segments(
            row=row + begin + first_row,
            tok_start=tok_start,
            document=document,
            begin=token_begin,
            end=token_begin + layout.length[mine] - closed,
        )
        yield PackedRows(rows, real, np.maximum(real - 1, 0), segments.spans(window, borders))


def best_fit_layout(lengths: np.ndarray, row_length: int, most_padding: float = MOST_PADDING) -> RowLayout:
    """Return the rows of documents whose `lengths` [D], end-of-text token included, are at least 1."""
    lengths = lengths.astype(np.int64)
    full, rest = lengths // row_length, lengths % row_length
    packed = np.flatnonzero(rest)  # in the order of documents
    bins = pack_into_bins(rest[packed], row_length)
    rows = int(full.sum()) + int(bins.max(initial=-1)) + 1
    padding = rows - int(lengths.sum()) / row_length  # in rows
    fewer = min(math.ceil((padding - most_padding * rows) / (1 - most_padding)), int(padding))
    item, offset, length, bins = refill_bins(rest[packed], full[packed] > 0, bins, row_length, fewer)
    document = packed[item]
    closing = offset + length == rest[document]
    # A document's rows: its full ones, then the one that its last segment begins.
    first = np.full(int(bins.max(initial=-1)) + 1, len(lengths), dtype=np.int64)
    np.minimum.at(first, bins[closing], document[closing])
    begun = full.copy()
    begun[first] += 1
    begins = begins_of(begun)
    row_of_bin = begins[first] + full[first]
    whole = np.repeat(np.arange(len(lengths)), full)
    nth = places_within(full)
    row = np.concatenate([begins[whole] + nth, row_of_bin[bins]])
    continues = np.concatenate([np.zeros(len(whole), dtype=bool), ~closing])
    document = np.concatenate([whole, document])
    offset = np.concatenate([nth * row_length, full[packed[item]] * row_length + offset])
    length = np.concatenate([np.full(len(whole), row_length, dtype=np.int64), length])
    order = np.lexsort((document, continues, row))
    return RowLayout(row[order], document[order], offset[order], length[order], int(begun.sum()))


@kernel
def _copy_segments(tokens, begin, length, row, rows, tok_start, real):
    """Copy segments one after the other into their rows; write where each begins, and how much each row holds."""
    for segment in range(len(begin)):
        target, start = row[segment], real[row[segment]]
        tok_start[segment] = start
        for position in range(length[segment]):
            rows[target, start + position] = tokens[begin[segment] + position]
        real[target] = start + length[segment]
