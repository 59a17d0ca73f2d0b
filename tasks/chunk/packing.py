"""What every way of filling rows gives: rows, what they count, and where each stretch of them came from.

Shapes: R rows of L tokens, S segments (a segment is a document's stretch within one row).

Documents laid end to end and cut into rows of fixed length (Brown et al. 2020, section 2.2).

Nothing is thrown away: a document that meets the end of a row goes on in the next one. Only the last row of a source
may end in padding.

Best-fit packing: no document is cut that fits in a row (Ding et al. 2024, "Fewer Truncations Improve Language
Modeling", arXiv 2404.10830).

A document that is longer than a row with its end-of-text token is cut into full rows and a rest. Rests and short
documents go into rows as `bins` tells. Where that leaves more than `MOST_PADDING`, rests of long documents, which are
cut anyway, are cut again and fill the room that others left. Documents are packed in windows (`blocks.WINDOW_TOKENS`),
so that the memory does not grow with the source.

Rows stand in the order of the documents that come first in them; within a row documents stand in their order, and a
stretch whose document goes on elsewhere comes last and ends with the row. So every document's stretch begins a row or
stands behind an end-of-text token: these are the borders for attention within documents.

Shapes: D documents of a window, S stretches of them, R rows of L tokens.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tasks.artifacts.schema import SPANS
from tasks.chunk.bin_packing import fewest_bins, refilled
from tasks.chunk.tokenize import Block, TokenBytes
from tasks.common.kernels import kernel

BATCH_ROWS = 4096
"""Rows that are laid out at once."""


@dataclass(frozen=True)
class Packed:
    """Complete rows and the segments that became known with them."""

    rows: np.ndarray
    """[R, L] ids."""
    real: np.ndarray
    """[R] tokens that are no padding."""
    counted: np.ndarray
    """[R] tokens of the budget that one read of each row takes."""
    spans: pa.Table
    """SPANS in order; the last may lie in a row that is not complete yet."""
    second_start: np.ndarray | None = None
    """[R] place of the second stretch's first token, L where there is none; rows of pairs only."""
    is_next: pa.Array | None = None
    """[R] whether the second stretch follows the first in its document, null where there is none; for pairs only."""

    def slice(self, begin: int, end: int) -> "Packed":
        """Rows [begin, end), without spans."""
        return Packed(
            rows=self.rows[begin:end],
            real=self.real[begin:end],
            counted=self.counted[begin:end],
            spans=SPANS.empty_table(),
            second_start=None if self.second_start is None else self.second_start[begin:end],
            is_next=None if self.is_next is None else self.is_next[begin:end],
        )


@dataclass(frozen=True)
class Segments:
    """S stretches of a block's documents, in the order of their rows; all arrays [S]."""

    row: np.ndarray
    tok_start: np.ndarray
    document: np.ndarray
    """Place of the document in the block."""
    begin: np.ndarray
    """First token in the block."""
    end: np.ndarray
    """Behind the last token in the block; no end-of-text token is in a segment."""

    def spans(self, block: Block, borders: np.ndarray) -> pa.Table:
        """SPANS of those that hold a token; `borders` are `TokenBytes.borders` of the block."""
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


class RowPacker:
    """Packs one source. `first_row` is the id of row 0; a row's first `uncounted` tokens take nothing of the budget,
    since nothing predicts them."""

    def __init__(self, row_length: int, token_bytes: TokenBytes, pad: int, first_row: int, uncounted: int = 1) -> None:
        self._length = row_length
        self._token_bytes = token_bytes
        self._pad = pad
        self._first_row = first_row
        self._uncounted = uncounted
        self._carried: np.ndarray | None = None
        self._position = 0

    def add(self, block: Block) -> Packed:
        """Append a block; returns the rows that it completed and the spans of all its segments."""
        borders = self._token_bytes.borders(block)
        spans = self._segments(block).spans(block, borders)
        self._position += len(block.tokens)
        stream = block.tokens if self._carried is None else np.concatenate([self._carried, block.tokens])
        complete = len(stream) // self._length * self._length
        self._carried = stream[complete:].copy()
        rows = stream[:complete].reshape(-1, self._length)
        real = np.full(len(rows), self._length, dtype=np.int64)
        return Packed(rows, real, real - self._uncounted, spans)

    def finish(self) -> Packed:
        """The last row, filled up with padding, or none where the source ended with a full row."""
        carried = self._carried
        if carried is None or not len(carried):
            none = np.zeros(0, dtype=np.int64)
            dtype = np.uint32 if carried is None else carried.dtype
            return Packed(np.zeros((0, self._length), dtype=dtype), none, none, SPANS.empty_table())
        real = np.array([len(carried)], dtype=np.int64)
        self._position += self._length - len(carried)
        row = np.full((1, self._length), self._pad, carried.dtype)
        row[0, : len(carried)] = carried
        return Packed(row, real, np.maximum(real - self._uncounted, 0), SPANS.empty_table())

    def _segments(self, block: Block) -> Segments:
        begins = block.begins
        starts = self._position + begins  # [D] place of each document in the source's stream
        first = starts // self._length
        last = (starts + np.maximum(block.lengths, 1) - 1) // self._length
        segments = np.where(block.lengths > 0, last - first + 1, 0)
        document = np.repeat(np.arange(len(starts)), segments)
        nth = np.arange(len(document)) - np.repeat(np.cumsum(segments) - segments, segments)
        row = first[document] + nth
        begin = np.maximum(starts[document], row * self._length)
        end = np.minimum(starts[document] + block.lengths[document], (row + 1) * self._length)
        return Segments(
            row=row + self._first_row,
            tok_start=begin - row * self._length,
            document=document,
            begin=begin - self._position,
            end=end - self._position,
        )


