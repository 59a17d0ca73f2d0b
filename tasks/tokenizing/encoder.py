"""A vocabulary of SentencePiece in compiled form: columns of text become arrays of ids."""

import functools
import logging
import threading

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.tokenizing.borders import border_bits
from tasks.tokenizing.columns import WRITTEN_AT_ONCE, merge_rows, segment_rows
from tasks.tokenizing.encoded import Encoded, token_dtype
from tasks.tokenizing.merging import merges_of
from tasks.tokenizing.pieces import BLANK, DeclinedError, read_pieces
from tasks.tokenizing.stretch_cache import empty_cache, words_at_bytes
from tasks.tokenizing.viterbi import lattice_of

log = logging.getLogger(__name__)

I64 = npt.NDArray[np.int64]

CACHE_LINES = 1 << 17
"""Lines of 64 bytes in the cache of each thread: 8 MiB."""
_SLICE_BYTES = 4 << 20
"""Text in work at a time, and a single row where that is larger; bounds the memory that ids take before they are
gathered."""


def compiled(model: bytes) -> "Encoder | None":
    """The encoder of a model's file, opened once; None where SentencePiece itself must encode, and the log says why."""
    with _one_opens:
        return _compiled(model)


_one_opens = threading.Lock()


@functools.lru_cache(maxsize=2)
def _compiled(model: bytes) -> "Encoder | None":
    try:
        return Encoder(model)
    except DeclinedError as reason:
        log.info("tokenizing: SentencePiece encodes, slower than our kernels, for of this model they know: %s", reason)
        return None


class Encoder:
    """Encodes columns of text with one model; any number of threads may share it.

    Raises DeclinedError for a model whose ids the kernels would not give.
    """

    def __init__(self, model: bytes) -> None:
        pieces = read_pieces(model)
        self._dtype = token_dtype(len(pieces.scores))
        self._leading_blank = pieces.leading_blank
        self._bits = border_bits(pieces.neighbours())
        self._rows, self._tables = (
            (merge_rows, merges_of(pieces)) if pieces.algorithm == "bpe" else (segment_rows, lattice_of(pieces))
        )
        # Ids at most: one a byte of text; a blank without a piece is spelled in the three bytes of U+2581.
        self._widest = 1 if " " in pieces.ids else len(BLANK.encode())
        self._idle: list[npt.NDArray[np.uint64]] = []

    def encode(self, texts: pa.Array | pa.ChunkedArray, closing: int | None = None) -> Encoded:
        """Ids of each text of a column of strings, `closing` behind each where there is one."""
        chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
        cache = self._idle.pop() if self._idle else empty_cache(CACHE_LINES)
        found: list[np.ndarray] = [np.zeros(0, self._dtype)]
        offsets = np.zeros(len(texts) + 1, np.int64)
        row = 0
        for chunk in chunks:
            data, borders = _text_buffers(chunk)
            words = words_at_bytes(data)
            for first, last in _slices(borders):
                room = self._widest * (borders[last] - borders[first] + last - first) + last - first + WRITTEN_AT_ONCE
                target = np.empty(room, self._dtype)
                ends = offsets[row + 1 : row + 1 + last - first]
                size = self._rows(
                    self._tables,
                    self._bits,
                    cache,
                    data,
                    words,
                    borders[first : last + 1],
                    self._leading_blank,
                    -1 if closing is None else closing,
                    target,
                    ends,
                )
                ends += offsets[row]
                found.append(target[:size].copy())
                row += last - first
        self._idle.append(cache)
        return Encoded(np.concatenate(found), offsets)


def _text_buffers(texts: pa.Array) -> tuple[npt.NDArray[np.uint8], I64]:
    """(bytes, offsets [texts + 1]) of an array of text, whose UTF-8 is checked, as the kernels trust it."""
    assert texts.null_count == 0, "a text is missing"
    texts = texts.cast(pa.large_string())
    texts.validate(full=True)
    _, offsets, data = texts.buffers()
    if not len(texts) or data is None or not data.size:
        return np.zeros(8, np.uint8), np.zeros(len(texts) + 1, np.int64)
    return np.frombuffer(data, np.uint8), np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]


def _slices(offsets: I64) -> list[tuple[int, int]]:
    """(first, last) rows, half-open, that hold `_SLICE_BYTES` of text or are a single row."""
    slices: list[tuple[int, int]] = []
    first = 0
    while first < len(offsets) - 1:
        last = int(np.searchsorted(offsets, offsets[first] + _SLICE_BYTES, "right")) - 1
        last = min(max(last, first + 1), len(offsets) - 1)
        slices.append((first, last))
        first = last
    return slices
