"""The bits of every held-out document, so that two models can be compared document by document."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tasks.schema import DOC_ID_BYTES

DOCUMENT_SCORES = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("doc_id", pa.binary(DOC_ID_BYTES), nullable=False),
        pa.field("piece", pa.int16(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("bits", pa.float64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
    ]
)
"""`metric` is that of SCORES whose value is the sum of `bits` over the sum of `bytes`. Sources of which the vocabulary
loses text have no rows."""


class Named(Protocol):
    """What names a document or a piece of one."""

    @property
    def doc_id(self) -> bytes: ...

    @property
    def piece(self) -> int: ...


class DocumentScores:
    """Collects rows of DOCUMENT_SCORES for the documents of each source, in their order."""

    def __init__(self, documents: Mapping[str, Sequence[Named]]) -> None:
        self._documents = documents
        self.rows: list[dict[str, Any]] = []

    def add(self, source: str, metric: str, bits: np.ndarray, sizes: np.ndarray) -> None:
        """`bits` and the bytes that they stand for, of each document of a source."""
        for one, more, size in zip(self._documents[source], bits.tolist(), sizes.tolist(), strict=True):
            key = {"source": source, "doc_id": one.doc_id, "piece": one.piece}
            self.rows.append({**key, "metric": metric, "bits": more, "bytes": int(size)})
