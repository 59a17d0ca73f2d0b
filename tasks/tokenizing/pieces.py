"""What a model of SentencePiece holds, as the kernels need it, and which models they leave to the library.

Within the kernels a blank is a blank (0x20), where SentencePiece writes U+2581; that character itself never reaches
them.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from sentencepiece import sentencepiece_model_pb2 as schema

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

BLANK = "\u2581"
CODE_POINTS = 0x110000
MOST_PIECES = (1 << 20) + (1 << 16)
"""Beyond what a vocabulary may have; ids and characters without a piece fit into 21 bits together."""
_MODELS = {1: "unigram", 2: "bpe"}
_NORMAL, _USER_DEFINED, _UNUSED, _BYTE = 1, 4, 5, 6
_UNKNOWN_PENALTY = np.float32(10.0)


class DeclinedError(Exception):
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
    leading_blank: bool
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
    """The pieces of a model's file; DeclinedError where the kernels don't know how to follow SentencePiece."""
    parsed = schema.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]  # made at run time by protobuf
    parsed.ParseFromString(model)
    types = [piece.type for piece in parsed.pieces]
    algorithm = _MODELS.get(parsed.trainer_spec.model_type, "")
    _check(parsed, types, algorithm)
    scores = np.array([piece.score for piece in parsed.pieces], np.float32)
    if np.isnan(scores).any():
        raise DeclinedError("a score is not a number")
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
        raise DeclinedError("it has no byte pieces")
    unused = {piece.piece.replace(BLANK, " ") for piece in parsed.pieces if piece.type == _UNUSED}
    if algorithm == "bpe" and any(_may_be_joined(piece, ids.keys() | unused) for piece in unused):
        raise DeclinedError("pieces out of use are on the way to others")
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
            raise DeclinedError(reason)
