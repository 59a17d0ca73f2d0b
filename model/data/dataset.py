"""Rows of SEQUENCES in ORDER, read through a memory map: rows are a pure function of their position."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model.data.row_format import NO_LOSS, RowFormat
from model.errors import InputError


@dataclass(frozen=True)
class Rows:
    """B rows of L tokens as chunk packed them, all i64; row and epoch select their random numbers."""

    row_B: np.ndarray
    epoch_B: np.ndarray
    tokens_BL: np.ndarray
    loss_start_B: np.ndarray
    second_start_B: np.ndarray | None
    """Where sentence B begins (masked_lm); L where there is none."""
    is_next_B: np.ndarray | None
    """1 where B follows A in its document, 0 where it does not, NO_LOSS where there is no B."""


class SequenceReader:
    """Rows of all sequence files, addressed through ORDER; holds memory maps, not data.

    It has no state: callers keep the position in ORDER. Token ids of the rows read are checked against `vocab_size`, if
    given. Raises InputError for rows of unequal length or format, or an ORDER with a row that does not exist.
    """

    def __init__(self, sequences: Sequence[Path], order: Path | pa.Table, vocab_size: int | None = None) -> None:
        self._vocab_size = vocab_size
        tables = [open_table(path) for path in sequences]
        self._parts = [part for table in tables for part in _tokens(table)]
        lengths = {part.shape[1] for part in self._parts if len(part)}
        if len(lengths) != 1:
            raise InputError(f"sequences have rows of {sorted(lengths) or 'no'} tokens; expected rows of one length")
        self.row_length = lengths.pop()
        self.row_format = _common_format(sequences, tables)
        """The format in the metadata of the files; None where they have none."""
        self._first_row = np.cumsum([0, *(len(part) for part in self._parts)])
        self._reads = open_table(order) if isinstance(order, Path) else order
        rows, limits = int(self._first_row[-1]), pc.min_max(self._reads.column("row")).as_py()
        if self.positions and not (limits["min"] >= 0 and limits["max"] < rows):
            name = order if isinstance(order, Path) else "the order"
            raise InputError(f"{name} names rows {limits['min']} to {limits['max']}, but the sequences hold {rows}")
        self._loss_start = _column(tables, "loss_start", pa.int32())
        pairs = "second_start" in tables[0].column_names
        self._second_start = _column(tables, "second_start", pa.int32()) if pairs else None
        self._is_next = _column(tables, "is_next", pa.int8()) if pairs else None

    @property
    def positions(self) -> int:
        """Length of ORDER."""
        return self._reads.num_rows

    def rows(self, begin: int, end: int) -> Rows:
        """Return the rows at positions [begin, end) of ORDER; InputError for a token beyond the vocabulary."""
        reads = self._reads.slice(begin, end - begin)
        rows = reads.column("row").to_numpy()
        tokens = np.empty((len(rows), self.row_length), dtype=np.int64)
        part_of = np.searchsorted(self._first_row, rows, side="right") - 1
        for part in np.unique(part_of):
            mine = part_of == part
            tokens[mine] = self._parts[part][rows[mine] - self._first_row[part]]
        if self._vocab_size is not None and tokens.size and tokens.max() >= self._vocab_size:
            raise InputError(
                f"positions {begin} to {end} of ORDER hold the token {tokens.max()}, but the model has"
                f" {self._vocab_size} tokens. The sequences were made with another tokenizer; run again from chunk."
            )
        return Rows(
            row_B=rows,
            epoch_B=reads.column("epoch").to_numpy().astype(np.int64),
            tokens_BL=tokens,
            loss_start_B=self._loss_start[rows].astype(np.int64),
            second_start_B=None if self._second_start is None else self._second_start[rows].astype(np.int64),
            is_next_B=None if self._is_next is None else self._is_next[rows].astype(np.int64),
        )


def open_table(path: Path) -> pa.Table:
    """Open an Arrow file through a memory map; InputError where it is missing or broken."""
    try:
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).read_all()
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}, which run.json names") from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        # Of what a damaged file says Arrow raises OSError too, without the number that an error of the disk has.
        if getattr(error, "errno", None) is not None:
            raise
        raise InputError(f"{path} is not an Arrow file: {error}. Build its artifact again") from error


def _tokens(table: pa.Table) -> list[np.ndarray]:
    """Return the token ids of a file as views into its memory map, one [rows, row_length] array for each record
    batch."""
    column = table.column("tokens")
    return [chunk.flatten().to_numpy().reshape(-1, column.type.list_size) for chunk in column.chunks]


def _column(tables: list[pa.Table], name: str, kind: pa.DataType) -> np.ndarray:
    """Return a column of all files, with NO_LOSS in place of null."""
    columns = (table.column(name).cast(kind) for table in tables)
    return np.concatenate([pc.fill_null(column, NO_LOSS).to_numpy() for column in columns])


def _common_format(sequences: Sequence[Path], tables: list[pa.Table]) -> RowFormat | None:
    formats = [RowFormat.of(table.schema) for table in tables]
    for path, one in zip(sequences, formats, strict=True):
        if one != formats[0]:
            raise InputError(
                f"{path} and {sequences[0]} have rows of different formats: {one} and {formats[0]}. They come from two"
                f" builds of chunk; run again from chunk."
            )
    return formats[0]


def text_lengths(tokens_BL: np.ndarray, pad: int) -> np.ndarray:
    """Return the tokens of each row before the padding at its end, i64[B]; padding ids elsewhere count as tokens."""
    is_token = tokens_BL[:, ::-1] != pad
    return np.where(is_token.any(axis=1), tokens_BL.shape[1] - is_token.argmax(axis=1), 0)


def padding_id(data: SequenceReader) -> int:
    """Return the padding id of a reader whose rows have a format."""
    assert data.row_format is not None, "the loader refuses rows without a format"
    return data.row_format.pad
