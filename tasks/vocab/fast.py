"""A SentencePiece vocabulary as a `tokenizer.json`, which other programs read and which gives them the same ids.

The library `tokenizers` (and transformers' `PreTrainedTokenizerFast`) joins pairs by rank, where SentencePiece joins
whatever concatenates to a piece, the best score first, the leftmost of equals. So every pair of pieces that makes a
piece is a merge here, in the order of the scores; of equal scores (LLaMA's runs of blanks) the longest comes first,
which lets a run grow from the left as SentencePiece does. Blanks become U+2581 character by character, so that runs of
them and those at the beginning of a text stand as they are.

For Unigram, the library would find the names of special tokens and bytes in a text as pieces. Their scores are below
those of any other way to write their names, and text is cut around signs of such names that no piece holds (T5 has no
`<`), since it would rather take any piece than an unknown sign.

What differs: a U+2581 of the text itself, spelled in bytes here and a blank there. The library takes special
tokens out of text unless it is told not to (`encode_special_tokens`, `split_special_tokens`). And where a vocabulary
has pieces of the user's and a blank before whole texts, the library puts that blank behind each such piece, too.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from tasks.sentencepiece_tokenizer import BLANK
from tasks.vocab.base import BPE, NORMAL, read_model
from tasks.vocab.placing import MARGIN, UNKNOWN_PENALTY, best_rival
from tasks.vocab.specials import CONTROL, FLAGS, USER_DEFINED

FAST_FILE = "fast_tokenizer.json"
UNKNOWN_TYPE = 2
"""SentencePiece's type of the unknown piece."""


def fast_tokenizer(model: bytes) -> bytes:
    """The bytes of a `tokenizer.json` with the ids of a SentencePiece BPE or Unigram model that has byte pieces and no
    normaliser."""
    parsed = read_model(model)
    leading = parsed.normalizer_spec.add_dummy_prefix
    blanks: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": BLANK}]
    prefix: list[dict[str, Any]] = [{"type": "Prepend", "prepend": BLANK}] if leading else []
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    strip: list[dict[str, Any]] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if leading else []
    written = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(parsed),
        "normalizer": {"type": "Sequence", "normalizers": prefix + blanks},
        "pre_tokenizer": None if parsed.trainer_spec.model_type == BPE else _cut_around_unknown(parsed),
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders + strip},
        "model": _merging(parsed) if parsed.trainer_spec.model_type == BPE else _scoring(parsed),
    }
    return (json.dumps(written, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def _added_tokens(parsed: Any) -> list[dict[str, Any]]:
    # What is looked for in the normalised text is not normalised around itself; but the library would put the blank of
    # a whole text before its name, too.
    normalised = not parsed.normalizer_spec.add_dummy_prefix
    kinds = {
        CONTROL: FLAGS,
        UNKNOWN_TYPE: FLAGS,
        USER_DEFINED: {**FLAGS, "special": False, "normalized": normalised},
    }
    return [
        {"id": number, "content": piece.piece, **kinds[piece.type]}
        for number, piece in enumerate(parsed.pieces)
        if piece.type in kinds
    ]


def _merging(parsed: Any) -> dict[str, Any]:
    vocabulary = {piece.piece: number for number, piece in enumerate(parsed.pieces)}
    scores = {piece.piece: float(piece.score) for piece in parsed.pieces if piece.type == NORMAL}
    merges = [
        [piece[:cut], piece[cut:]]
        for piece in sorted(scores, key=lambda piece: (-scores[piece], -len(piece), vocabulary[piece]))
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": _unknown(parsed),
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": merges,
    }


def _scoring(parsed: Any) -> dict[str, Any]:
    scores = {piece.piece: float(piece.score) for piece in parsed.pieces if piece.type == NORMAL}
    unknown = min(scores.values()) - UNKNOWN_PENALTY
    pieces = [
        [piece.piece, float(piece.score) if piece.type == NORMAL else _below_its_name(piece.piece, scores, unknown)]
        for piece in parsed.pieces
    ]
    names = [piece.piece for piece in parsed.pieces]
    return {"type": "Unigram", "unk_id": names.index(_unknown(parsed)), "vocab": pieces, "byte_fallback": True}


def _cut_around_unknown(parsed: Any) -> dict[str, Any] | None:
    known = {character for piece in parsed.pieces if piece.type == NORMAL for character in piece.piece}
    names = "".join(piece.piece for piece in parsed.pieces if piece.type != NORMAL)
    signs = "".join(sorted(set(names) - known))
    if not signs:
        return None
    pattern = {"Regex": f"[{re.escape(signs)}]"}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def _below_its_name(name: str, scores: Mapping[str, float], unknown: float) -> float:
    return best_rival(name, scores, unknown) - MARGIN


def _unknown(parsed: Any) -> str:
    return next(piece.piece for piece in parsed.pieces if piece.type == UNKNOWN_TYPE)
