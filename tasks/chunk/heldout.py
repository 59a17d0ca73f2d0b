"""Held-out text in rows like those of training: pairs for the evaluation of a BERT, plain rows for validation during
training.

They are written to tables of their own, which no training step learns from. Held-out text is small by its limits and is
held in memory.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from model.data.row_format import RowFormat
from model.data.schema import sequences_schema
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.tables.files import read_table, table_file_name, write_table
from tasks.artifacts.tables.map_parts import unit_name
from tasks.artifacts.tables.schema import SPANS
from tasks.artifacts.workspace import Workspace
from tasks.chunk.config import ChunkConfig
from tasks.chunk.packing import PackedRows, concat_rows
from tasks.chunk.sentence_pairs import PairFormat, PairPacker
from tasks.chunk.sequences import sequences_table
from tasks.chunk.tokenize import (
    TABLE,
    TokenBytes,
    TokenFile,
    group_into_windows,
    read_blocks,
    token_files,
    tokenize_part,
)
from tasks.common.numeric import seed64
from tasks.tokenizer.base import Tokenizer

HELDOUT_ROWS, HELDOUT_SPANS = "heldout_rows", "heldout_spans"
UNIT = "heldout"
MAX_ROWS = 256
"""Plain rows of each source; evaluate scores all held-out text."""
TEXT_BYTES = "text_bytes"


def write_heldout(
    documents: Artifact, tokenizer: Tokenizer, layout: RowFormat, config: ChunkConfig, workspace: Workspace
) -> None:
    """Write `heldout_rows` (SEQUENCES) of the held-out documents, where there are any: pairs for `masked_lm`, with
    `heldout_spans` (SPANS); else plain rows with `text_bytes`, the UTF-8 bytes of all tokens of a row but the first."""
    if not documents.files("heldout") or workspace.finished(UNIT) is not None:
        return
    files = tokenize_heldout(documents, tokenizer, workspace)
    in_pairs = config.objective == "masked_lm"
    packed: list[tuple[str, PackedRows]] = []
    sizes = [np.zeros(0, dtype=np.int64)]
    rows = 0
    for source in sorted({source for file in files for source in file.sources}):
        first_row = rows
        for part in (_pairs if in_pairs else _plain_rows)(files, source, tokenizer, config, rows):
            packed.append((source, part))
            rows += len(part.rows)
        if not in_pairs:
            sizes.append(_text_bytes(files, source, tokenizer, rows - first_row, config.row_length))
    table = sequences_table(sequences_schema(config.row_length, tokenizer.vocab_size, layout), packed, 0)
    if not in_pairs:
        column = pa.array(np.concatenate(sizes))
        table = table.append_column(pa.field(TEXT_BYTES, pa.int64(), nullable=False), column)
    with workspace.unit(UNIT) as unit:
        write_table(unit, HELDOUT_ROWS, table)
        if in_pairs:
            spans = pa.concat_tables([SPANS.empty_table(), *(part.spans for _, part in packed)])
            write_table(unit, HELDOUT_SPANS, spans)


def _pairs(
    files: Sequence[TokenFile], source: str, tokenizer: Tokenizer, config: ChunkConfig, first_row: int
) -> Iterator[PackedRows]:
    key = seed64(config.seed, "chunk", "held-out pairs", source)
    packer = PairPacker(PairFormat.of(tokenizer, config), TokenBytes.of(tokenizer), first_row, key)
    return packer.rows(group_into_windows(read_blocks(files, source, with_texts=True)))


def _plain_rows(
    files: Sequence[TokenFile], source: str, tokenizer: Tokenizer, config: ChunkConfig, first_row: int
) -> Iterator[PackedRows]:
    left = MAX_ROWS
    blocks = read_blocks(files, source)
    for part in concat_rows(blocks, config.row_length, TokenBytes.of(tokenizer), tokenizer.pad, first_row):
        yield part.slice(0, left)
        left -= len(part.rows)
        if left <= 0:
            return


def tokenize_heldout(documents: Artifact, tokenizer: Tokenizer, workspace: Workspace) -> list[TokenFile]:
    """Return the held-out documents as files of tokens in the build's scratch folder."""
    heldout = documents.files("heldout")
    scratch = Workspace(workspace.scratch(UNIT))
    for index, path in enumerate(heldout):
        if scratch.finished(unit_name(index)) is None:
            with scratch.unit(unit_name(index)) as unit:
                tokens = tokenize_part(read_table(path), index, tokenizer).tables[TABLE]
                write_table(unit, TABLE, tokens, table_file_name(TABLE, unit_name(index)))
    return token_files([scratch.file(record.name) for record in scratch.records()], heldout)


def _text_bytes(
    files: Sequence[TokenFile], source: str, tokenizer: Tokenizer, rows: int, row_length: int
) -> np.ndarray:
    """Return the bytes of text that the predicted tokens of each of the first plain rows of a source cover, i64[rows]:
    all tokens but the first. Padding covers none, nor does the space that a vocabulary puts before a text."""
    token_bytes = TokenBytes.of(tokenizer)
    covered = np.concatenate([np.diff(token_bytes.borders(block)) for block in read_blocks(files, source)])
    of_rows = np.zeros(rows * row_length, dtype=np.int64)
    count = min(len(covered), len(of_rows))
    of_rows[:count] = covered[:count]
    return of_rows.reshape(rows, row_length)[:, 1:].sum(axis=1)
