"""Held-out text in rows like those of training, a few of each source, for a look at them while training goes on.

They stand in a table of their own, which gives no step anything to learn.
"""

import numpy as np
import pyarrow as pa

from model.row_format import RowFormat
from model.schema import sequences_schema
from tasks.artifact import Artifact
from tasks.chunk.blocks import TokenBytes, blocks_of
from tasks.chunk.concat import concat_rows
from tasks.chunk.config import ChunkConfig
from tasks.chunk.heldout_pairs import ROWS, UNIT, heldout_files
from tasks.chunk.packing import Packed
from tasks.chunk.sequences import sequences_table
from tasks.tables import write_table
from tasks.tokenizer import Tokenizer
from tasks.workspace import Workspace

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
