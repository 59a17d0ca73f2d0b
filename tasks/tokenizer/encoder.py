"""The compiled encoder of SentencePiece vocabularies: columns of text become arrays of ids.

A text is cut into spans, which are looked up in the cache; missing ones are merged (BPE) or segmented (Unigram). The
spans of a text pass through these steps in blocks. A step is one loop over a block, since a call with array arguments
costs numba more than all work on a span (measured: 250 ns a span with calls, 60 without). Missing spans enter the cache
after their block, so that no line changes between being found and being read.
"""

import functools
import logging
import threading

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model.kernels import kernel
from tasks.artifacts.tables.columns import text_buffers
from tasks.common.utf8 import decode
from tasks.tokenizer.base import Encoded, token_dtype
from tasks.tokenizer.bpe_kernel import SHORT, build_merges, merge_long, merge_short
from tasks.tokenizer.cache import (
    BITS_ID,
    IDS,
    MASK_ID,
    MOST_BYTES,
    MOST_IDS,
    empty_cache,
    extra_byte,
    id_count,
    keep,
    look_up,
    words_at_bytes,
)
from tasks.tokenizer.pieces import (
    BLANK_CODE_POINT,
    UnsupportedModelError,
    border_bits,
    cut,
    joined,
    read_pieces,
    spell,
)
from tasks.tokenizer.unigram_kernel import (
    RESET,
    allocate_paths,
    build_lattice,
    is_safe,
    safe_exponent,
    segment,
    write_path,
)

log = logging.getLogger(__name__)

I64 = npt.NDArray[np.int64]

CACHE_LINES = 1 << 17
"""Lines of 64 bytes in the cache of each thread: 8 MiB."""

_SLICE_BYTES = 4 << 20
"""Text encoded at a time, or a single longer text; bounds the memory of ids before they are concatenated."""

BLOCK = 512
"""Spans processed at a time."""

SMALL_SPAN = 256
"""Bytes of a span for which paths are always allocated."""

WRITTEN_AT_ONCE = 3
"""Ids in a word of a cache line; so many are written at once, and surplus ones are overwritten."""

_SPACE = np.uint8(0x20)
_ZERO = np.float32(0.0)


def open_encoder(model: bytes) -> "Encoder | None":
    """Return the encoder of a model's file, which is opened once; None if SentencePiece itself must encode (logs
    why)."""
    with _opening_lock:
        return _open_encoder(model)


_opening_lock = threading.Lock()


@functools.lru_cache(maxsize=2)
def _open_encoder(model: bytes) -> "Encoder | None":
    try:
        return Encoder(model)
    except UnsupportedModelError as reason:
        log.info(
            "tokenizing: encoding with SentencePiece, which is slower than the kernels; they do not support this model:"
            " %s",
            reason,
        )
        return None


class Encoder:
    """Encodes columns of text with one model; any number of threads may share it.

    Raises UnsupportedModelError for a model for which the kernels would give other ids than SentencePiece.
    """

    def __init__(self, model: bytes) -> None:
        pieces = read_pieces(model)
        self._dtype = token_dtype(len(pieces.scores))
        self._leading_blank = pieces.leading_space
        self._bits = border_bits(pieces.neighbours())
        self._rows, self._tables = (
            (merge_rows, build_merges(pieces)) if pieces.algorithm == "bpe" else (segment_rows, build_lattice(pieces))
        )
        self._idle: list[npt.NDArray[np.uint64]] = []

    def encode(self, texts: pa.Array | pa.ChunkedArray, closing: int | None = None) -> Encoded:
        """Return the ids of each text of a column of strings, each followed by `closing` if given."""
        chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
        try:
            cache = self._idle.pop()
        except IndexError:
            cache = empty_cache(CACHE_LINES)
        found: list[np.ndarray] = [np.zeros(0, self._dtype)]
        offsets = np.zeros(len(texts) + 1, np.int64)
        row = 0
        for chunk in chunks:
            data, borders = _valid_texts(chunk)
            words = words_at_bytes(data)
            for first, last in _slices(borders):
                capacity = borders[last] - borders[first] + 2 * (last - first) + WRITTEN_AT_ONCE
                target = np.empty(capacity, self._dtype)
                ends = offsets[row + 1 : row + 1 + last - first]
                texts_of_slice = (data, words, borders[first : last + 1])
                after = -1 if closing is None else closing
                size = self._rows(
                    self._tables, self._bits, cache, *texts_of_slice, self._leading_blank, after, target, ends
                )
                ends += offsets[row]
                found.append(target[:size].copy())
                row += last - first
        self._idle.append(cache)
        return Encoded(np.concatenate(found), offsets)


