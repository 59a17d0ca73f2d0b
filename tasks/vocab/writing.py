"""What every way to a vocabulary leaves: its files, its table, and the counts of the documents it was made from."""

import json
from dataclasses import dataclass

import pyarrow as pa

from model.reading import digest_bytes
from tasks.schema import VOCABULARY
from tasks.sentencepiece_tokenizer import SentencePieceTokenizer
from tasks.tables import write_table
from tasks.tokenizer import ADDED_PIECES, BASE, DESCRIPTION_FILE, MODEL_FILES, Tokenizer, is_json
from tasks.tokenizer_json import read_tokenizer_json
from tasks.vocab.added_pieces import added_pieces
from tasks.vocab.base import BYTE, read_model
from tasks.vocab.fast import FAST_FILE, fast_tokenizer
from tasks.workspace import Unit

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
