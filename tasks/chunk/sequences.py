"""SEQUENCES and SPANS as files of a fixed number of rows, so that their division into files is a function of the
data."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from model.data.row_format import RowFormat
from model.data.schema import sequences_schema
from tasks.artifacts.tables.files import table_file_name, write_table
from tasks.artifacts.tables.map_parts import unit_name
from tasks.artifacts.tables.schema import SPANS
from tasks.artifacts.workspace import Workspace
from tasks.chunk.packing import PackedRows
from tasks.tokenizer.base import token_dtype


class SequenceWriter:
    """Collects rows and their spans into parts. What each row takes of the budget goes to a file in `scratch`."""

    def __init__(
        self, workspace: Workspace, scratch: Path, row_length: int, part_bytes: int, row_format: RowFormat
    ) -> None:
        self._workspace = workspace
        self._schema = sequences_schema(row_length, row_format.vocab_size, row_format)
        self._part_rows = max(1, part_bytes // (row_length * np.dtype(token_dtype(row_format.vocab_size)).itemsize))
        self._pending: list[tuple[str, PackedRows]] = []
        self._pending_rows = 0
        self._spans: list[pa.Table] = []
        self._counted = scratch / "counted.u32"
        self._counted.write_bytes(b"")
        self.names: list[str] = []
        """Files of SEQUENCES written so far."""
        self.rows = 0
        """Rows taken so far, which is the id of the next one."""
        self.spans = 0
        """Segments taken so far."""

    def add(self, source: str, packed: PackedRows) -> None:
        """Add rows of one source, and spans in order (of these rows or later ones)."""
        if packed.spans.num_rows:
            self._spans.append(packed.spans)
            self.spans += packed.spans.num_rows
        with self._counted.open("ab") as stream:
            stream.write(packed.counted.astype("<u4").tobytes())
        self.rows += len(packed.rows)
        begin = 0
        while begin < len(packed.rows):
            taken = packed.slice(begin, begin + self._part_rows - self._pending_rows)
            self._pending.append((source, taken))
            self._pending_rows += len(taken.rows)
            begin += len(taken.rows)
            if self._pending_rows == self._part_rows:
                self._write_part()

    def finish(self) -> np.ndarray:
        """Write the remaining rows as the last part; without any row, one empty part, so that the table exists.

        Return the tokens of the budget that each row takes, u32[rows], as a memory map.
        """
        if self._pending_rows or not self.names:
            self._write_part()
        return np.memmap(self._counted, dtype="<u4", mode="r") if self.rows else np.zeros(0, dtype=np.uint32)

    def _write_part(self) -> None:
        index = len(self.names)
        first = index * self._part_rows
        name = table_file_name("sequences", unit_name(index))
        spans = pa.concat_tables([SPANS.empty_table(), *self._spans]).combine_chunks()
        mine = int(np.searchsorted(spans.column("row").to_numpy(), first + self._pending_rows))
        self._spans = [spans.slice(mine)] if mine < spans.num_rows else []
        if self._workspace.finished(unit_name(index)) is None:
            with self._workspace.unit(unit_name(index)) as unit:
                write_table(unit, "sequences", sequences_table(self._schema, self._pending, first), name)
                write_table(unit, "spans", spans.slice(0, mine), table_file_name("spans", unit_name(index)))
        self.names.append(name)
        self._pending, self._pending_rows = [], 0


def sequences_table(schema: pa.Schema, packed: Sequence[tuple[str, PackedRows]], first: int) -> pa.Table:
    """Return rows of SEQUENCES, numbered from `first`, each with its source."""
    token = schema.field("tokens").type
    dtype = token.value_type.to_pandas_dtype()
    flat = [rows.rows.reshape(-1).astype(dtype, copy=False) for _, rows in packed]
    sources = [source for source, rows in packed for _ in range(len(rows.rows))]
    columns = {
        "row": np.arange(first, first + len(sources), dtype=np.int64),
        "source": pa.array(sources, pa.string()).dictionary_encode(),
        "tokens": pa.FixedSizeListArray.from_arrays(pa.array(np.concatenate([np.zeros(0, dtype), *flat])), type=token),
        "loss_start": np.zeros(len(sources), dtype=np.int32),
    }
    if "second_start" in schema.names:
        starts = [rows.second_start for _, rows in packed if rows.second_start is not None]
        labels = [rows.is_next for _, rows in packed if rows.is_next is not None]
        columns["second_start"] = np.concatenate([np.zeros(0, dtype=np.int32), *starts])
        columns["is_next"] = pa.chunked_array(labels, pa.bool_())
    return pa.table(columns, schema=schema)
