"""What a model of SentencePiece holds, as the kernels need it, and which models they leave to the library.

Within the kernels a blank is a blank (0x20), where SentencePiece writes U+2581; that character itself never reaches
them.

Where a text may be cut: between two neighbouring characters that stand side by side in no piece.

The pairs that do stand in a piece are bits of a table, found by a hash. Two pairs may share a bit; then a text is cut
less often than it might be, and no id changes.

Characters without a piece, in bytes.

The ids of a column of texts, and how those of the library are gathered into the same form.
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sentencepiece import sentencepiece_model_pb2 as schema

from tasks.common.kernels import kernel

F32 = npt.NDArray[np.float32]

I32 = npt.NDArray[np.int32]

BLANK = "\u2581"

CODE_POINTS = 0x110000

MOST_PIECES = (1 << 20) + (1 << 16)
"""Beyond what a vocabulary may have; ids and characters without a piece fit into 21 bits together."""

_MODELS = {1: "unigram", 2: "bpe"}

_NORMAL, _USER_DEFINED, _UNUSED, _BYTE = 1, 4, 5, 6

_UNKNOWN_PENALTY = np.float32(10.0)


class UnsupportedModelError(Exception):
    """The kernels would not give the ids that SentencePiece gives for this model; the text says why."""


@dataclass(frozen=True)
class Pieces:
    """The pieces that text can become. `scores` is by id, float32 [vocab_size]."""

    algorithm: str
    """`bpe` or `unigram`."""
    ids: dict[str, int]
    """Text of a piece, its blanks as blanks -> id."""
    scores: F32
    byte_ids: I32
    """Ids of the 256 byte pieces."""
    leading_space: bool
    """Whether a blank is put before a text."""

    @property
    def unknown_score(self) -> np.float32:
        """What Unigram gives a character without a piece (`unigram_model.cc`, `kUnkPenalty`)."""
        normal = self.scores[list(self.ids.values())]
        return np.float32(normal.min() - _UNKNOWN_PENALTY)

    def neighbours(self) -> set[tuple[str, str]]:
        """All pairs of characters that stand side by side in a piece."""
        return {pair for piece in self.ids for pair in pairwise(piece)}

    def characters(self) -> Iterator[tuple[str, int]]:
        """The pieces of one character, and their ids."""
        return ((piece, number) for piece, number in self.ids.items() if len(piece) == 1)


def read_pieces(model: bytes) -> Pieces:
    """The pieces of a model's file; UnsupportedModelError where the kernels don't know how to follow SentencePiece."""
    parsed = schema.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]  # made at run time by protobuf
    parsed.ParseFromString(model)
    types = [piece.type for piece in parsed.pieces]
    algorithm = _MODELS.get(parsed.trainer_spec.model_type, "")
    _check(parsed, types, algorithm)
    scores = np.array([piece.score for piece in parsed.pieces], np.float32)
    if np.isnan(scores).any():
        raise UnsupportedModelError("a score is not a number")
    known = {_NORMAL, _USER_DEFINED} if algorithm == "unigram" else {_NORMAL}
    ids: dict[str, int] = {}
    byte_ids = np.full(256, -1, np.int32)
    for number, (piece, kind) in enumerate(zip(parsed.pieces, types, strict=True)):
        # A piece with a true blank never matches, since each blank of a text is U+2581 by then.
        if kind in known and " " not in piece.piece:
            ids[piece.piece.replace(BLANK, " ")] = number
        elif kind == _BYTE:
            byte_ids[int(piece.piece[3:5], 16)] = number
        if kind == _USER_DEFINED:
            # `GetUserDefinedScore` in `unigram_model.cc`: computed in double precision, kept in single.
            scores[number] = np.float32(0.1 * (len(piece.piece.encode()) - 1))
    if not ids or byte_ids.min() < 0:
        raise UnsupportedModelError("it has no byte pieces")
    unused = {piece.piece.replace(BLANK, " ") for piece in parsed.pieces if piece.type == _UNUSED}
    if algorithm == "bpe" and any(_may_be_joined(piece, ids.keys() | unused) for piece in unused):
        raise UnsupportedModelError("pieces out of use are on the way to others")
    return Pieces(algorithm, ids, scores, byte_ids, parsed.normalizer_spec.add_dummy_prefix)


def _may_be_joined(piece: str, known: Set[str]) -> bool:
    """Whether BPE could come upon the piece; names of rows that are kept free are never a pair of pieces."""
    parts = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
    return not parts or any(all(len(part) == 1 or part in known for part in pair) for pair in parts)


def _check(parsed: object, types: list[int], algorithm: str) -> None:
    normaliser, trainer = parsed.normalizer_spec, parsed.trainer_spec  # pyright: ignore[reportAttributeAccessIssue]
    reasons = {
        "it is neither BPE nor Unigram": not algorithm,
        "its normaliser changes text": bool(normaliser.precompiled_charsmap),
        "its normaliser drops blanks": normaliser.remove_extra_whitespaces,
        "its normaliser keeps blanks as blanks": not normaliser.escape_whitespaces,
        "it puts blanks behind words": trainer.treat_whitespace_as_suffix,
        "a BPE model has pieces that stand for themselves": algorithm == "bpe" and _USER_DEFINED in types,
        "it has too many pieces": len(types) > MOST_PIECES,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnsupportedModelError(reason)


U64 = npt.NDArray[np.uint64]

MARK = 0x2581
"""The character by which SentencePiece writes blanks, where a text holds it: it stands alone."""

_BITS_A_PAIR = 32

_ASCII_WORDS = 128 * 128 // 64

_FIRST = np.uint64(0x9E3779B97F4A7C15)

_SECOND = np.uint64(0xD6E8FEB86659FD93)

_DOWN = np.uint64(24)

_WORD = np.uint64(63)

_SIX = np.uint64(6)

_SEVEN = np.uint64(7)

_ONE = np.uint64(1)

_ASCII = np.uint64(128)

_ASCII_BITS = np.uint64(128 * 128)


def border_bits(neighbours: Iterable[tuple[str, str]]) -> U64:
    """The table: 128 x 128 bits for pairs within ASCII, then a power of two of bits for all others."""
    pairs = np.array([(ord(left), ord(right)) for left, right in neighbours] or [(0, 0)], np.uint64)
    words = 1 << max(4, (len(pairs) * _BITS_A_PAIR // 64 - 1).bit_length())
    bits = np.zeros(_ASCII_WORDS + words, np.uint64)
    _set_bits(bits, pairs[:, 0].copy(), pairs[:, 1].copy())
    return bits


@kernel
def _place(left, right, hashed_bits):
    if (left | right) < _ASCII:
        return (left << _SEVEN) | right
    mixed = (left * _FIRST + right) * _SECOND
    return _ASCII_BITS + ((mixed >> _DOWN) & (hashed_bits - _ONE))


@kernel
def _set_bits(bits, left, right):
    hashed_bits = np.uint64((bits.size - _ASCII_WORDS) * 64)
    for index in range(left.size):
        place = _place(left[index], right[index], hashed_bits)
        bits[place >> _SIX] |= _ONE << (place & _WORD)


@kernel
def joined(bits, left, right):
    """Whether two characters may stand side by side in a piece."""
    place = _place(np.uint64(left), np.uint64(right), np.uint64((bits.size - _ASCII_WORDS) * 64))
    return (bits[place >> _SIX] >> (place & _WORD)) & _ONE != 0


@kernel
def character(data, position):
    """(code point, bytes) of the character at `position` of valid UTF-8."""
    byte = np.int64(data[position])
    if byte < 0x80:
        return byte, 1
    second = np.int64(data[position + 1]) & 0x3F
    if byte < 0xE0:
        return ((byte & 0x1F) << 6) | second, 2
    third = np.int64(data[position + 2]) & 0x3F
    if byte < 0xF0:
        return ((byte & 0x0F) << 12) | (second << 6) | third, 3
    return ((byte & 0x07) << 18) | (second << 12) | (third << 6) | (np.int64(data[position + 3]) & 0x3F), 4


@kernel
def cut(data, start, end, bits, borders, alone):
    """Cut data[start:end] into stretches; returns (how many, where the last one ends).

    Stretch i is data[borders[i] : borders[i + 1]], and alone[i] its only character, or -1 where it has several.
    `borders` has a value more than there may be stretches; what does not fit is left for another call.
    """
    hashed_bits = np.uint64((bits.size - _ASCII_WORDS) * 64)
    most = borders.size - 1
    count = 0
    left = np.int64(MARK)
    position = start
    # Everything stands in this one loop: a call that takes arrays costs numba more than a character does.
    while position < end:
        right = np.int64(data[position])
        size = 1
        if right >= 0x80:
            second = np.int64(data[position + 1]) & 0x3F
            if right < 0xE0:
                right = ((right & 0x1F) << 6) | second
                size = 2
            else:
                third = np.int64(data[position + 2]) & 0x3F
                if right < 0xF0:
                    right = ((right & 0x0F) << 12) | (second << 6) | third
                    size = 3
                else:
                    fourth = np.int64(data[position + 3]) & 0x3F
                    right = ((right & 0x07) << 18) | (second << 12) | (third << 6) | fourth
                    size = 4
        place = _place(np.uint64(left), np.uint64(right), hashed_bits)
        if (bits[place >> _SIX] >> (place & _WORD)) & _ONE == 0 or left == MARK or right == MARK:
            if count == most:
                break
            borders[count] = position
            alone[count] = right
            count += 1
        else:
            alone[count - 1] = -1
        left = right
        position += size
    borders[count] = position
    return count, position


_BLANK = 0x20


@kernel
def spell(tables, data, position, target, filled):
    """The bytes of one character, as ids; `tables` are those of either algorithm."""
    if data[position] == _BLANK:
        for index in range(3):
            target[filled + index] = tables.blank_bytes[index]
        return filled + 3
    size = character(data, position)[1]
    for index in range(size):
        target[filled + index] = tables.byte_ids[data[position + index]]
    return filled + size


I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Encoded:
    """The ids of many texts, one behind the other: those of text i are ids[offsets[i] : offsets[i + 1]]."""

    ids: np.ndarray
    """u16 or u32 [tokens]."""
    offsets: I64
    """[texts + 1]."""


def token_dtype(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """u16 where every id fits, else u32."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def text_by_text(texts: pa.Array | pa.ChunkedArray) -> Iterator[str]:
    """The strings of a column, those of a chunk at a time in Python's memory."""
    for chunk in texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]:
        yield from chunk.to_pylist()


def gather(texts: Iterable[np.ndarray], dtype: type[np.uint16] | type[np.uint32], closing: int | None) -> Encoded:
    """The ids of each text behind those of the text before it, `closing` behind each where there is one."""
    tail = np.array([] if closing is None else [closing], dtype)
    arrays = [np.zeros(0, dtype)]
    lengths = [0]
    for ids in texts:
        arrays += [ids.astype(dtype), tail]
        lengths.append(len(ids) + len(tail))
    return Encoded(np.concatenate(arrays), np.cumsum(lengths, dtype=np.int64))
