"""Held-out text in pairs like those of training, for evaluation: how text is paired is chunk's to know.

They stand in tables of their own, which no trainer reads. Held-out text is small by its limits and stands in memory.

Held-out text in rows like those of training, a few of each source, for a look at them while training goes on.

They stand in a table of their own, which gives no step anything to learn.
"""

import numpy as np
import pyarrow as pa

from model.data.row_format import RowFormat
from model.data.schema import sequences_schema
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.map_parts import unit_name
from tasks.artifacts.schema import SPANS
from tasks.artifacts.tables import read_table, table_file_name, write_table
from tasks.artifacts.workspace import Workspace
from tasks.chunk.config import ChunkConfig
from tasks.chunk.packing import Packed, concat_rows
from tasks.chunk.sentence_pairs import PairFormat, PairPacker
from tasks.chunk.sequences import sequences_table
from tasks.chunk.tokenize import TABLE, TokenBytes, TokenFile, blocks_of, token_files, tokenize_part, windows
from tasks.common.numeric import seed64
from tasks.tokenizer.base import Tokenizer

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


MOST_ROWS = 256
"""Rows of each source; held-out text is measured whole by evaluate."""

TEXT_BYTES = "text_bytes"


def write_heldout_rows(
    documents: Artifact, tokenizer: Tokenizer, layout: RowFormat | None, config: ChunkConfig, workspace: Workspace
) -> None:
    """Write `heldout_rows` (SEQUENCES, and `text_bytes`: UTF-8 bytes of all tokens of a row but the first) of the
    documents held out, where there are any."""
    if not documents.files("heldout") or workspace.finished(UNIT) is not None:
        return
    files = heldout_files(documents, tokenizer, workspace)
    packed: list[tuple[str, Packed]] = []
    rows = 0
    for source in sorted({source for file in files for source in file.sources}):
        left = MOST_ROWS
        blocks = blocks_of(files, source)
        for part in concat_rows(blocks, config.row_length, TokenBytes.of(tokenizer), tokenizer.pad, rows):
            chosen = part.slice(0, left)
            packed.append((source, chosen))
            rows += len(chosen.rows)
            left -= len(chosen.rows)
            if not left:
                break
    table = sequences_table(sequences_schema(config.row_length, tokenizer.vocab_size, layout), packed, 0)
    sizes = [_text_bytes(part.rows, tokenizer) for _, part in packed]
    column = pa.array(np.concatenate([np.zeros(0, dtype=np.int64), *sizes]))
    with workspace.unit(UNIT) as unit:
        write_table(unit, ROWS, table.append_column(pa.field(TEXT_BYTES, pa.int64(), nullable=False), column))


def _text_bytes(rows: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Bytes of each row [R] that are predicted: those of all tokens but the first; padding stands for none."""
    predicted = rows[:, 1:]
    return np.where(predicted == tokenizer.pad, 0, tokenizer.piece_lengths[predicted]).sum(axis=1)
