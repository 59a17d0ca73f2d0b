"""Best-fit packing: no document is cut that fits in a row (Ding et al. 2024, "Fewer Truncations Improve Language
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

from tasks.chunk.bins import fewest_bins, refilled
from tasks.chunk.blocks import Block, TokenBytes
from tasks.chunk.packing import BATCH_ROWS, Packed, Segments
from tasks.kernels import kernel

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
