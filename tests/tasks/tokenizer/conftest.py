"""Models of SentencePiece for the kernels: trained on little text, or put together piece by piece."""

import functools
import inspect
import io
import json.decoder
from collections.abc import Callable
from typing import Any

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as schema

TEXT = (
    inspect.getsource(json.decoder)
    + "Straße, café, naïve, 日本語の文章です。東京都は日本の首都です。 12345 67890\r\n" * 20
    + "Съешь ещё этих мягких французских булок, да выпей чаю\n" * 20
    + "   \t  x  \n\n\n ---- ==== ....\n" * 20
)


@pytest.fixture(scope="session")
def text() -> str:
    """Code, Latin with accents, Japanese, Russian, and runs of signs and blanks."""
    return TEXT


@pytest.fixture(scope="session")
def trained() -> Callable[..., bytes]:
    """A model of 600 pieces trained on `text`, with any options of SentencePiece's trainer."""

    @functools.cache
    def train(model_type: str, **options: Any) -> bytes:
        model = io.BytesIO()
        settings = {"vocab_size": 600, "character_coverage": 0.99, "byte_fallback": True, **options}
        settings = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, **settings}
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT.splitlines()),
            model_writer=model,
            model_type=model_type,
            num_threads=1,
            minloglevel=2,
            **settings,
        )
        return model.getvalue()

    return train


@pytest.fixture(scope="session")
def assembled() -> Callable[..., bytes]:
    """A model of just these pieces and their scores, behind <unk>, <s>, </s> and the bytes: piece i has id 259 + i.

    Behind them is a piece for the space, which every vocabulary needs, with the lowest of the scores.
    """

    def assemble(model_type: int, pieces: dict[str, float], **normaliser: Any) -> bytes:
        model = schema.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]
        model.trainer_spec.model_type = model_type
        model.trainer_spec.byte_fallback = True
        settings = {"name": "identity", "add_dummy_prefix": False, "remove_extra_whitespaces": False, **normaliser}
        for name, value in settings.items():
            setattr(model.normalizer_spec, name, value)
        for name, kind in (("<unk>", 2), ("<s>", 3), ("</s>", 3)):
            model.pieces.add(piece=name, score=0.0, type=kind)
        for byte in range(256):
            model.pieces.add(piece=f"<0x{byte:02X}>", score=0.0, type=6)
        spaces = {} if "▁" in pieces else {"▁": min(pieces.values())}
        for piece, score in {**pieces, **spaces}.items():
            model.pieces.add(piece=piece, score=score, type=1)
        return model.SerializeToString()

    return assemble
