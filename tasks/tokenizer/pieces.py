"""The pieces of a SentencePiece model as the kernels need them, and the cutting of texts into spans.

Inside of the kernels a space is a space (0x20), where SentencePiece writes U+2581; that character itself is never part
of a span. A text may be cut between two neighbouring characters that are adjacent in no piece. The pairs that are
adjacent in some piece are bits of a hash table. Two pairs may share a bit: then a text is cut less often than possible,
and no id changes.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from model.kernels import kernel
from tasks.common.utf8 import decode
from tasks.tokenizer.model_file import (
    BLANK,
    BYTE,
    MODEL_TYPES,
    NORMAL,
    UNKNOWN_PENALTY,
    UNUSED,
    USER_DEFINED,
    read_model,
)

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
U64 = npt.NDArray[np.uint64]
CODE_POINTS = 0x110000

MOST_PIECES = (1 << 20) + (1 << 16)
"""Limit of the vocabulary size: ids and characters without a piece fit into 21 bits together."""

BLANK_CODE_POINT = 0x2581
"""Where a text contains U+2581, it is a span of its own."""

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


class UnsupportedModelError(Exception):
    """Raised for a model for which the kernels would give other ids than SentencePiece; says why."""


@dataclass(frozen=True)
class Pieces:
    """The pieces that can occur in encoded text; `scores` by id, float32 [vocab_size]."""

    algorithm: str
    """`bpe` or `unigram`."""
    ids: dict[str, int]
    """Text of a piece, with spaces as spaces -> id."""
    scores: F32
    byte_ids: I32
    """Ids of the 256 byte pieces, int32 [256]."""
    leading_space: bool
    """Whether a space is put before a text."""

    @property
    def unknown_score(self) -> np.float32:
        """Unigram's score of a character without a piece (`unigram_model.cc`)."""
        return np.float32(self.scores[list(self.ids.values())].min() - np.float32(UNKNOWN_PENALTY))

    def neighbours(self) -> set[tuple[str, str]]:
        """Return all pairs of characters that are adjacent in a piece."""
        return {pair for piece in self.ids for pair in pairwise(piece)}


def read_pieces(model: bytes) -> Pieces:
    """Return the pieces of a model's file. Raises UnsupportedModelError if the kernels do not support the model."""
    parsed = read_model(model, "tokenizer")
    types = [piece.type for piece in parsed.pieces]
    algorithm = MODEL_TYPES.get(parsed.trainer_spec.model_type, "")
    _check(parsed, types, algorithm)
    scores = np.array([piece.score for piece in parsed.pieces], np.float32)
    if np.isnan(scores).any():
        raise UnsupportedModelError("a score is not a number")
    known = {NORMAL, USER_DEFINED} if algorithm == "unigram" else {NORMAL}
    ids: dict[str, int] = {}
    byte_ids = np.full(256, -1, np.int32)
    for number, (piece, kind) in enumerate(zip(parsed.pieces, types, strict=True)):
        # A piece with a real space never matches, since SentencePiece has replaced each space of a text by U+2581.
        if kind in known and " " not in piece.piece:
            ids[piece.piece.replace(BLANK, " ")] = number
        elif kind == BYTE:
            byte_ids[int(piece.piece[3:5], 16)] = number
        if kind == USER_DEFINED:
            # `GetUserDefinedScore` in `unigram_model.cc`: computed in double precision, kept in single.
            scores[number] = np.float32(0.1 * (len(piece.piece.encode()) - 1))
    if byte_ids.min() < 0:
        raise UnsupportedModelError("it has no byte pieces")
    if " " not in ids:
        raise UnsupportedModelError("it has no piece for a space")
    unused = {piece.piece.replace(BLANK, " ") for piece in parsed.pieces if piece.type == UNUSED}
    if algorithm == "bpe" and any(_may_be_joined(piece, ids.keys() | unused) for piece in unused):
        raise UnsupportedModelError("pieces out of use are on the way to others")
    return Pieces(algorithm, ids, scores, byte_ids, parsed.normalizer_spec.add_dummy_prefix)


def _may_be_joined(piece: str, known: Set[str]) -> bool:
    """Return whether BPE could form the piece from others; names of reserved ids cannot be formed."""
    parts = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
    return not parts or any(all(len(part) == 1 or part in known for part in pair) for pair in parts)


def _check(parsed: object, types: list[int], algorithm: str) -> None:
    normaliser, trainer = parsed.normalizer_spec, parsed.trainer_spec  # pyright: ignore[reportAttributeAccessIssue]
    reasons = {
        "it is neither BPE nor Unigram": not algorithm,
        "its normaliser changes text": bool(normaliser.precompiled_charsmap),
        "its normaliser drops spaces": normaliser.remove_extra_whitespaces,
        "its normaliser keeps spaces as spaces": not normaliser.escape_whitespaces,
        "it puts spaces behind words": trainer.treat_whitespace_as_suffix,
        "a BPE model has user-defined pieces": algorithm == "bpe" and USER_DEFINED in types,
        "it has too many pieces": len(types) > MOST_PIECES,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnsupportedModelError(reason)


def border_bits(neighbours: Iterable[tuple[str, str]]) -> U64:
    """Return the table of adjacent pairs: 128 x 128 bits for pairs of ASCII characters, then a power of two of bits for
    all others, uint64."""
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
    """Return whether two characters may be adjacent in a piece."""
    place = _place(np.uint64(left), np.uint64(right), np.uint64((bits.size - _ASCII_WORDS) * 64))
    return (bits[place >> _SIX] >> (place & _WORD)) & _ONE != 0


@kernel
def cut(data, start, end, bits, borders, alone):
    """Cut data[start:end] into spans; return (their number, where the last one ends).

    Span i is data[borders[i] : borders[i + 1]], and alone[i] is its only character, or -1 if it has several. `borders`
    has one value more than the largest number of spans; the rest is left for another call.
    """
    hashed_bits = np.uint64((bits.size - _ASCII_WORDS) * 64)
    most = borders.size - 1
    count = 0
    left = np.int64(BLANK_CODE_POINT)
    position = start
    while position < end:
        right, following = decode(data, position)
        place = _place(np.uint64(left), np.uint64(right), hashed_bits)
        if (
            (bits[place >> _SIX] >> (place & _WORD)) & _ONE == 0
            or left == BLANK_CODE_POINT
            or right == BLANK_CODE_POINT
        ):
            if count == most:
                break
            borders[count] = position
            alone[count] = right
            count += 1
        else:
            alone[count - 1] = -1
        left = right
        position = following
    borders[count] = position
    return count, position


@kernel
def spell(tables, data, position, target, filled):
    """Write the ids of the bytes of one character; `tables` are those of either algorithm."""
    size = decode(data, position)[1] - position
    for index in range(size):
        target[filled + index] = tables.byte_ids[data[position + index]]
    return filled + size
