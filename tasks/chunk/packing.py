"""What every way of filling rows gives: rows, what they count, and where each stretch of them came from.

Shapes: R rows of L tokens, S segments (a segment is a document's stretch within one row).
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tasks.chunk.blocks import Block
from tasks.schema import SPANS

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
