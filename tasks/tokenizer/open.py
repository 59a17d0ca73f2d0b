"""Open a vocabulary of any kind."""

import json
from pathlib import Path

from model.config.network import Objective
from model.errors import IntegrityError
from tasks.artifacts.artifact import Artifact
from tasks.tokenizer.base import BASE, DESCRIPTION_FILE, MODEL_FILES, Tokenizer, is_json, json_model_type
from tasks.tokenizer.byte_level import ByteLevelTokenizer
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.tokenizer.wordpiece import WordPieceTokenizer


def open_tokenizer(vocab: Artifact, objective: Objective = "causal_lm") -> Tokenizer:
    """Return the tokenizer of a vocab artifact; only texts of `causal_lm` have a begin token.

    Raises IntegrityError if its files do not have their digests.
    """
    description = vocab.file(DESCRIPTION_FILE)
    kind = json.loads(description.read_text())["kind"]
    tokenizer = load_tokenizer(vocab.file(MODEL_FILES[kind]), description)
    if objective != "causal_lm":
        tokenizer.begin = -1
    return tokenizer


def load_tokenizer(model: Path, description: Path) -> Tokenizer:
    """Return the tokenizer of two files. Raises IntegrityError if the description belongs to another model.

    It may lack a padding token: rows of training data need one, a model fine-tuned from a published one has none.
    """
    tokenizer, expected = tokenizer_of(model.read_bytes(), pads=False), json.loads(description.read_text())
    # A model is used as it was trained, and older descriptions have no begin token.
    tokenizer.begin = expected.get("begin", -1)
    found = tokenizer.description()
    expected.pop(BASE, None)
    if expected != found:
        wrong = next(key for key in {**expected, **found} if expected.get(key) != found.get(key))
        raise IntegrityError(
            f"{description} says {wrong} = {expected.get(wrong)!r}, and {model.name} has {found.get(wrong)!r}:"
            f" the two files do not belong together. Nothing was computed from them. Rebuild the vocabulary."
        )
    return tokenizer


def tokenizer_of(model: bytes, *, pads: bool = True, begins: bool = False) -> Tokenizer:
    """Return the tokenizer of a vocabulary's file: a `tokenizer.json` begins with a brace, SentencePiece's file does
    not. With `pads` a token to pad sequences with is needed; `begins` is `texts_begin` of SentencePiece's file."""
    if not is_json(model):
        return SentencePieceTokenizer(model, pads=pads, begins=begins)
    if json_model_type(model) == "WordPiece":
        return WordPieceTokenizer(model, pads=pads)
    return ByteLevelTokenizer(model, pads=pads)
