"""What every way to a vocabulary leaves: its two files, and the counts of the documents that it was made from."""

import json

from tasks.artifact import Artifact
from tasks.report import StageReport
from tasks.tokenizer import DESCRIPTION_FILE, MODEL_FILES, Tokenizer
from tasks.workspace import Unit

UNIT = "tokenizer"


def write_tokenizer(unit: Unit, tokenizer: Tokenizer) -> None:
    """The vocabulary's own file and `tokenizer.json` into the unit."""
    name = MODEL_FILES[tokenizer.kind]
    unit.path(name).write_bytes(tokenizer.model)
    unit.add_file(name)
    unit.path(DESCRIPTION_FILE).write_text(json.dumps(tokenizer.description(), indent=1, sort_keys=True) + "\n")
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
