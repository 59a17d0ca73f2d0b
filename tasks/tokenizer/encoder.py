"""A vocabulary of SentencePiece in compiled form: columns of text become arrays of ids.

Rows of text at once: cut into stretches, looked up in the cache, and what is not there merged or segmented.

The stretches of a row go in blocks through these steps. A step is one loop over a block, since a call that takes arrays
costs numba more than the whole work on a stretch (measured: 250 ns a stretch with calls, 60 without). What was missing
enters the cache behind its block, so that no line changes between being found and being read.
"""

import functools
import logging
import threading

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.common.kernels import kernel
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
    BLANK,
    MARK,
    Encoded,
    UnsupportedModelError,
    border_bits,
    character,
    cut,
    joined,
    read_pieces,
    spell,
    token_dtype,
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
"""Text in work at a time, and a single row where that is larger; bounds the memory that ids take before they are
gathered."""


def open_encoder(model: bytes) -> "Encoder | None":
    """The encoder of a model's file, opened once; None where SentencePiece itself must encode, and the log says why."""
    with _opening_lock:
        return _open_encoder(model)


_opening_lock = threading.Lock()


@functools.lru_cache(maxsize=2)
def _open_encoder(model: bytes) -> "Encoder | None":
    try:
        return Encoder(model)
    except UnsupportedModelError as reason:
        log.info("tokenizing: SentencePiece encodes, slower than our kernels, for of this model they know: %s", reason)
        return None