def _valid_texts(texts: pa.Array) -> tuple[npt.NDArray[np.uint8], I64]:
    """Return `text_buffers` of an array of text; checks its UTF-8, on which the kernels rely."""
    assert texts.null_count == 0, "a text is missing"
    texts = texts.cast(pa.large_string())
    texts.validate(full=True)
    return text_buffers(texts)


def _slices(offsets: I64) -> list[tuple[int, int]]:
    """Return (first, last) texts, half-open, of at most `_SLICE_BYTES`, or a single longer text."""
    slices: list[tuple[int, int]] = []
    first = 0
    while first < len(offsets) - 1:
        last = int(np.searchsorted(offsets, offsets[first] + _SLICE_BYTES, "right")) - 1
        last = min(max(last, first + 1), len(offsets) - 1)
        slices.append((first, last))
        first = last
    return slices


@kernel
def merge_rows(merges, bits, cache, data, words, offsets, leading_space, closing, target, ends):
    """Write the ids of texts under BPE into `target` and the end of each text into `ends`; return their number.

    `closing` is an id after each text, -1 for none. `target` has capacity for an id per byte, two per text, and
    `WRITTEN_AT_ONCE` more.
    """
    borders, alone = np.empty(BLOCK + 1, np.int64), np.empty(BLOCK, np.int32)
    lines = np.empty(BLOCK, np.int64)
    scratch = np.empty((4, SHORT), np.int32)
    missing = np.zeros((BLOCK, 4), np.int64)
    filled = np.int64(0)
    for row in range(offsets.size - 1):
        position, end = offsets[row], offsets[row + 1]
        if leading_space and position < end and decode(data, position)[0] != BLANK_CODE_POINT:
            opening = _opening(data, position, end, bits, borders, alone)
            if opening.size <= SHORT:
                filled = merge_short(merges, opening, 0, opening.size, scratch, target, filled)
            else:
                filled = merge_long(merges, opening, 0, opening.size, target, filled)
            position += opening.size - 1
        while position < end:
            count, position = cut(data, position, end, bits, borders, alone)
            look_up(cache, data, words, borders, alone, count, lines)
            filled = _merge_block(
                merges, cache, data, words, borders, alone, lines, count, scratch, missing, target, filled
            )
        if closing >= 0:
            target[filled] = closing
            filled += 1
        ends[row] = filled
    return filled


