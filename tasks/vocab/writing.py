"""What every way to a vocabulary leaves: its two files, and the counts of the documents that it was made from."""

import json
from dataclasses import dataclass

from tasks.artifact import Artifact
from tasks.digests import digest_bytes
from tasks.report import StageReport
from tasks.tokenizer import ADDED_PIECES, BASE, DESCRIPTION_FILE, MODEL_FILES, Tokenizer
from tasks.vocab.added_pieces import added_pieces
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
    """The vocabulary's own file and `tokenizer.json` into the unit; for other programs SentencePiece's as
    `fast_tokenizer.json`, too; where there is a base, `added_pieces`."""
    name = MODEL_FILES[tokenizer.kind]
    unit.path(name).write_bytes(tokenizer.model)
    unit.add_file(name)
    if tokenizer.kind == Tokenizer.kind:
        unit.path(FAST_FILE).write_bytes(fast_tokenizer(tokenizer.model))
        unit.add_file(FAST_FILE)
    description = tokenizer.description()
    if origin is not None:
        description[BASE] = {"digest": digest_bytes(origin.released), "pieces": origin.pieces}
        unit.write_table(ADDED_PIECES, added_pieces(origin.prepared, tokenizer.model, origin.pieces))
    unit.path(DESCRIPTION_FILE).write_text(json.dumps(description, indent=1, sort_keys=True) + "\n")
    unit.add_file(DESCRIPTION_FILE)


def count_documents(documents: Artifact) -> StageReport:
    """Documents are only read here: all that came in go on."""
    report = StageReport()
    for source, counts in documents.report.sources.items():
        mine = report.source(source)
        mine.documents_in = mine.documents_out = counts.documents_out
        mine.bytes_in = mine.bytes_out = counts.bytes_out
        mine.pieces_out = counts.pieces_out
    return report
