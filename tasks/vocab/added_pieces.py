"""What an extended vocabulary's new rows stand for in ids of its base: a trainer makes their embeddings from these.

The mean of the rows with which the base wrote the same text is a start inside the convex hull of old embeddings
(Hewitt, 2021; Gee et al., 2022); what the base could not write at all says so by an empty list.
"""

import json
from collections.abc import Iterator

import pyarrow as pa

from tasks.open_tokenizer import tokenizer_of
from tasks.sentencepiece_tokenizer import BLANK
from tasks.tokenizer import is_json, json_model_type
from tasks.vocab.base import NORMAL, read_model
from tasks.vocab.growing import isolated
from tasks.vocab.merges import pairs_of, reduce_pairs
from tasks.vocab.word_pieces import base_ids_of

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
