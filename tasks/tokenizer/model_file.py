"""SentencePiece's model file, read and written."""

from typing import Any

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2 as schema

from model.errors import InputError

UNIGRAM, BPE = 1, 2
"""SentencePiece's numbers of its kinds of model."""

NORMAL, BYTE = 1, 6
"""Types of pieces in SentencePiece's file; others are unknown, control, user-defined and unused."""


def read_model(model: bytes, place: str = "vocab.base") -> Any:
    """The content of a SentencePiece file; InputError, which begins with `place`, where it is none."""
    parsed = schema.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]  # made at run time by protobuf
    try:
        parsed.ParseFromString(model)
    except DecodeError as error:
        raise InputError(f"{place}: this file is no SentencePiece model ({error})") from error
    if not parsed.pieces:
        raise InputError(f"{place}: this file is no SentencePiece model: it holds no pieces")
    if not parsed.HasField("trainer_spec") or not parsed.HasField("normalizer_spec"):
        raise InputError(
            f"{place}: this SentencePiece model ends before it says what kind it is. The file is cut off: take it"
            f" from where it came from again."
        )
    return parsed


def write_model(parsed: Any) -> bytes:
    """The bytes of a SentencePiece file; the same content gives the same bytes."""
    return parsed.SerializeToString(deterministic=True)
