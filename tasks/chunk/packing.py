"""Laying documents end to end into rows of fixed length, and saying where each stretch of a row came from.

Shapes: N tokens of a block (documents with their end-of-text tokens), D documents in it, R complete rows, L tokens a
row, S segments (a segment is a document's stretch within one row).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from model.errors import Bug
from tasks.schema import SPANS


@dataclass(frozen=True)
class Block:
    """Consecutive documents of one source."""

    tokens: np.ndarray
    """[N] ids, each document closed by the end-of-text token."""
    lengths: np.ndarray
    """[D] tokens of each document without its end-of-text token."""
    text_bytes: np.ndarray
    """[D] UTF-8 bytes of each text, to check the tokens against."""
    doc_ids: pa.Array
    pieces: pa.Array


@dataclass(frozen=True)
class Packed:
    """Complete rows and the segments that became known with them."""

    rows: np.ndarray
    """[R, L] ids."""
    spans: pa.Table
    """SPANS of the block's segments, in order; the last may lie in a row that is not complete yet."""


class RowPacker:
    """Packs one source. `piece_lengths` [vocabulary] are the bytes of each token, `first_lengths` those of a document's
    first, where they differ; `first_row` is the id of row 0."""

    def __init__(
        self,
        row_length: int,
        piece_lengths: np.ndarray,
        pad: int,
        first_row: int,
        first_lengths: np.ndarray | None = None,
    ) -> None:
        self._length = row_length
        self._piece_lengths = piece_lengths
        self._first_lengths = piece_lengths if first_lengths is None else first_lengths
        self._pad = pad
        self._first_row = first_row
        self._carried: np.ndarray | None = None
        self._position = 0
        self.padding = 0
        """Padding tokens in the last row, known after `finish`."""

    def add(self, block: Block) -> Packed:
        """Append a block; returns the rows that it completed and the spans of all its segments."""
        spans = self._spans(block)
        self._position += len(block.tokens)
        stream = block.tokens if self._carried is None else np.concatenate([self._carried, block.tokens])
        complete = len(stream) // self._length * self._length
        self._carried = stream[complete:].copy()
        return Packed(stream[:complete].reshape(-1, self._length), spans)

    def finish(self) -> np.ndarray:
        """The last row [1, L], filled up with padding, or [0, L] where the source ended with a full row."""
        carried = self._carried
        if carried is None or not len(carried):
            return np.zeros((0, self._length), dtype=np.uint32 if carried is None else carried.dtype)
        self.padding = self._length - len(carried)
        self._position += self.padding
        return np.concatenate([carried, np.full(self.padding, self._pad, carried.dtype)]).reshape(1, self._length)

    def _spans(self, block: Block) -> pa.Table:
        closed = block.lengths + 1
        begins = np.cumsum(closed) - closed  # [D] place of each document in the block
        borders = np.zeros(len(block.tokens) + 1, dtype=np.int64)
        token_bytes = self._piece_lengths[block.tokens]
        opening = begins[block.lengths > 0]
        token_bytes[opening] = self._first_lengths[block.tokens[opening]]
        np.cumsum(token_bytes, out=borders[1:])
        self._check_bytes(block, borders[begins + block.lengths] - borders[begins])
        starts = self._position + begins  # [D] place of each document in the source's stream
        first = starts // self._length
        last = (starts + np.maximum(block.lengths, 1) - 1) // self._length
        segments = np.where(block.lengths > 0, last - first + 1, 0)
        document = np.repeat(np.arange(len(starts)), segments)  # [S]
        nth = np.arange(len(document)) - np.repeat(np.cumsum(segments) - segments, segments)
        row = first[document] + nth
        begin = np.maximum(starts[document], row * self._length)
        end = np.minimum(starts[document] + block.lengths[document], (row + 1) * self._length)
        text_begins = borders[begins[document]]
        return pa.table(
            {
                "row": row + self._first_row,
                "tok_start": (begin - row * self._length).astype(np.int32),
                "tok_len": (end - begin).astype(np.int32),
                "doc_id": block.doc_ids.take(pa.array(document)),
                "piece": block.pieces.take(pa.array(document)),
                "start": borders[begin - self._position] - text_begins,
                "end": borders[end - self._position] - text_begins,
            },
            schema=SPANS,
        )

    def _check_bytes(self, block: Block, covered: np.ndarray) -> None:
        wrong = np.flatnonzero(covered != block.text_bytes)
        if len(wrong):
            place = int(wrong[0])
            raise Bug(
                f"chunk: the tokens of document {block.doc_ids[place].as_py().hex()} stand for {covered[place]} bytes"
                f" and its text has {block.text_bytes[place]}: the tokenizer is not exact. Nothing was published."
            )


def blocks_of(tokens: pa.Table, source: str) -> Iterator[Block]:
    """The documents of `source` in one part's tokens (see `tokenizing`), a record batch at a time, in order."""
    for batch in tokens.to_batches():
        mine = np.array([name == source for name in batch.column("source").to_pylist()], dtype=bool)
        if not mine.any():
            continue
        chosen = batch if mine.all() else batch.filter(pa.array(mine))
        lists = chosen.column("tokens")
        yield Block(
            tokens=lists.flatten().to_numpy(),
            lengths=np.diff(lists.offsets.to_numpy()) - 1,
            text_bytes=chosen.column("text_bytes").to_numpy(),
            doc_ids=chosen.column("doc_id"),
            pieces=chosen.column("piece"),
        )
