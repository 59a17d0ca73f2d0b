"""SEQUENCES by memory map, read in ORDER: a batch is a pure function of its position."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import torch
from torch import Tensor

from model.errors import InputError


class SequenceReader:
    """Rows of all sequence files, addressed through ORDER; holds maps, not data.

    Its whole state is the position in ORDER. Raises InputError for rows of unequal length or an order that names a row
    which is not there.
    """

    def __init__(self, sequences: Sequence[Path], order: Path) -> None:
        self._parts = [part for path in sequences for part in _tokens(path)]
        lengths = {part.shape[1] for part in self._parts if len(part)}
        if len(lengths) != 1:
            raise InputError(f"sequences have rows of {sorted(lengths) or 'no'} tokens; expected rows of one length")
        self.row_length = lengths.pop()
        self._first_row = np.cumsum([0, *(len(part) for part in self._parts)])
        self._order = _open(order).column("row").to_numpy()
        rows = int(self._first_row[-1])
        if len(self._order) and not (self._order.min() >= 0 and self._order.max() < rows):
            raise InputError(
                f"{order} names rows {self._order.min()} to {self._order.max()}, but the sequences hold {rows}"
            )
        self._loss_start = np.concatenate([_open(path).column("loss_start").to_numpy() for path in sequences])

    @property
    def positions(self) -> int:
        """Reads that ORDER asks for."""
        return len(self._order)

    def batch(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Positions [begin, end) of ORDER: token ids i64[B, row_length] and loss_start i64[B]."""
        rows = self._order[begin:end]
        tokens = np.empty((len(rows), self.row_length), dtype=np.int64)
        for index, row in enumerate(rows):
            part = int(np.searchsorted(self._first_row, row, side="right")) - 1
            tokens[index] = self._parts[part][row - self._first_row[part]]
        return torch.from_numpy(tokens), torch.from_numpy(self._loss_start[rows].astype(np.int64))


def _open(path: Path) -> pa.Table:
    try:
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).read_all()
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}; the run was told to read it") from error
    except pa.ArrowInvalid as error:
        raise InputError(f"{path} is no Arrow file: {error}. Build its artifact anew") from error


def _tokens(path: Path) -> list[np.ndarray]:
    """Token ids of one file as views into the memory map, one [rows, row_length] array a record batch."""
    column = _open(path).column("tokens")
    return [chunk.flatten().to_numpy().reshape(-1, column.type.list_size) for chunk in column.chunks]
