"""Held-out text in pairs like those of training, for evaluation: how text is paired is chunk's to know.

They stand in tables of their own, which no trainer reads. Held-out text is small by its limits and stands in memory.
"""

import pyarrow as pa

from model.row_format import RowFormat
from model.schema import sequences_schema
from tasks.artifact import Artifact
from tasks.chunk.blocks import TokenBytes, TokenFile, blocks_of, token_files, windows
from tasks.chunk.config import ChunkConfig
from tasks.chunk.packing import Packed
from tasks.chunk.pairs import PairFormat, PairPacker
from tasks.chunk.sequences import sequences_table
from tasks.chunk.tokenizing import TABLE, tokenize_part
from tasks.parts import unit_name
from tasks.schema import SPANS
from tasks.seed import seed64
from tasks.tables import read_table, table_file_name, write_table
from tasks.tokenizer import Tokenizer
from tasks.workspace import Workspace

ROWS, SEGMENTS = "heldout_rows", "heldout_spans"
UNIT = "heldout"


def write_heldout_pairs(
    documents: Artifact, tokenizer: Tokenizer, layout: RowFormat, config: ChunkConfig, workspace: Workspace
) -> None:
    """Write `heldout_rows` (SEQUENCES) and `heldout_spans` (SPANS) of the documents held out, where there are any."""
    if not documents.files("heldout") or workspace.finished(UNIT) is not None:
        return
    files = heldout_files(documents, tokenizer, workspace)
    pairs = PairFormat(config.row_length, tokenizer.cls, tokenizer.sep, tokenizer.pad, config.short_row_share)
    packed: list[tuple[str, Packed]] = []
    rows = 0
    for source in sorted({source for file in files for source in file.sources}):
        key = seed64(config.seed, "chunk", "held-out pairs", source)
        packer = PairPacker(pairs, TokenBytes.of(tokenizer), rows, key)
        for part in packer.rows(windows(blocks_of(files, source, with_texts=True))):
            packed.append((source, part))
            rows += len(part.rows)
    schema = sequences_schema(config.row_length, tokenizer.vocab_size, layout)
    with workspace.unit(UNIT) as unit:
        write_table(unit, ROWS, sequences_table(schema, packed, 0))
        write_table(unit, SEGMENTS, pa.concat_tables([SPANS.empty_table(), *(part.spans for _, part in packed)]))


def heldout_files(documents: Artifact, tokenizer: Tokenizer, workspace: Workspace) -> list[TokenFile]:
    """The documents held out as tokens, in the build's scratch folder."""
    heldout = documents.files("heldout")
    scratch = Workspace(workspace.scratch(UNIT))
    for index, path in enumerate(heldout):
        if scratch.finished(unit_name(index)) is None:
            with scratch.unit(unit_name(index)) as unit:
                tokens = tokenize_part(read_table(path), index, tokenizer).tables[TABLE]
                write_table(unit, TABLE, tokens, table_file_name(TABLE, unit_name(index)))
    return token_files([scratch.file(record.name) for record in scratch.records()], heldout)
