"""The vocabulary that a run starts from: SentencePiece's file of a released model, read and judged before any work.

What a base must give: every text back byte for byte. Byte pieces stand for characters outside its vocabulary, and its
normaliser must be the identity. One that loses text (T5's nmt_nfkc turns a full-width comma into a plain one, joins
blanks and drops line ends) is taken away on demand: text that it would have left alone keeps its ids.
"""

from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2 as schema

from model.errors import InputError
from tasks.vocab.config import VocabConfig

UNIGRAM, BPE = 1, 2
"""SentencePiece's numbers of its kinds of model."""
KINDS = {UNIGRAM: "unigram", BPE: "bpe"}
NORMAL, BYTE = 1, 6
"""Types of pieces in SentencePiece's file; others are unknown, control, user-defined and unused."""
CURE = 'Take a base that keeps text as it is, or set vocab.normaliser = "none".'


def read_model(model: bytes) -> Any:
    """The content of a SentencePiece file; InputError where it is none."""
    parsed = schema.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]  # made at run time by protobuf
    try:
        parsed.ParseFromString(model)
    except DecodeError as error:
        raise InputError(f"vocab.base: this file is no SentencePiece model ({error})") from error
    if not parsed.pieces:
        raise InputError("vocab.base: this file is no SentencePiece model: it holds no pieces")
    return parsed


def write_model(parsed: Any) -> bytes:
    """The bytes of a SentencePiece file; the same content gives the same bytes."""
    return parsed.SerializeToString(deterministic=True)


def read_base(path: Path, normaliser: str) -> bytes:
    """The base's bytes, without its normaliser where `normaliser` is `none`.

    Raises InputError for a file that is no SentencePiece model, or one that would lose text.
    """
    given = path.read_bytes()
    parsed = read_model(given)
    if parsed.trainer_spec.model_type not in KINDS:
        raise InputError(f"vocab.base: {path} is neither a BPE nor a Unigram model; only these can be extended")
    if parsed.trainer_spec.treat_whitespace_as_suffix or not parsed.normalizer_spec.escape_whitespaces:
        raise InputError(f"vocab.base: {path} writes blanks behind words or not at all; such a model is not supported")
    losses = _losses(parsed)
    if not losses:
        return given
    if normaliser == "keep":
        raise InputError(f"vocab.base: {path} would lose text, for its normaliser {' and '.join(losses)}. {CURE}")
    parsed.normalizer_spec.name = "identity"
    parsed.normalizer_spec.precompiled_charsmap = b""
    parsed.normalizer_spec.remove_extra_whitespaces = False
    return write_model(parsed)


def _losses(parsed: Any) -> list[str]:
    """What the base's normaliser does to text that no decoding can take back."""
    spec = parsed.normalizer_spec
    losses = []
    if spec.precompiled_charsmap:
        losses.append(f"({spec.name or 'unnamed'}) maps characters to others")
    if spec.remove_extra_whitespaces:
        losses.append("drops blanks")
    return losses


def pieces_asked(config: VocabConfig) -> int:
    """Pieces of the vocabulary that `config` asks for, those of its base included."""
    if config.base is None:
        return config.vocab_size
    return len(read_model(config.base.read_bytes()).pieces) + config.pieces_to_find
