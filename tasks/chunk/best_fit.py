"""Best-fit packing: no document is cut that fits in a row (Ding et al. 2024, "Fewer Truncations Improve Language
Modeling", arXiv 2404.10830).

A document that is longer than a row with its end-of-text token is cut into full rows and a rest. Rests and short
documents, longest first, each go to the row with the least room that still holds them, or begin a new row. Documents
are packed in windows (`blocks.WINDOW_TOKENS`), so that the memory does not grow with the source.

Rows stand in the order of the documents that come first in them; within a row documents stand in their order. Every
stretch either fills a row or ends with an end-of-text token, so documents' borders are the begin of the row and the
places behind each end-of-text token.

Shapes: D documents of a window, S stretches of them, R rows of L tokens.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tasks.chunk.blocks import Block, TokenBytes
from tasks.chunk.packing import BATCH_ROWS, Packed, Segments
from tasks.kernels import kernel


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


def best_fit_layout(lengths: np.ndarray, row_length: int) -> Layout:
    """The rows of documents whose `lengths` [D], end-of-text token included, are at least 1."""
    full, rest = lengths // row_length, lengths % row_length
    packed = np.flatnonzero(rest)  # in the order of documents
    bins, first = _best_fit_decreasing(rest[packed].astype(np.int64), row_length)
    # A document's rows: its full ones, then the one that its rest begins.
    begun = full.copy()
    begun[packed[first]] += 1
    begins = np.cumsum(begun) - begun
    row_of_bin = begins[packed[first]] + full[packed[first]]
    whole = np.repeat(np.arange(len(lengths)), full)
    nth = np.arange(len(whole)) - np.repeat(np.cumsum(full) - full, full)
    row = np.concatenate([begins[whole] + nth, row_of_bin[bins]])
    document = np.concatenate([whole, packed])
    offset = np.concatenate([nth * row_length, full[packed] * row_length])
    length = np.concatenate([np.full(len(whole), row_length, dtype=np.int64), rest[packed]])
    order = np.argsort(row, kind="stable")  # whole rows hold one stretch; the others come in the order of documents
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
def _best_fit_decreasing(lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """(bin of each item [items], the first item in each bin [bins]), items of length 1 .. capacity.

    Items are sorted by counting; of bins with the same room the newest is taken. A tree over the rooms 0 .. capacity
    tells which of them some bin has, so that an item costs the logarithm of the capacity.
    """
    counts = np.zeros(capacity + 2, dtype=np.int64)
    for length in lengths:
        counts[capacity - length + 1] += 1
    places = np.cumsum(counts)
    order = np.empty(len(lengths), dtype=np.int64)
    for item in range(len(lengths)):
        key = capacity - lengths[item]
        order[places[key]] = item
        places[key] += 1
    leaves = 1
    while leaves < capacity + 1:
        leaves *= 2
    present = np.zeros(2 * leaves, dtype=np.bool_)
    newest = np.full(capacity + 1, -1, dtype=np.int64)  # room -> a bin with that room
    older = np.empty(len(lengths), dtype=np.int64)  # bin -> the next one with the same room
    first = np.empty(len(lengths), dtype=np.int64)
    bins = np.empty(len(lengths), dtype=np.int64)
    count = 0
    for item in order:
        length = lengths[item]
        node = leaves + length
        if not present[node]:
            # Up to the first right sibling that holds anything, then down to its leftmost leaf.
            while node > 1 and (node % 2 == 1 or not present[node + 1]):
                node //= 2
            if node > 1:
                node += 1
                while node < leaves:
                    node *= 2
                    if not present[node]:
                        node += 1
        if node > 1:
            room = node - leaves
            chosen = newest[room]
            newest[room] = older[chosen]
            if newest[room] < 0:
                present[node] = False
                while node > 1 and not present[node ^ 1]:
                    node //= 2
                    present[node] = False
            first[chosen] = min(first[chosen], item)
        else:
            room = capacity
            chosen = count
            first[chosen] = item
            count += 1
        bins[item] = chosen
        left = room - length
        older[chosen] = newest[left]
        newest[left] = chosen
        node = leaves + left
        while node >= 1 and not present[node]:
            present[node] = True
            node //= 2
    return bins, first[:count].copy()


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