class Encoder:
    """Encodes columns of text with one model; any number of threads may share it.

    Raises UnsupportedModelError for a model whose ids the kernels would not give.
    """

    def __init__(self, model: bytes) -> None:
        pieces = read_pieces(model)
        self._dtype = token_dtype(len(pieces.scores))
        self._leading_blank = pieces.leading_space
        self._bits = border_bits(pieces.neighbours())
        self._rows, self._tables = (
            (merge_rows, build_merges(pieces)) if pieces.algorithm == "bpe" else (segment_rows, build_lattice(pieces))
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


BLOCK = 512

ROOM = 256
"""Bytes of a stretch for whose paths there is always room."""

WRITTEN_AT_ONCE = 3
"""Ids that a word of a cache line holds; so many are written, and those too many are overwritten."""

_BLANK = np.uint8(0x20)

_ZERO = np.float32(0.0)


@kernel
def merge_rows(merges, bits, cache, data, words, offsets, leading_space, closing, target, ends):
    """Ids of rows of text under BPE into `target`, the end of each row's into `ends`; returns how many there are.

    `closing` is an id behind each row, -1 for none. `target` has room for an id a byte (three, where a blank is spelled
    in bytes), two a row, and `WRITTEN_AT_ONCE` more.
    """
    borders, alone = np.empty(BLOCK + 1, np.int64), np.empty(BLOCK, np.int32)
    lines = np.empty(BLOCK, np.int64)
    scratch = np.empty((4, SHORT), np.int32)
    missing = np.zeros((BLOCK, 4), np.int64)
    filled = np.int64(0)
    for row in range(offsets.size - 1):
        position, end = offsets[row], offsets[row + 1]
        if leading_space and position < end and character(data, position)[0] != MARK:
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
    for stretch in range(count):
        line = lines[stretch]
        if line >= 0:
            number = id_count(cache[line])
            for word in range(IDS, IDS + (number + 2) // 3):
                packed = cache[line + word]
                target[filled] = packed & MASK_ID
                target[filled + 1] = (packed >> BITS_ID) & MASK_ID
                target[filled + 2] = packed >> (BITS_ID + BITS_ID)
                filled += 3
            filled += number - (number + 2) // 3 * 3
        elif alone[stretch] >= 0:
            symbol = symbols[alone[stretch]]
            if 0 <= symbol < merges.vocab_size:
                target[filled] = symbol
                filled += 1
            elif alone[stretch] == _BLANK:
                filled = spell(merges, data, borders[stretch], target, filled)
            else:
                for position in range(borders[stretch], borders[stretch + 1]):
                    target[filled] = byte_ids[data[position]]
                    filled += 1
        else:
            begin, start, end = filled, borders[stretch], borders[stretch + 1]
            if end - start <= SHORT:
                filled = merge_short(merges, data, start, end, scratch, target, filled)
            else:
                filled = merge_long(merges, data, start, end, target, filled)
            if end - start <= MOST_BYTES and filled - begin <= MOST_IDS:
                missing[missed, 0], missing[missed, 1], missing[missed, 2] = stretch, begin, filled
                missed += 1
    keep(cache, data, words, borders, missing[:missed], target)
    return filled


@kernel
def segment_rows(lattice, bits, cache, data, words, offsets, leading_space, closing, target, ends):
    """The same under Unigram."""
    borders, alone = np.empty(BLOCK + 1, np.int64), np.empty(BLOCK, np.int32)
    lines = np.empty(BLOCK, np.int64)
    missing = np.empty((BLOCK, 4), np.int64)
    paths = allocate_paths(ROOM)
    filled = np.int64(0)
    for row in range(offsets.size - 1):
        position, end = offsets[row], offsets[row + 1]
        total = _ZERO
        if leading_space and position < end and character(data, position)[0] != MARK:
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
            for stretch in range(count):
                longest = max(longest, borders[stretch + 1] - borders[stretch])
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
    """(sum at the block's end, how far `target` is filled)."""
    missed = 0
    singles, scores, byte_ids = lattice.singles, lattice.scores, lattice.byte_ids
    for stretch in range(count):
        line = lines[stretch]
        size = borders[stretch + 1] - borders[stretch]
        if line >= 0 and is_safe(lattice.largest, extra_byte(cache[line]), total, size):
            number = id_count(cache[line])
            for index in range(number):
                piece = (cache[line + IDS + index // 3] >> (BITS_ID * np.uint64(index % 3))) & MASK_ID
                target[filled + index] = piece
                total = np.float32(scores[piece] + total)
            filled += number
        elif alone[stretch] == MARK:
            total = _ZERO
            filled = spell(lattice, data, borders[stretch], target, filled)
        elif alone[stretch] >= 0:
            piece = singles[alone[stretch]]
            if total < -RESET or total > RESET:
                total = _ZERO
            if piece >= 0:
                total = np.float32(scores[piece] + total)
                target[filled] = piece
                filled += 1
            else:
                total = np.float32(lattice.unknown_score + total)
                if alone[stretch] == _BLANK:
                    filled = spell(lattice, data, borders[stretch], target, filled)
                else:
                    for position in range(borders[stretch], borders[stretch + 1]):
                        target[filled] = byte_ids[data[position]]
                        filled += 1
        else:
            before, begin = total, filled
            characters, total, margin = segment(lattice, data, borders[stretch], borders[stretch + 1], total, paths)
            filled = write_path(lattice, data, borders[stretch], characters, paths, target, filled)
            if line < 0 and size <= MOST_BYTES and filled - begin <= MOST_IDS:
                exponent = safe_exponent(margin, size)
                again = before
                for index in range(begin, filled):
                    again = np.float32(scores[target[index]] + again)
                # Not so where a character is spelled in bytes, whose scores are no numbers.
                if again == total and is_safe(lattice.largest, exponent, before, size):
                    missing[missed, 0], missing[missed, 1], missing[missed, 2] = stretch, begin, filled
                    missing[missed, 3] = exponent
                    missed += 1
    keep(cache, data, words, borders, missing[:missed], target)
    return total, filled


@kernel
def _opening(data, start, end, bits, borders, alone):
    """The bytes of a text's first stretch behind the blank that is put before it."""
    stop = start
    if joined(bits, _BLANK, character(data, start)[0]):
        stop = _first_end(data, start, end, bits, borders, alone)
    opening = np.empty(stop - start + 1, np.uint8)
    opening[0] = _BLANK
    opening[1:] = data[start:stop]
    return opening


@kernel
def _first_end(data, start, end, bits, borders, alone):
    reach = start
    while reach < end:
        # A stretch of any length is one stretch; the first 64 bytes are enough for nearly all.
        reach = min(end, max(reach + 64, start + 2 * (reach - start)))
        while reach < end and data[reach] & 0xC0 == 0x80:
            reach += 1
        count, _ = cut(data, start, reach, bits, borders[:3], alone)
        if count > 1:
            return borders[1]
    return end