@kernel
def _merge_block(merges, cache, data, words, borders, alone, lines, count, scratch, missing, target, filled):
    missed = 0
    symbols, byte_ids = merges.symbols, merges.byte_ids
    for span in range(count):
        line = lines[span]
        if line >= 0:
            number = id_count(cache[line])
            for word in range(IDS, IDS + (number + 2) // 3):
                packed = cache[line + word]
                target[filled] = packed & MASK_ID
                target[filled + 1] = (packed >> BITS_ID) & MASK_ID
                target[filled + 2] = packed >> (BITS_ID + BITS_ID)
                filled += 3
            filled += number - (number + 2) // 3 * 3
        elif alone[span] >= 0:
            symbol = symbols[alone[span]]
            if 0 <= symbol < merges.vocab_size:
                target[filled] = symbol
                filled += 1
            else:
                for position in range(borders[span], borders[span + 1]):
                    target[filled] = byte_ids[data[position]]
                    filled += 1
        else:
            begin, start, end = filled, borders[span], borders[span + 1]
            if end - start <= SHORT:
                filled = merge_short(merges, data, start, end, scratch, target, filled)
            else:
                filled = merge_long(merges, data, start, end, target, filled)
            if end - start <= MOST_BYTES and filled - begin <= MOST_IDS:
                missing[missed, 0], missing[missed, 1], missing[missed, 2] = span, begin, filled
                missed += 1
    keep(cache, data, words, borders, missing[:missed], target)
    return filled


@kernel
def segment_rows(lattice, bits, cache, data, words, offsets, leading_space, closing, target, ends):
    """Write the ids of texts under Unigram, as `merge_rows`."""
    borders, alone = np.empty(BLOCK + 1, np.int64), np.empty(BLOCK, np.int32)
    lines = np.empty(BLOCK, np.int64)
    missing = np.empty((BLOCK, 4), np.int64)
    paths = allocate_paths(SMALL_SPAN)
    filled = np.int64(0)
    for row in range(offsets.size - 1):
        position, end = offsets[row], offsets[row + 1]
        total = _ZERO
        if leading_space and position < end and decode(data, position)[0] != BLANK_CODE_POINT:
            opening = _opening(data, position, end, bits, borders, alone)
            if opening.size >= paths.sums.size:
                paths = allocate_paths(opening.size)
            characters, total, _ = segment(lattice, opening, 0, opening.size, total, paths)
            filled = write_path(lattice, opening, 0, characters, paths, target, filled)
            position += opening.size - 1
        while position < end:
            count, position = cut(data, position, end, bits, borders, alone)
            look_up(cache, data, words, borders, alone, count, lines)
            longest = np.int64(0)
            for span in range(count):
                longest = max(longest, borders[span + 1] - borders[span])
            if longest >= paths.sums.size:
                paths = allocate_paths(longest)
            total, filled = _segment_block(
                lattice, cache, data, words, borders, alone, lines, count, paths, missing, total, target, filled
            )
        if closing >= 0:
            target[filled] = closing
            filled += 1
        ends[row] = filled
    return filled


@kernel
def _segment_block(lattice, cache, data, words, borders, alone, lines, count, paths, missing, total, target, filled):
    """Return (sum of scores at the block's end, how far `target` is filled)."""
    missed = 0
    singles, scores, byte_ids = lattice.singles, lattice.scores, lattice.byte_ids
    for span in range(count):
        line = lines[span]
        size = borders[span + 1] - borders[span]
        if line >= 0 and is_safe(lattice.largest, extra_byte(cache[line]), total, size):
            number = id_count(cache[line])
            for index in range(number):
                piece = (cache[line + IDS + index // 3] >> (BITS_ID * np.uint64(index % 3))) & MASK_ID
                target[filled + index] = piece
                total = np.float32(scores[piece] + total)
            filled += number
        elif alone[span] == BLANK_CODE_POINT:
            total = _ZERO
            filled = spell(lattice, data, borders[span], target, filled)
        elif alone[span] >= 0:
            piece = singles[alone[span]]
            if total < -RESET or total > RESET:
                total = _ZERO
            if piece >= 0:
                total = np.float32(scores[piece] + total)
                target[filled] = piece
                filled += 1
            else:
                total = np.float32(lattice.unknown_score + total)
                for position in range(borders[span], borders[span + 1]):
                    target[filled] = byte_ids[data[position]]
                    filled += 1
        else:
            before, begin = total, filled
            characters, total, margin = segment(lattice, data, borders[span], borders[span + 1], total, paths)
            filled = write_path(lattice, data, borders[span], characters, paths, target, filled)
            if line < 0 and size <= MOST_BYTES and filled - begin <= MOST_IDS:
                exponent = safe_exponent(margin, size)
                again = before
                for index in range(begin, filled):
                    again = np.float32(scores[target[index]] + again)
                # False if a character is encoded as bytes, whose scores are NaN.
                if again == total and is_safe(lattice.largest, exponent, before, size):
                    missing[missed, 0], missing[missed, 1], missing[missed, 2] = span, begin, filled
                    missing[missed, 3] = exponent
                    missed += 1
    keep(cache, data, words, borders, missing[:missed], target)
    return total, filled


@kernel
def _opening(data, start, end, bits, borders, alone):
    """Return the bytes of a text's first span, with the space that is put before the text."""
    stop = start
    if joined(bits, _SPACE, decode(data, start)[0]):
        stop = _first_end(data, start, end, bits, borders, alone)
    opening = np.empty(stop - start + 1, np.uint8)
    opening[0] = _SPACE
    opening[1:] = data[start:stop]
    return opening


@kernel
def _first_end(data, start, end, bits, borders, alone):
    reach = start
    while reach < end:
        # Spans may have any length; the first 64 bytes are enough for nearly all.
        reach = min(end, max(reach + 64, start + 2 * (reach - start)))
        while reach < end and data[reach] & 0xC0 == 0x80:
            reach += 1
        count, _ = cut(data, start, reach, bits, borders[:3], alone)
        if count > 1:
            return borders[1]
    return end
