"""Files and tables of a finished vocabulary.

`added_pieces` gives each token of an extended vocabulary as ids of its base. The mean of these ids' embeddings
initialises the new one inside the convex hull of old embeddings (Hewitt 2021; Gee et al. 2022); an empty list marks
what the base could not encode.

`fast_tokenizer.json` is a SentencePiece vocabulary as a `tokenizer.json`, which gives other programs the same ids. The
library `tokenizers` (and transformers' `PreTrainedTokenizerFast`) joins pairs by rank, where SentencePiece joins
whatever concatenates to a token, the best score first, the leftmost of equals. So every pair of tokens that makes a
token becomes a merge, in the order of the scores; of equal scores (LLaMA's runs of spaces) the longest comes first,
which lets a run grow from the left as SentencePiece does. Spaces become U+2581 character by character, so that runs of
them and those at the beginning of a text are kept. For Unigram, the library would find the names of special tokens and
bytes in a text as tokens. Their scores are below those of every other encoding of their names, and text is split around
characters of such names that no token has (T5 has no `<`), since the library prefers any token to an unknown character.

What differs: a U+2581 of the text itself, which is spelled in bytes here and is a space there. The library recognises
special tokens in text unless `encode_special_tokens` or `split_special_tokens` is set. And where a vocabulary has
user-defined tokens and a space before whole texts, the library adds that space after each such token, too.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from model.digests import digest_bytes
from tasks.artifacts.tables.files import write_table
from tasks.artifacts.tables.schema import VOCABULARY
from tasks.artifacts.workspace import Unit
from tasks.tokenizer.base import ADDED_PIECES, BASE, DESCRIPTION_FILE, MODEL_FILES, Tokenizer, is_json, json_model_type
from tasks.tokenizer.json_format import parse_merges, read_tokenizer_json, to_json_bytes
from tasks.tokenizer.model_file import (
    BLANK,
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN_PENALTY,
    UNKNOWN_TYPE,
    USER_DEFINED,
    read_model,
)
from tasks.tokenizer.open import tokenizer_of
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.bpe import bare_processor, merge_pairs
from tasks.vocab.special_tokens import SPECIAL_TOKEN_FLAGS
from tasks.vocab.unigram import MARGIN, best_alternative
from tasks.vocab.wordpiece import wordpiece_base_ids

UNIT = "tokenizer"
FAST_FILE = "fast_tokenizer.json"
ADDED_TOKENS_SCHEMA = pa.schema([("id", pa.int32()), ("base_ids", pa.list_(pa.int32()))])


@dataclass(frozen=True)
class BaseVocabulary:
    """What a vocabulary was extended from: the `released` file, the file `prepared` for extension, and the number of
    its first ids (`pieces`) that have rows in the embedding of the base model."""

    released: bytes
    prepared: bytes
    pieces: int


def write_tokenizer(unit: Unit, tokenizer: Tokenizer, base: BaseVocabulary | None = None) -> None:
    """Write the vocabulary's own file, `tokenizer.json` and the table VOCABULARY into the unit; for other programs
    SentencePiece's as `fast_tokenizer.json`, too; and `added_pieces` where there is a base."""
    name = MODEL_FILES[tokenizer.kind]
    unit.path(name).write_bytes(tokenizer.model)
    unit.add_file(name)
    if tokenizer.kind == SentencePieceTokenizer.kind:
        unit.path(FAST_FILE).write_bytes(fast_tokenizer(tokenizer.model, tokenizer.begin))
        unit.add_file(FAST_FILE)
    write_table(unit, "vocabulary", vocabulary_table(tokenizer, base.pieces if base else tokenizer.vocab_size))
    description = tokenizer.description()
    if base is not None:
        description[BASE] = {"digest": digest_bytes(base.released), "pieces": base.pieces}
        write_table(unit, ADDED_PIECES, added_token_table(base.prepared, tokenizer.model, base.pieces))
    unit.path(DESCRIPTION_FILE).write_text(json.dumps(description, indent=1, sort_keys=True) + "\n")
    unit.add_file(DESCRIPTION_FILE)


def vocabulary_table(tokenizer: Tokenizer, rows_of_base: int) -> pa.Table:
    """Return VOCABULARY, one row per id in order; ids from `rows_of_base` on are added ones."""
    size = tokenizer.vocab_size
    names: list[str | None] = [None] * size
    scores: list[float | None] = [None] * size
    bytes_kind = set[int]()
    if is_json(tokenizer.model):
        parsed = read_tokenizer_json(tokenizer.model)
        added = {token["content"]: token["id"] for token in parsed["added_tokens"]}
        for name, number in (parsed["model"]["vocab"] | added).items():
            names[number] = name
    else:
        for number, piece in enumerate(read_model(tokenizer.model).pieces):
            names[number], scores[number] = piece.piece, piece.score
            if piece.type == BYTE:
                bytes_kind.add(number)
    special = {*tokenizer.special}
    rows = range(size)
    columns = {
        "id": list(rows),
        "piece": names,
        "bytes": [None if number in special else tokenizer.piece_bytes[number] for number in rows],
        "kind": ["special" if number in special else "byte" if number in bytes_kind else "text" for number in rows],
        "score": scores,
        "added": [number >= rows_of_base for number in rows],
    }
    return pa.table(columns, schema=VOCABULARY)


