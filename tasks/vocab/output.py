"""What every way to a vocabulary leaves: its files, its table, and the counts of the documents it was made from.

What an extended vocabulary's new rows stand for in ids of its base: a trainer makes their embeddings from these.

The mean of the rows with which the base wrote the same text is a start inside the convex hull of old embeddings
(Hewitt, 2021; Gee et al., 2022); what the base could not write at all says so by an empty list.

A SentencePiece vocabulary as a `tokenizer.json`, which other programs read and which gives them the same ids.

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from model.digests import digest_bytes
from tasks.artifacts.schema import VOCABULARY
from tasks.artifacts.tables import write_table
from tasks.artifacts.workspace import Unit
from tasks.tokenizer.base import ADDED_PIECES, BASE, DESCRIPTION_FILE, MODEL_FILES, Tokenizer, is_json, json_model_type
from tasks.tokenizer.json_format import read_tokenizer_json
from tasks.tokenizer.model_file import BPE, BYTE, NORMAL, read_model
from tasks.tokenizer.open import tokenizer_of
from tasks.tokenizer.sentencepiece import BLANK, SentencePieceTokenizer
from tasks.vocab.bpe import isolated, pairs_of, reduce_pairs
from tasks.vocab.special_tokens import CONTROL, FLAGS, USER_DEFINED
from tasks.vocab.unigram import MARGIN, UNKNOWN_PENALTY, best_rival
from tasks.vocab.wordpiece import base_ids_of

UNIT = "tokenizer"


@dataclass(frozen=True)
class Origin:
    """What a vocabulary was grown from: the `released` file, the same `prepared` to be extended, and the first `pieces`
    ids, which have rows in the embedding of the base model."""

    released: bytes
    prepared: bytes
    pieces: int


def write_tokenizer(unit: Unit, tokenizer: Tokenizer, origin: Origin | None = None) -> None:
    """Write the vocabulary's own file, `tokenizer.json` and the table VOCABULARY into the unit; for other programs
    SentencePiece's as `fast_tokenizer.json`, too; where there is a base, `added_pieces`."""
    name = MODEL_FILES[tokenizer.kind]
    unit.path(name).write_bytes(tokenizer.model)
    unit.add_file(name)
    if tokenizer.kind == SentencePieceTokenizer.kind:
        unit.path(FAST_FILE).write_bytes(fast_tokenizer(tokenizer.model))
        unit.add_file(FAST_FILE)
    write_table(unit, "vocabulary", vocabulary_table(tokenizer, origin.pieces if origin else tokenizer.vocab_size))
    description = tokenizer.description()
    if origin is not None:
        description[BASE] = {"digest": digest_bytes(origin.released), "pieces": origin.pieces}
        write_table(unit, ADDED_PIECES, added_pieces(origin.prepared, tokenizer.model, origin.pieces))
    unit.path(DESCRIPTION_FILE).write_text(json.dumps(description, indent=1, sort_keys=True) + "\n")
    unit.add_file(DESCRIPTION_FILE)


def vocabulary_table(tokenizer: Tokenizer, rows_of_base: int) -> pa.Table:
    """Return VOCABULARY, a row for each id in order; those from `rows_of_base` on are added ones."""
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


SCHEMA = pa.schema([("id", pa.int32()), ("base_ids", pa.list_(pa.int32()))])


def added_pieces(base: bytes, model: bytes, first: int) -> pa.Table:
    """The pieces of `model` from the id `first` on, each with the ids below `first` with which `base` writes the same
    bytes within a text; an empty list where it has none (special tokens, byte pieces, characters it does not know)."""
    if json_model_type(base) == "WordPiece":
        written = dict(base_ids_of(base, model, first))
    else:
        written = dict(_merged(base, model, first) if is_json(base) else _encoded(base, model, first))
    unusable = set(tokenizer_of(base).special)
    numbers = range(first, tokenizer_of(model).vocab_size)
    base_ids = [
        ids if all(number < first and number not in unusable for number in ids) else []
        for ids in (written.get(number, []) for number in numbers)
    ]
    return pa.table({"id": list(numbers), "base_ids": base_ids}, schema=SCHEMA)


def _encoded(base: bytes, model: bytes, first: int) -> Iterator[tuple[int, list[int]]]:
    pieces = [
        (first + place, piece.piece.replace(BLANK, " "))
        for place, piece in enumerate(read_model(model).pieces[first:])
        if piece.type == NORMAL
    ]
    encoded = isolated(base).encode([text for _, text in pieces])
    yield from ((number, ids) for (number, _), ids in zip(pieces, encoded, strict=True))


def _merged(base: bytes, model: bytes, first: int) -> Iterator[tuple[int, list[int]]]:
    """Some pieces are no whole characters, which the library could not be given as text."""
    old = json.loads(base)["model"]
    ranks = {pair: rank for rank, pair in enumerate(pairs_of(old["merges"]))}
    new = json.loads(model)
    special = {token["content"] for token in new["added_tokens"]}
    for piece, number in new["model"]["vocab"].items():
        if number >= first and piece not in special:
            yield number, [old["vocab"][symbol] for symbol in reduce_pairs(list(piece), ranks)]


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
