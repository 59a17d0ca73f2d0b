"""Documents laid end to end and cut into rows of fixed length (Brown et al. 2020, section 2.2).

Nothing is thrown away: a document that meets the end of a row goes on in the next one. Only the last row of a source
may end in padding.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from tasks.chunk.blocks import Block, TokenBytes
from tasks.chunk.packing import Packed, Segments
from tasks.schema import SPANS


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