def added_token_table(base: bytes, model: bytes, first: int) -> pa.Table:
    """Return the tokens of `model` from the id `first` on, each with the ids below `first` with which `base` encodes
    the same bytes within a text; an empty list where it has none (special tokens, byte tokens, unknown characters)."""
    if json_model_type(base) == "WordPiece":
        written = dict(wordpiece_base_ids(base, model, first))
    else:
        written = dict(_merge_with_base(base, model, first) if is_json(base) else _encode_with_base(base, model, first))
    unusable = set(tokenizer_of(base).special)
    numbers = range(first, tokenizer_of(model).vocab_size)
    base_ids = [
        ids if all(number < first and number not in unusable for number in ids) else []
        for ids in (written.get(number, []) for number in numbers)
    ]
    return pa.table({"id": list(numbers), "base_ids": base_ids}, schema=ADDED_TOKENS_SCHEMA)


def _encode_with_base(base: bytes, model: bytes, first: int) -> Iterator[tuple[int, list[int]]]:
    pieces = [
        (first + place, piece.piece.replace(BLANK, " "))
        for place, piece in enumerate(read_model(model).pieces[first:])
        if piece.type == NORMAL
    ]
    encoded = bare_processor(base).encode([text for _, text in pieces])
    yield from ((number, ids) for (number, _), ids in zip(pieces, encoded, strict=True))


def _merge_with_base(base: bytes, model: bytes, first: int) -> Iterator[tuple[int, list[int]]]:
    """Yield (id, base ids) of each added token; merged here, since the library cannot encode tokens that are no
    whole characters."""
    old = json.loads(base)["model"]
    ranks = {pair: rank for rank, pair in enumerate(parse_merges(old["merges"]))}
    new = json.loads(model)
    special = {token["content"] for token in new["added_tokens"]}
    for piece, number in new["model"]["vocab"].items():
        if number >= first and piece not in special:
            yield number, [old["vocab"][symbol] for symbol in merge_pairs(list(piece), ranks)]


def fast_tokenizer(model: bytes, begin: int = -1) -> bytes:
    """Return the bytes of a `tokenizer.json` with the ids of a SentencePiece BPE or Unigram model that has byte
    tokens and no normaliser; it puts the token `begin` before each text, unless that is -1."""
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
        "pre_tokenizer": None if parsed.trainer_spec.model_type == BPE else _split_unknown_characters(parsed),
        "post_processor": None if begin < 0 else _begin_with(parsed.pieces[begin].piece, begin),
        "decoder": {"type": "Sequence", "decoders": decoders + strip},
        "model": _bpe_model(parsed) if parsed.trainer_spec.model_type == BPE else _unigram_model(parsed),
    }
    return to_json_bytes(written)


def _begin_with(name: str, begin: int) -> dict[str, Any]:
    token: dict[str, Any] = {"SpecialToken": {"id": name, "type_id": 0}}
    first, second = ({"Sequence": {"id": which, "type_id": number}} for number, which in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [token, first],
        "pair": [token, first, {"SpecialToken": {"id": name, "type_id": 1}}, second],
        "special_tokens": {name: {"id": name, "ids": [begin], "tokens": [name]}},
    }


def _added_tokens(parsed: Any) -> list[dict[str, Any]]:
    # Tokens that are searched for in normalised text do not have the text around them normalised separately; but the
    # library would put the space that begins a text before their names, too.
    normalised = not parsed.normalizer_spec.add_dummy_prefix
    kinds = {
        CONTROL: SPECIAL_TOKEN_FLAGS,
        UNKNOWN_TYPE: SPECIAL_TOKEN_FLAGS,
        USER_DEFINED: {**SPECIAL_TOKEN_FLAGS, "special": False, "normalized": normalised},
    }
    return [
        {"id": number, "content": piece.piece, **kinds[piece.type]}
        for number, piece in enumerate(parsed.pieces)
        if piece.type in kinds
    ]


def _bpe_model(parsed: Any) -> dict[str, Any]:
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
        "unk_token": _unknown_token(parsed),
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": merges,
    }


def _unigram_model(parsed: Any) -> dict[str, Any]:
    scores = {piece.piece: float(piece.score) for piece in parsed.pieces if piece.type == NORMAL}
    unknown = min(scores.values()) - UNKNOWN_PENALTY
    pieces = [
        [
            piece.piece,
            float(piece.score) if piece.type == NORMAL else best_alternative(piece.piece, scores, unknown) - MARGIN,
        ]
        for piece in parsed.pieces
    ]
    names = [piece.piece for piece in parsed.pieces]
    return {"type": "Unigram", "unk_id": names.index(_unknown_token(parsed)), "vocab": pieces, "byte_fallback": True}


def _split_unknown_characters(parsed: Any) -> dict[str, Any] | None:
    known = {character for piece in parsed.pieces if piece.type == NORMAL for character in piece.piece}
    names = "".join(piece.piece for piece in parsed.pieces if piece.type != NORMAL)
    signs = "".join(sorted(set(names) - known))
    if not signs:
        return None
    pattern = {"Regex": f"[{re.escape(signs)}]"}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def _unknown_token(parsed: Any) -> str:
    return next(piece.piece for piece in parsed.pieces if piece.type == UNKNOWN_TYPE)
