"""Encoded columns: the ids of many texts in one array, gathered from the ids of each text."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True)
class Encoded:
    """The concatenated ids of many texts: those of text i are ids[offsets[i] : offsets[i + 1]]."""

    ids: np.ndarray
    """uint16 or uint32 [tokens]."""
    offsets: npt.NDArray[np.int64]
    """int64 [texts + 1]."""


def token_dtype(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """Return uint16 if every id fits, else uint32."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def text_by_text(texts: pa.Array | pa.ChunkedArray) -> Iterator[str]:
    """Yield the strings of a column, converting a chunk at a time."""
    for chunk in texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]:
        yield from chunk.to_pylist()


def gather(texts: Iterable[np.ndarray], dtype: type[np.uint16] | type[np.uint32], closing: int | None) -> Encoded:
    """Concatenate the ids of texts, each followed by `closing` if given."""
    tail = np.array([] if closing is None else [closing], dtype)
    arrays = [np.zeros(0, dtype)]
    lengths = [0]
    for ids in texts:
        arrays += [ids.astype(dtype), tail]
        lengths.append(len(ids) + len(tail))
    return Encoded(np.concatenate(arrays), np.cumsum(lengths, dtype=np.int64))
