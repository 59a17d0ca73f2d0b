"""Read and write SentencePiece's model file."""

from typing import Any

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2 as schema

from model.errors import InputError

BLANK = "\u2581"
"""The character that represents a space inside of pieces."""

UNIGRAM, BPE = 1, 2
"""SentencePiece's numbers of model types."""

MODEL_TYPES = {UNIGRAM: "unigram", BPE: "bpe"}
"""Those that can be extended, and for which there are kernels."""

UNKNOWN_PENALTY = 10.0
"""SentencePiece's own constant (`kUnkPenalty`): a character without a token costs so much more than the worst token."""

NORMAL, UNKNOWN_TYPE, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""SentencePiece's numbers of piece types: user-defined tokens are recognised in any text, control tokens never."""


def read_model(model: bytes, place: str = "vocab.base") -> Any:
    """Return the content of a SentencePiece file. Raises InputError, which begins with `place`, if it is not one."""
    parsed = schema.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]  # made at run time by protobuf
    try:
        parsed.ParseFromString(model)
    except DecodeError as error:
        raise InputError(f"{place}: this file is no SentencePiece model ({error})") from error
    if not parsed.pieces:
        raise InputError(f"{place}: this file is no SentencePiece model: it holds no pieces")
    if not parsed.HasField("trainer_spec") or not parsed.HasField("normalizer_spec"):
        raise InputError(
            f"{place}: this SentencePiece model ends before the type of the model. The file is truncated: download"
            f" it again."
        )
    return parsed


def write_model(parsed: Any) -> bytes:
    """Return the bytes of a SentencePiece file; equal content gives equal bytes."""
    return parsed.SerializeToString(deterministic=True)