def concat_rows(
    blocks: Iterable[Block], row_length: int, token_bytes: TokenBytes, pad: int, first_row: int, uncounted: int = 1
) -> Iterator[Packed]:
    """All rows of one source in order."""
    packer = RowPacker(row_length, token_bytes, pad, first_row, uncounted)
    for block in blocks:
        yield packer.add(block)
    yield packer.finish()


MOST_PADDING = 0.003
"""Share of the tokens above which long documents are cut once more."""


@dataclass(frozen=True)
class Layout:
    """Where each stretch goes, in the order of rows; all arrays [S]."""

    row: np.ndarray
    document: np.ndarray
    offset: np.ndarray
    """Tokens of the document before the stretch."""
    length: np.ndarray
    """Tokens of the stretch, the end-of-text token included where it is the document's last."""
    rows: int
    """Rows in all."""


def best_fit_layout(lengths: np.ndarray, row_length: int, most_padding: float = MOST_PADDING) -> Layout:
    """The rows of documents whose `lengths` [D], end-of-text token included, are at least 1."""
    lengths = lengths.astype(np.int64)
    full, rest = lengths // row_length, lengths % row_length
    packed = np.flatnonzero(rest)  # in the order of documents
    bins = fewest_bins(rest[packed], row_length)
    rows = int(full.sum()) + int(bins.max(initial=-1)) + 1
    padding = rows - int(lengths.sum()) / row_length  # in rows
    fewer = min(math.ceil((padding - most_padding * rows) / (1 - most_padding)), int(padding))
    item, offset, length, bins = refilled(rest[packed], full[packed] > 0, bins, row_length, fewer)
    document = packed[item]
    closing = offset + length == rest[document]
    # A document's rows: its full ones, then the one that its last stretch begins.
    first = np.full(int(bins.max(initial=-1)) + 1, len(lengths), dtype=np.int64)
    np.minimum.at(first, bins[closing], document[closing])
    begun = full.copy()
    begun[first] += 1
    begins = np.cumsum(begun) - begun
    row_of_bin = begins[first] + full[first]
    whole = np.repeat(np.arange(len(lengths)), full)
    nth = np.arange(len(whole)) - np.repeat(np.cumsum(full) - full, full)
    row = np.concatenate([begins[whole] + nth, row_of_bin[bins]])
    goes_on = np.concatenate([np.zeros(len(whole), dtype=bool), ~closing])
    document = np.concatenate([whole, document])
    offset = np.concatenate([nth * row_length, full[packed[item]] * row_length + offset])
    length = np.concatenate([np.full(len(whole), row_length, dtype=np.int64), length])
    order = np.lexsort((document, goes_on, row))
    return Layout(row[order], document[order], offset[order], length[order], int(begun.sum()))


def best_fit_rows(
    windows: Iterable[Block], row_length: int, token_bytes: TokenBytes, pad: int, first_row: int
) -> Iterator[Packed]:
    """All rows of one source in order, `BATCH_ROWS` at a time."""
    for window in windows:
        borders = token_bytes.borders(window)
        layout = best_fit_layout(window.lengths + 1, row_length)
        begins = window.begins
        for begin in range(0, layout.rows, BATCH_ROWS):
            end = min(begin + BATCH_ROWS, layout.rows)
            mine = slice(*np.searchsorted(layout.row, [begin, end]))
            row, document = layout.row[mine] - begin, layout.document[mine]
            token_begin = begins[document] + layout.offset[mine]
            rows = np.full((end - begin, row_length), pad, dtype=window.tokens.dtype)
            tok_start = np.zeros(len(row), dtype=np.int64)
            real = np.zeros(end - begin, dtype=np.int64)
            _gather(window.tokens, token_begin, layout.length[mine], row, rows, tok_start, real)
            closed = layout.offset[mine] + layout.length[mine] > window.lengths[document]
            segments = Segments(
                row=row + begin + first_row,
                tok_start=tok_start,
                document=document,
                begin=token_begin,
                end=token_begin + layout.length[mine] - closed,
            )
            yield Packed(rows, real, np.maximum(real - 1, 0), segments.spans(window, borders))
        first_row += layout.rows


@kernel
def _gather(
    tokens: np.ndarray,
    begin: np.ndarray,
    length: np.ndarray,
    row: np.ndarray,
    rows: np.ndarray,
    tok_start: np.ndarray,
    real: np.ndarray,
) -> None:
    """Copy stretches behind each other into their rows; says where each begins, and what each row holds."""
    for stretch in range(len(begin)):
        target, start = row[stretch], real[row[stretch]]
        tok_start[stretch] = start
        for place in range(length[stretch]):
            rows[target, start + place] = tokens[begin[stretch] + place]
        real[target] = start + length[stretch]
