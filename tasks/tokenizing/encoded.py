"""The ids of a column of texts, and how those of the library are gathered into the same form."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Encoded:
    """The ids of many texts, one behind the other: those of text i are ids[offsets[i] : offsets[i + 1]]."""

    ids: np.ndarray
    """u16 or u32 [tokens]."""
    offsets: I64
    """[texts + 1]."""


def token_dtype(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """u16 where every id fits, else u32."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def text_by_text(texts: pa.Array | pa.ChunkedArray) -> Iterator[str]:
    """The strings of a column, those of a chunk at a time in Python's memory."""
    for chunk in texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]:
        yield from chunk.to_pylist()


def gather(texts: Iterable[np.ndarray], dtype: type[np.uint16] | type[np.uint32], closing: int | None) -> Encoded:
    """The ids of each text behind those of the text before it, `closing` behind each where there is one."""
    tail = np.array([] if closing is None else [closing], dtype)
    arrays = [np.zeros(0, dtype)]
    lengths = [0]
    for ids in texts:
        arrays += [ids.astype(dtype), tail]
        lengths.append(len(ids) + len(tail))
    return Encoded(np.concatenate(arrays), np.cumsum(lengths, dtype=np.int64))
