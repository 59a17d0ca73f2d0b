"""Rows of two stretches for BERT: [CLS] A [SEP] B [SEP], and whether B follows A in its document (next sentence
prediction, Devlin et al. 2019, appendix A.2 and the function `create_instances_from_document` of their program).

As there, sentences are gathered up to the length of a row, a tenth of the rows aims at a random shorter length, and A
ends behind a random sentence. Two things differ. Nothing is truncated: what does not fit begins the next pair. And
nothing is copied or left over: BERT's second stretch from another document is drawn from all text; here pairs exchange
theirs, two of the same length or of lengths that both fit, so that each stretch is read exactly once and lengths do not
give the label away. The last sentence of a document may be alone, without a B; two such of different documents make a
pair, which counts as one that does not follow.

Pairs are made in windows of documents (`blocks.WINDOW_TOKENS`). Rows stand in the order of their A.

Shapes: D documents of a window, P pairs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tasks.chunk.blocks import Block, TokenBytes
from tasks.chunk.packing import BATCH_ROWS, Packed, Segments
from tasks.chunk.pairing import Pairs, exchange, gather, join_singles
from tasks.chunk.sentences import sentence_borders
from tasks.kernels import kernel

SPECIALS = 3
"""[CLS] and two times [SEP]."""


@dataclass(frozen=True)
class PairFormat:
    """What rows of pairs look like: tokens a row, the special ids, and the share of rows that aim at less."""

    row_length: int
    cls: int
    sep: int
    pad: int
    short_row_share: float

    @property
    def capacity(self) -> int:
        """Tokens of both stretches together."""
        return self.row_length - SPECIALS


class PairPacker:
    """Lays out one source. `first_row` is the id of row 0, `key` a seed of 64 bits; `labels` counts what came out."""

    def __init__(self, layout: PairFormat, token_bytes: TokenBytes, first_row: int, key: int) -> None:
        self._format = layout
        self._token_bytes = token_bytes
        self._row = first_row
        self._key = np.uint64(key)
        self._drawn = 0
        self.labels: Counter[str] = Counter()
        """Rows whose second stretch is `next`, `not_next` or missing (`single`)."""

    def rows(self, windows: Iterable[Block]) -> Iterator[Packed]:
        """All rows in order, `BATCH_ROWS` at a time."""
        for window in windows:
            borders = self._token_bytes.borders(window)
            pairs = self._pairs(window, borders)
            single = pairs.b_length == 0
            self.labels["single"] += int(single.sum())
            self.labels["next"] += int((pairs.is_next & ~single).sum())
            self.labels["not_next"] += int((~pairs.is_next & ~single).sum())
            for begin in range(0, len(pairs), BATCH_ROWS):
                which = np.arange(begin, min(begin + BATCH_ROWS, len(pairs)))
                yield self._packed(window, borders, pairs.take(which))

    def _pairs(self, window: Block, borders: np.ndarray) -> Pairs:
        ends, counts = _sentences(window, borders)
        gathered = gather(
            window.begins, ends, counts, self._format.capacity, self._format.short_row_share, self._key, self._drawn
        )
        self._drawn += len(gathered)
        documents = _numbered(window.doc_ids)
        joined = join_singles(gathered, documents, self._format.capacity)
        return exchange(joined, documents, self._format.capacity, self._key)

    def _packed(self, window: Block, borders: np.ndarray, pairs: Pairs) -> Packed:
        count, length = len(pairs), self._format.row_length
        rows = np.full((count, length), self._format.pad, dtype=window.tokens.dtype)
        stretches = (pairs.a_begin, pairs.a_end, pairs.b_begin, pairs.b_end)
        _lay(window.tokens, *stretches, rows, self._format.cls, self._format.sep)
        single = pairs.b_length == 0
        second = np.where(single, length, pairs.a_length + 2)
        counted = pairs.a_length + pairs.b_length
        numbers = np.arange(self._row, self._row + count)
        self._row += count
        segments = Segments(
            row=np.repeat(numbers, 2),
            tok_start=np.stack([np.ones_like(second), second], axis=1).reshape(-1),
            document=np.stack([pairs.a_document, pairs.b_document], axis=1).reshape(-1),
            begin=np.stack([pairs.a_begin, pairs.b_begin], axis=1).reshape(-1),
            end=np.stack([pairs.a_end, pairs.b_end], axis=1).reshape(-1),
        )
        return Packed(
            rows=rows,
            real=counted + SPECIALS - single,
            counted=counted,
            spans=segments.spans(window, borders),
            second_start=second.astype(np.int32),
            is_next=pa.array(pairs.is_next, mask=single),
        )


def _sentences(window: Block, borders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    assert window.texts is not None, "sentences are found in the texts"
    offsets, data = window.texts.buffers()[1:]
    first = window.texts.offset
    places = np.frombuffer(offsets, dtype=np.int64)[first : first + len(window) + 1]
    text = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)
    return sentence_borders(text, places, window.begins, window.lengths, borders)


def _numbered(doc_ids: pa.Array) -> np.ndarray:
    """The same number for pieces of one document, [D]."""
    return doc_ids.dictionary_encode().indices.to_numpy().astype(np.int64)


@kernel
def _lay(
    tokens: np.ndarray,
    a_begin: np.ndarray,
    a_end: np.ndarray,
    b_begin: np.ndarray,
    b_end: np.ndarray,
    rows: np.ndarray,
    cls: int,
    sep: int,
) -> None:
    for row in range(len(rows)):
        rows[row, 0] = cls
        place = 1
        for token in range(a_begin[row], a_end[row]):
            rows[row, place] = tokens[token]
            place += 1
        rows[row, place] = sep
        if b_end[row] > b_begin[row]:
            place += 1
            for token in range(b_begin[row], b_end[row]):
                rows[row, place] = tokens[token]
                place += 1
            rows[row, place] = sep
